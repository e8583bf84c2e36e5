"""What a stream requests and delivers, without a connection and with a fake clock."""

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
from parley._resumption import Follower, Watcher
from parley._retry import Retry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CODES = grpc.StatusCode
UNREACHABLE = Error(CODES.UNAVAILABLE, "connection refused")

Answer = tuple[list[Any], "Error | None"]


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        """Start at any time."""
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now


class FakeConnectivity:
    """A connectivity that a test sets."""

    def __init__(self, *, reached: bool = False) -> None:
        """Make it open."""
        self._reached = reached
        self.closed = False

    def reached(self) -> bool:
        """See Connectivity."""
        return self._reached

    def close(self) -> None:
        """See Connectivity."""
        self.closed = True


def text(content: str) -> TurnEvent:
    """Return a piece of text."""
    return TurnEvent(text_delta=TextDelta(text=content))


def turn(*between: TurnEvent) -> list[TurnEvent]:
    """Return the events of a turn."""
    started = TurnEvent(started=TurnStarted(conversation=Conversation(id="c"), replayed=True))
    return numbered(started, *between, TurnEvent(finished=TurnFinished()))


def long_turn() -> list[TurnEvent]:
    """Return a turn with data between text, two messages and characters of several bytes."""
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


def read(
    resumption: Any, server: Callable[[Any], Answer], clock: Clock, limit: int = 0
) -> list[Any]:
    """Read a stream to its end, or this many events. A wait only advances the clock."""
    delivered: list[Any] = []
    while True:
        replies, error = server(resumption.next_request())
        for reply in replies:
            if (event := resumption.accept(reply)) is not None:
                delivered.append(event)
                if len(delivered) == limit:
                    return delivered
                resumption.reader_returned()
        delay = resumption.retry_delay(error)
        if delay is None:
            return delivered
        clock.now += delay


def replies(events: Iterable[TurnEvent]) -> list[Any]:
    """Return events as a server sends them."""
    return [ChatResponse(event=event) for event in events]


def unreplayed(events: list[TurnEvent]) -> list[TurnEvent]:
    """Return events for the caller whose request started the turn."""
    events[0].started.replayed = False
    return events


BREAKS = {
    "the server ends the stream": None,
    "the server restarts": Error(CODES.UNAVAILABLE, "", reason="SHUTTING_DOWN"),
    "the reader was slow": Error(CODES.RESOURCE_EXHAUSTED, "", reason="SLOW_READER"),
    "a proxy has no server": Error(CODES.UNAVAILABLE, "bad gateway"),
    "a proxy resets the stream": Error(CODES.INTERNAL, "RST_STREAM"),
    "a proxy cancels the stream": Error(CODES.CANCELLED, "RST_STREAM"),
    "a proxy sends no status": Error(CODES.UNKNOWN, "no trailers"),
}


@pytest.mark.parametrize("error", BREAKS.values(), ids=BREAKS.keys())
def test_resumes_after_any_event(error: Error | None) -> None:
    """The stream is complete. The second request is for the events after the break."""
    events = long_turn()
    for count in range(1, len(events)):
        requests: list[Any] = []

        def server(request: Any, count: int = count, requests: list[Any] = requests) -> Answer:
            requests.append(request)
            if isinstance(request, ChatRequest):
                return replies(events[:count]), error
            return replies(events[request.after_index :]), None

        clock = Clock()
        resumption = Follower(ChatRequest(content="hi"), Retry(FakeConnectivity(), clock=clock))
        assert read(resumption, server, clock) == unreplayed(long_turn()), (
            f"break after event {count}"
        )
        assert requests[0].request_id
        assert requests[1] == ResumeTurnRequest(conversation_id="c", turn_id="t", after_index=count)


@pytest.mark.parametrize("error", [e for e in BREAKS.values() if e and e.reason])
def test_a_break_before_all_events_repeats_the_request(error: Error) -> None:
    """The repeated request has the same request_id, so it is for the same turn."""
    ids = []

    def server(request: ChatRequest) -> Answer:
        ids.append(request.request_id)
        return (replies(long_turn()), None) if len(ids) > 3 else ([], error)

    clock = Clock()
    request = ChatRequest(content="hi")
    delivered = read(Follower(request, Retry(FakeConnectivity(), clock=clock)), server, clock)
    assert delivered == unreplayed(long_turn())
    assert len(ids) == 4
    assert len(set(ids)) == 1
    assert not request.request_id, "the caller's request was changed"


