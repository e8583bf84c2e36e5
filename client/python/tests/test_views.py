"""The table of what a reader is shown of a turn: ../../testdata/views.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from parley import TurnEvent
from parley._view import UNKNOWN, View

CASES = json.loads((Path(__file__).parents[2] / "testdata" / "views.json").read_text("utf-8"))[
    "cases"
]


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in CASES])
def test_view(case: dict[str, Any]) -> None:
    """Each step gives what the table says, and leaves the stream's own event as it is."""
    after = case.get("after", 0)
    view = View(case.get("turn", ""), after, UNKNOWN if after else 0)
    for number, step in enumerate(case["steps"], start=1):
        where = f"step {number}: {step}"
        match step:
            case {"begin": index}:
                assert view.begin(index) == index, where
            case {"next": index}:
                assert view.next() == index, where
            case {"gone": way_on}:
                assert view.gone() is way_on, where
            case {"take": event, "shown": shown}:
                taken = json_format.ParseDict(event, TurnEvent())
                got = view.take(taken)
                assert taken == json_format.ParseDict(event, TurnEvent()), where
                want = shown and json_format.ParseDict(shown, TurnEvent())
                assert got == want, where
            case _:
                pytest.fail(f"{where} is of no known kind")


def test_a_cut_within_a_character() -> None:
    """A stream whose offsets are wrong is shown as well as can be."""
    view = View("t", 1, 3)
    view.begin(0)
    event = TurnEvent(turn_id="t", index=2)
    event.text_delta.text = "größer"
    shown = view.take(event)
    assert shown
    assert shown.text_delta.text == "\ufffdßer"
