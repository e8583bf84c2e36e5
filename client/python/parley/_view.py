"""Which part of a turn a reader has received."""

from __future__ import annotations

from parley.v1.turn_pb2 import TurnEvent

UNKNOWN = -1
"""The value of View.bytes if the reader's after_index is from an earlier call, because the client
then does not know how much of the message the reader has."""

DELTAS = {"text_delta": "text", "reasoning_delta": "text", "tool_call_delta": "arguments"}
"""The kinds of event that are pieces of something, each with its field that has the piece.
Indexes that are left out before them are no loss."""


class View:
    """Which part of a turn a reader has received. It reduces a stream to what is new.

    The messages of an answer follow one another. The events answer_started and tool_result begin
    the next message, and no event of an earlier message follows them. So an event after the last
    delivered one belongs either to the message that was current then, or to a later message that
    such an event begins first. In the current message, the view cuts text, reasoning and the
    arguments of calls by the bytes delivered of them. All other events, and all deltas of other
    messages, are either known, if their index is not after the last one, or new.

    When the server merges all texts of a message, data may arrive before the text that preceded
    it. The client sees this because indexes are left out before an event that is no delta. After
    that, only a stream from the beginning can resume the turn: a stream after the last index would
    lack that text. Indexes that are left out before a delta are those of deltas that were merged
    into it, or of deltas of a call that is complete.
    """

    def __init__(self, turn: str = "", last: int = 0, delivered_bytes: int = 0) -> None:
        """Make the view of a reader that already has this part; by default it has nothing."""
        self.turn = turn  # The id of the turn; empty until it is known.
        self.last = last  # The index of the newest delivered event.
        self.bytes = delivered_bytes  # Of the current message's text, or UNKNOWN.
        self.reasoning = 0  # Delivered bytes of its reasoning, as far as the client knows.
        self.calls: dict[str, int] = {}  # The same of the arguments of its calls, by id.
        self.merged = False  # Text before last may not have been delivered.
        self.repeats = False  # The current stream begins before last.

    def resume_index(self) -> int:
        """Return the index after which the next stream must begin."""
        return 0 if self.merged and self.bytes != UNKNOWN else self.last

    def start_stream(self, after: int) -> int:
        """Record that a stream begins after this index, and return the index."""
        self.repeats = after < self.last
        return after

    def restart(self) -> bool:
        """Record EVENTS_GONE: the next stream must begin at the start of the turn.

        Return False if that is not possible, because the client does not know how much text the
        reader has.
        """
        self.merged = self.bytes != UNKNOWN
        return self.merged

    def new_part(self, event: TurnEvent) -> TurnEvent | None:
        """Record an event as delivered and return the part of it that is new.

        That is the event itself, a copy with the rest of its text, or None.
        """
        if event.turn_id not in ("", self.turn):
            if self.turn:
                self.last, self.bytes, self.reasoning = 0, 0, 0
                self.calls.clear()
                self.merged = self.repeats = False
            self.turn = event.turn_id
        kind = event.WhichOneof("event")
        if event.index <= self.last:
            if kind != "finished":
                return None
            # The server's indexes restarted after a crash. The reader needs finished in any case.
            event = copy_of(event)
            event.index = self.last + 1
        self.merged = self.merged or (kind not in DELTAS and event.index > self.last + 1)
        self.last = event.index
        part: TurnEvent | None = event
        match kind:
            case "answer_started" | "tool_result":
                self.bytes, self.reasoning = 0, 0
                self.calls.clear()
            case "text_delta":
                part, self.bytes = self._new_delta(event, kind, self.bytes)
            case "reasoning_delta":
                part, self.reasoning = self._new_delta(event, kind, self.reasoning)
            case "tool_call_delta":
                call = event.tool_call_delta.id
                part, self.calls[call] = self._new_delta(event, kind, self.calls.get(call, 0))
        return part

    def _new_delta(
        self, event: TurnEvent, kind: str, delivered: int
    ) -> tuple[TurnEvent | None, int]:
        """Return the new part of a delta: it cuts the bytes that the reader has.

        delivered is the number of bytes before the event. The second result is the number after it.
        """
        delta, field = getattr(event, kind), DELTAS[kind]
        text = getattr(delta, field).encode()
        begin = delta.offset
        known = delivered - begin
        delivered = max(delivered, begin + len(text))
        if not self.repeats or known <= 0:
            return event, delivered
        if known >= len(text):
            # The reader has all of it, or has text that the server lost in a crash.
            return None, delivered
        event = copy_of(event)
        rest = getattr(event, kind)
        setattr(rest, field, text[known:].decode(errors="replace"))
        rest.offset = begin + known
        return event, delivered


def copy_of(event: TurnEvent) -> TurnEvent:
    """Return a copy that the caller may change."""
    copy = TurnEvent()
    copy.CopyFrom(event)
    return copy