def test_events_gone() -> None:
    """Merged text is cut to its new part."""
    events = long_turn()
    merged = turn(text("größer als und mehr"))
    merged[1].index, merged[2].index = 30, 31

    def server(request: Any) -> Answer:
        if isinstance(request, ChatRequest):
            return replies([events[0], *numbered(events[0], text("größ"))[1:]]), UNREACHABLE
        if request.after_index:
            return [], Error(CODES.OUT_OF_RANGE, "", reason="EVENTS_GONE")
        return replies(merged), None

    clock = Clock()
    delivered = read(Follower(ChatRequest(), Retry(FakeConnectivity(), clock=clock)), server, clock)
    assert text_of(delivered) == "größer als und mehr"
    assert [event.index for event in delivered] == [1, 2, 30, 31]


def test_replayed_with_a_request_id_of_the_caller() -> None:
    """The turn may be an earlier one, so replayed is delivered."""
    clock = Clock()
    resumption = Follower(ChatRequest(request_id="mine"), Retry(FakeConnectivity(), clock=clock))
    assert read(resumption, lambda _: (replies(long_turn()), None), clock) == long_turn()


def test_a_lost_position_in_the_queue() -> None:
    """With another turn_id the indexes begin at 1 again."""
    first = numbered(TurnEvent(queued=TurnQueued(position=2)), turn="t1")
    second = numbered(TurnEvent(queued=TurnQueued(position=3)), *turn(text("hi")), turn="t2")
    answers = iter([(replies(first), UNREACHABLE), (replies(second), None)])
    clock = Clock()
    delivered = read(
        Follower(ChatRequest(), Retry(FakeConnectivity(), clock=clock)),
        lambda _: next(answers),
        clock,
    )
    assert [(event.turn_id, event.index) for event in delivered] == [
        ("t1", 1),
        ("t2", 1),
        ("t2", 2),
        ("t2", 3),
        ("t2", 4),
    ]


