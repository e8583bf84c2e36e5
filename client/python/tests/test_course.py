"""What a stream asks and shows, without a connection and with a clock of its own."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from fake import numbered, text_of

from parley import (
    AnswerStarted,
    ChangeKind,
    ChatRequest,
    ChatResponse,
    Conversation,
    ConversationChange,
    Error,
    ResumeTurnRequest,
    StructuredData,
    TextDelta,
    ToolResult,
    TurnEvent,
    TurnFinished,
    TurnQueued,
    TurnStarted,
    WatchConversationsRequest,
    WatchConversationsResponse,
)
from parley._course import TurnCourse, WatchCourse
from parley._patience import Patience

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CODES = grpc.StatusCode
AWAY = Error(CODES.UNAVAILABLE, "connection refused")

Answer = tuple[list[Any], "Error | None"]


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        """Begin somewhere."""
        self.now = 1000.0

    def __call__(self) -> float:
        """Tell the time."""
        return self.now


class Line:
    """A connection of which a test says whether it has been there."""

    def __init__(self, *, reached: bool = False) -> None:
        """Begin open."""
        self._reached = reached
        self.closed = False

    def reached(self) -> bool:
        """See SyncLine."""
        return self._reached

    def close(self) -> None:
        """See SyncLine."""
        self.closed = True


def text(words: str) -> TurnEvent:
    """Return a piece of text."""
    return TurnEvent(text_delta=TextDelta(text=words))


def turn(*between: TurnEvent) -> list[TurnEvent]:
    """Return the events of a turn."""
    started = TurnEvent(started=TurnStarted(conversation=Conversation(id="c"), replayed=True))
    return numbered(started, *between, TurnEvent(finished=TurnFinished()))


def long_turn() -> list[TurnEvent]:
    """Return a turn with all that matters: data between text, two messages, many bytes."""
    return turn(
        text("Let "),
        text("me "),
        TurnEvent(structured_data=StructuredData(type="d")),
        text("see."),
        TurnEvent(tool_result=ToolResult(call_id="1")),
        TurnEvent(answer_started=AnswerStarted(agent="a")),
        text("größer"),
        text(" als ..."),
    )


def read(course: Any, server: Callable[[Any], Answer], clock: Clock, limit: int = 0) -> list[Any]:
    """Read a stream to its end, or that many events; waits only move the clock."""
    shown: list[Any] = []
    while True:
        replies, error = server(course.ask())
        for reply in replies:
            if (event := course.take(reply)) is not None:
                shown.append(event)
                if len(shown) == limit:
                    return shown
                course.resume()
        delay = course.end(error)
        if delay is None:
            return shown
        clock.now += delay


def replies(events: Iterable[TurnEvent]) -> list[Any]:
    """Return events as a server sends them."""
    return [ChatResponse(event=event) for event in events]


def unreplayed(events: list[TurnEvent]) -> list[TurnEvent]:
    """Return events as the one is shown them who asked first."""
    events[0].started.replayed = False
    return events


BREAKS = {
    "the server ends the stream": None,
    "the server restarts": Error(CODES.UNAVAILABLE, "", reason="SHUTTING_DOWN"),
    "the reader was slow": Error(CODES.RESOURCE_EXHAUSTED, "", reason="SLOW_READER"),
    "something in between is away": Error(CODES.UNAVAILABLE, "bad gateway"),
    "something in between resets it": Error(CODES.INTERNAL, "RST_STREAM"),
    "something in between cancels it": Error(CODES.CANCELLED, "RST_STREAM"),
    "something in between is confused": Error(CODES.UNKNOWN, "no trailers"),
}


@pytest.mark.parametrize("error", BREAKS.values(), ids=BREAKS.keys())
def test_a_break_behind_any_event_goes_unnoticed(error: Error | None) -> None:
    """The stream is whole, and the second ask is for what is behind the break."""
    events = long_turn()
    for count in range(1, len(events)):
        asked: list[Any] = []

        def server(request: Any, count: int = count, asked: list[Any] = asked) -> Answer:
            asked.append(request)
            if isinstance(request, ChatRequest):
                return replies(events[:count]), error
            return replies(events[request.after_index :]), None

        clock = Clock()
        course = TurnCourse(ChatRequest(content="hi"), Patience(Line(), clock=clock))
        assert read(course, server, clock) == unreplayed(long_turn()), f"behind event {count}"
        assert asked[0].request_id
        assert asked[1] == ResumeTurnRequest(conversation_id="c", turn_id="t", after_index=count)


@pytest.mark.parametrize("error", [e for e in BREAKS.values() if e and e.reason])
def test_a_break_ahead_of_all_events_asks_again(error: Error) -> None:
    """It is the same turn that is asked for: the request has the same request_id."""
    ids = []

    def server(request: ChatRequest) -> Answer:
        ids.append(request.request_id)
        return (replies(long_turn()), None) if len(ids) > 3 else ([], error)

    clock = Clock()
    request = ChatRequest(content="hi")
    shown = read(TurnCourse(request, Patience(Line(), clock=clock)), server, clock)
    assert shown == unreplayed(long_turn())
    assert len(ids) == 4
    assert len(set(ids)) == 1
    assert not request.request_id, "the caller's request was changed"


def test_events_gone() -> None:
    """Merged text is cut to what is new."""
    events = long_turn()
    merged = turn(text("größer als und mehr"))
    merged[1].index, merged[2].index = 30, 31

    def server(request: Any) -> Answer:
        if isinstance(request, ChatRequest):
            return replies([events[0], *numbered(events[0], text("größ"))[1:]]), AWAY
        if request.after_index:
            return [], Error(CODES.OUT_OF_RANGE, "", reason="EVENTS_GONE")
        return replies(merged), None

    clock = Clock()
    shown = read(TurnCourse(ChatRequest(), Patience(Line(), clock=clock)), server, clock)
    assert text_of(shown) == "größer als und mehr"
    assert [event.index for event in shown] == [1, 2, 30, 31]


def test_replayed_is_told_to_whom_brought_the_id() -> None:
    """With an id of the caller's own the turn may be an earlier one."""
    clock = Clock()
    course = TurnCourse(ChatRequest(request_id="mine"), Patience(Line(), clock=clock))
    assert read(course, lambda _: (replies(long_turn()), None), clock) == long_turn()


