"""The events that a client delivers of a turn, as ../../testdata/views.json has them."""

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
    """Each step has the result of the table and does not change the event of the stream."""
    after = case.get("after", 0)
    view = View(case.get("turn", ""), after, UNKNOWN if after else 0)
    for number, step in enumerate(case["steps"], start=1):
        where = f"step {number}: {step}"
        match step:
            case {"begin": index}:
                assert view.start_stream(index) == index, where
            case {"next": index}:
                assert view.resume_index() == index, where
            case {"gone": resumable}:
                assert view.restart() is resumable, where
            case {"take": event, "shown": shown}:
                taken = json_format.ParseDict(event, TurnEvent())
                got = view.new_part(taken)
                assert taken == json_format.ParseDict(event, TurnEvent()), where
                want = shown and json_format.ParseDict(shown, TurnEvent())
                assert got == want, where
            case _:
                pytest.fail(f"{where}: unknown kind of step")


def test_a_cut_within_a_character() -> None:
    """If the offsets of a stream are wrong, the cut character is replaced."""
    view = View("t", 1, 3)
    view.start_stream(0)
    event = TurnEvent(turn_id="t", index=2)
    event.text_delta.text = "größer"
    shown = view.new_part(event)
    assert shown
    assert shown.text_delta.text == "\ufffdßer"