def test_resume_after_the_last_event_is_empty() -> None:
    """The end of such a call is not a break."""
    clock = Clock()
    request = ResumeTurnRequest(conversation_id="c", after_index=9)
    assert (
        read(Follower(request, Retry(FakeConnectivity(), clock=clock)), lambda _: ([], None), clock)
        == []
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
def test_other_errors_are_raised(error: Error) -> None:
    """A retry would not help."""
    clock = Clock()
    request = ResumeTurnRequest(conversation_id="c", after_index=4)
    with pytest.raises(Error) as raised:
        read(
            Follower(request, Retry(FakeConnectivity(), clock=clock)), lambda _: ([], error), clock
        )
    assert raised.value is error


@pytest.mark.parametrize("lasted", [0.0, 1.8, 10.0, 58.0])
@pytest.mark.parametrize("error", [UNREACHABLE, Error(CODES.INTERNAL, "Invalid metadata")], ids=str)
def test_no_server_at_first(error: Error, lasted: float) -> None:
    """If no server was reached, there is no retry, even if gRPC took long."""
    clock, connectivity = Clock(), FakeConnectivity()

    def server(_: ChatRequest) -> Answer:
        clock.now += lasted
        return [], error

    resumption = Follower(ChatRequest(), Retry(connectivity, clock=clock))
    with pytest.raises(Error) as raised:
        read(resumption, server, clock)
    assert raised.value is error
    resumption.close()
    assert connectivity.closed


@pytest.mark.parametrize(("waits", "reached"), [(False, True), (True, False)])
@pytest.mark.parametrize("lasted", [0.5, 1.8, 10.0])
def test_retries_a_server_that_was_reached(*, waits: bool, reached: bool, lasted: float) -> None:
    """With wait_for_ready, UNAVAILABLE means that gRPC had reached the server."""
    clock = Clock()
    answers = iter([([], UNREACHABLE), ([], UNREACHABLE), (replies(long_turn()), None)])

    def server(_: ChatRequest) -> Answer:
        clock.now += lasted
        return next(answers)

    retry = Retry(FakeConnectivity(reached=reached), wait_for_ready=waits, clock=clock)
    assert len(read(Follower(ChatRequest(), retry), server, clock)) == len(long_turn())


GIVE_UPS: dict[str, tuple[Error | None, grpc.StatusCode, str]] = {
    "no server": (UNREACHABLE, CODES.UNAVAILABLE, ""),
    "a server that keeps stopping": (
        Error(CODES.UNAVAILABLE, "", reason="SHUTTING_DOWN"),
        CODES.UNAVAILABLE,
        "SHUTTING_DOWN",
    ),
    "streams without events": (None, CODES.UNKNOWN, ""),
}


@pytest.mark.parametrize(("error", "code", "reason"), GIVE_UPS.values(), ids=GIVE_UPS.keys())
def test_gives_up_after_a_minute(error: Error | None, code: grpc.StatusCode, reason: str) -> None:
    """The error is that of the last attempt. The number of attempts is limited."""
    clock, attempts = Clock(), 0

    def server(request: Any) -> Answer:
        nonlocal attempts
        attempts += 1
        return (
            (replies(long_turn()[:2]), UNREACHABLE)
            if isinstance(request, ChatRequest)
            else ([], error)
        )

    with pytest.raises(Error, match="nothing new for 60 s") as raised:
        read(Follower(ChatRequest(), Retry(FakeConnectivity(), clock=clock)), server, clock)
    assert (raised.value.code, raised.value.reason) == (code, reason)
    assert 57 < clock.now - 1000 <= 60
    assert attempts < 60
    assert isinstance(raised.value.__cause__, Error)


def test_each_event_gives_another_minute() -> None:
    """A new event resets the time limit. The reader's own time does not count."""
    events, clock = long_turn(), Clock()
    unreachable_until = 0.0

    def server(request: Any) -> Answer:
        nonlocal unreachable_until
        if clock.now < unreachable_until:
            return [], UNREACHABLE
        unreachable_until = clock.now + 50
        index = 0 if isinstance(request, ChatRequest) else request.after_index
        return replies(events[index : index + 1]), UNREACHABLE

    resumption = Follower(ChatRequest(), Retry(FakeConnectivity(), clock=clock))
    assert read(resumption, server, clock) == unreplayed(long_turn())


def test_silence() -> None:
    """A silent stream counts as broken after 45 s. An earlier, more specific error is raised."""
    clock = Clock()
    resumption = Follower(ChatRequest(), Retry(FakeConnectivity(), clock=clock))
    resumption.next_request()
    for reply in replies(long_turn()[:2]):
        resumption.accept(reply)
    resumption.reader_returned()
    assert resumption.receive_timeout() == 45
    clock.now += 45
    error = resumption.silence_error()
    assert "silent" in error.message
    stops = Error(CODES.UNAVAILABLE, "", reason="SHUTTING_DOWN")
    assert resumption.retry_delay(stops) is not None
    resumption.next_request()
    assert resumption.receive_timeout() == 15
    clock.now += 15
    assert resumption.silence_error() is stops
    with pytest.raises(Error, match="nothing new for 60 s"):
        resumption.retry_delay(resumption.silence_error())


def change(kind: ChangeKind.ValueType, cursor: str = "") -> WatchConversationsResponse:
    """Return a change as a server sends it."""
    return WatchConversationsResponse(change=ConversationChange(kind=kind, cursor=cursor))


def test_a_watch_resumes_after_the_last_change() -> None:
    """Events of turns do not change the cursor. The caller's request is not changed."""
    heartbeat, appended = ChangeKind.CHANGE_KIND_HEARTBEAT, ChangeKind.CHANGE_KIND_MESSAGE_APPENDED
    answers: Any = iter(
        [
            ([change(heartbeat, "1"), change(appended, "2")], UNREACHABLE),
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
    resumption = Watcher(request, Retry(FakeConnectivity(), clock=clock))
    delivered = read(resumption, server, clock, limit=5)
    assert [change.cursor for change in delivered] == ["1", "2", "2", "", "3"]
    assert cursors == ["0", "2", "2", "2"]
    assert request.cursor == "0"


def test_a_new_watch_at_the_limit_is_refused() -> None:
    """Only for a watch that was accepted before may the server count a broken stream."""
    clock = Clock()
    full = Error(CODES.RESOURCE_EXHAUSTED, "", reason="TOO_MANY_WATCHERS")
    resumption = Watcher(WatchConversationsRequest(), Retry(FakeConnectivity(), clock=clock))
    with pytest.raises(Error) as raised:
        read(resumption, lambda _: ([], full), clock)
    assert raised.value is full


def test_the_delay_grows_if_each_watch_breaks_after_its_heartbeat() -> None:
    """The delay grows to two seconds, because a heartbeat is no progress."""
    clock = Clock()
    resumption = Watcher(WatchConversationsRequest(), Retry(FakeConnectivity(), clock=clock))
    requests: list[float] = []

    def server(_: WatchConversationsRequest) -> Answer:
        requests.append(clock.now)
        return [change(ChangeKind.CHANGE_KIND_HEARTBEAT, "1")], UNREACHABLE

    read(resumption, server, clock, limit=10)
    waits = [later - earlier for earlier, later in pairwise(requests)]
    assert waits[-1] > 1.5