def test_a_place_in_the_queue_that_is_lost() -> None:
    """Another turn_id begins anew."""
    waited = numbered(TurnEvent(queued=TurnQueued(position=2)), turn="t1")
    anew = numbered(TurnEvent(queued=TurnQueued(position=3)), *turn(text("hi")), turn="t2")
    answers = iter([(replies(waited), AWAY), (replies(anew), None)])
    clock = Clock()
    shown = read(
        TurnCourse(ChatRequest(), Patience(Line(), clock=clock)), lambda _: next(answers), clock
    )
    assert [(event.turn_id, event.index) for event in shown] == [
        ("t1", 1),
        ("t2", 1),
        ("t2", 2),
        ("t2", 3),
        ("t2", 4),
    ]


def test_resume_behind_the_last_event_is_empty() -> None:
    """There is nothing more, and that is no break."""
    clock = Clock()
    request = ResumeTurnRequest(conversation_id="c", after_index=9)
    assert (
        read(TurnCourse(request, Patience(Line(), clock=clock)), lambda _: ([], None), clock) == []
    )


@pytest.mark.parametrize(
    "error",
    [
        Error(CODES.NOT_FOUND, "", reason="CONVERSATION_NOT_FOUND"),
        Error(CODES.INTERNAL, "", reason="INTERNAL"),
        Error(CODES.RESOURCE_EXHAUSTED, "", reason="QUEUE_FULL"),
        Error(CODES.DEADLINE_EXCEEDED, ""),
        Error(CODES.OUT_OF_RANGE, "", reason="EVENTS_GONE"),
    ],
    ids=str,
)
def test_what_is_no_break_is_raised(error: Error) -> None:
    """Asking again would not help."""
    clock = Clock()
    request = ResumeTurnRequest(conversation_id="c", after_index=4)
    with pytest.raises(Error) as raised:
        read(TurnCourse(request, Patience(Line(), clock=clock)), lambda _: ([], error), clock)
    assert raised.value is error


@pytest.mark.parametrize("lasted", [0.0, 1.8, 10.0, 58.0])
@pytest.mark.parametrize("error", [AWAY, Error(CODES.INTERNAL, "Invalid metadata")], ids=str)
def test_no_server_at_first(error: Error, lasted: float) -> None:
    """However long gRPC took, what has not reached a server is not asked for again."""
    clock, line = Clock(), Line()

    def server(_: ChatRequest) -> Answer:
        clock.now += lasted
        return [], error

    course = TurnCourse(ChatRequest(), Patience(line, clock=clock))
    with pytest.raises(Error) as raised:
        read(course, server, clock)
    assert raised.value is error
    course.close()
    assert line.closed


@pytest.mark.parametrize(("waits", "reached"), [(False, True), (True, False)])
@pytest.mark.parametrize("lasted", [0.5, 1.8, 10.0])
def test_a_server_that_was_there_and_is_silent(
    *, waits: bool, reached: bool, lasted: float
) -> None:
    """Who waits for it is told of UNAVAILABLE only behind a connection."""
    clock = Clock()
    answers = iter([([], AWAY), ([], AWAY), (replies(long_turn()), None)])

    def server(_: ChatRequest) -> Answer:
        clock.now += lasted
        return next(answers)

    patience = Patience(Line(reached=reached), wait_for_ready=waits, clock=clock)
    assert len(read(TurnCourse(ChatRequest(), patience), server, clock)) == len(long_turn())


GIVE_UPS: dict[str, tuple[Error | None, grpc.StatusCode, str]] = {
    "no server": (AWAY, CODES.UNAVAILABLE, ""),
    "a server that stops and stops": (
        Error(CODES.UNAVAILABLE, "", reason="SHUTTING_DOWN"),
        CODES.UNAVAILABLE,
        "SHUTTING_DOWN",
    ),
    "streams without events": (None, CODES.UNKNOWN, ""),
}


@pytest.mark.parametrize(("error", "code", "reason"), GIVE_UPS.values(), ids=GIVE_UPS.keys())
def test_gives_up_after_a_minute(error: Error | None, code: grpc.StatusCode, reason: str) -> None:
    """Without anything new, with the status of the last attempt, and without a flood of asks."""
    clock, asks = Clock(), 0

    def server(request: Any) -> Answer:
        nonlocal asks
        asks += 1
        return (replies(long_turn()[:2]), AWAY) if isinstance(request, ChatRequest) else ([], error)

    with pytest.raises(Error, match="nothing new for 60 s") as raised:
        read(TurnCourse(ChatRequest(), Patience(Line(), clock=clock)), server, clock)
    assert (raised.value.code, raised.value.reason) == (code, reason)
    assert 57 < clock.now - 1000 <= 60
    assert asks < 60
    assert isinstance(raised.value.__cause__, Error)


def test_each_event_gives_another_minute() -> None:
    """Patience is for what is new, and the reader's own time does not count."""
    events, clock = long_turn(), Clock()
    away_until = 0.0

    def server(request: Any) -> Answer:
        nonlocal away_until
        if clock.now < away_until:
            return [], AWAY
        away_until = clock.now + 50
        index = 0 if isinstance(request, ChatRequest) else request.after_index
        return replies(events[index : index + 1]), AWAY

    course = TurnCourse(ChatRequest(), Patience(Line(), clock=clock))
    assert read(course, server, clock) == unreplayed(long_turn())


def test_silence() -> None:
    """A silent stream counts as broken after 45 s, and what broke before says more."""
    clock = Clock()
    course = TurnCourse(ChatRequest(), Patience(Line(), clock=clock))
    course.ask()
    for reply in replies(long_turn()[:2]):
        course.take(reply)
    course.resume()
    assert course.left() == 45
    clock.now += 45
    error = course.silence()
    assert "silent" in error.message
    stops = Error(CODES.UNAVAILABLE, "", reason="SHUTTING_DOWN")
    assert course.end(stops) is not None
    course.ask()
    assert course.left() == 15
    clock.now += 15
    assert course.silence() is stops
    with pytest.raises(Error, match="nothing new for 60 s"):
        course.end(course.silence())


def change(kind: ChangeKind.ValueType, cursor: str = "") -> WatchConversationsResponse:
    """Return a change as a server sends it."""
    return WatchConversationsResponse(change=ConversationChange(kind=kind, cursor=cursor))


def test_a_watch_goes_on_behind_the_last_change() -> None:
    """Events of turns move nothing; the caller's request stays as it is."""
    heartbeat, appended = ChangeKind.CHANGE_KIND_HEARTBEAT, ChangeKind.CHANGE_KIND_MESSAGE_APPENDED
    answers: Any = iter(
        [
            ([change(heartbeat, "1"), change(appended, "2")], AWAY),
            ([], Error(CODES.RESOURCE_EXHAUSTED, "", reason="TOO_MANY_WATCHERS")),
            ([change(heartbeat, "2"), change(ChangeKind.CHANGE_KIND_TURN)], None),
            ([change(appended, "3")], None),
        ]
    )
    cursors = []

    def server(request: WatchConversationsRequest) -> Answer:
        cursors.append(request.cursor)
        answer: Answer = next(answers)
        return answer

    clock = Clock()
    request = WatchConversationsRequest(cursor="0")
    course = WatchCourse(request, Patience(Line(), clock=clock))
    shown = read(course, server, clock, limit=5)
    assert [change.cursor for change in shown] == ["1", "2", "2", "", "3"]
    assert cursors == ["0", "2", "2", "2"]
    assert request.cursor == "0"


def test_a_new_watch_over_the_limit_is_refused() -> None:
    """Only one that was let in before has a stream of its own that may still be counted."""
    clock = Clock()
    full = Error(CODES.RESOURCE_EXHAUSTED, "", reason="TOO_MANY_WATCHERS")
    course = WatchCourse(WatchConversationsRequest(), Patience(Line(), clock=clock))
    with pytest.raises(Error) as raised:
        read(course, lambda _: ([], full), clock)
    assert raised.value is full


def test_a_watch_that_breaks_behind_each_heartbeat_is_asked_for_ever_more_slowly() -> None:
    """The delay grows to two seconds, since a heartbeat is nothing new."""
    clock = Clock()
    course = WatchCourse(WatchConversationsRequest(), Patience(Line(), clock=clock))
    asked: list[float] = []

    def server(_: WatchConversationsRequest) -> Answer:
        asked.append(clock.now)
        return [change(ChangeKind.CHANGE_KIND_HEARTBEAT, "1")], AWAY

    read(course, server, clock, limit=10)
    waits = [later - sooner for sooner, later in pairwise(asked)]
    assert waits[-1] > 1.5
