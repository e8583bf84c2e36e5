"""Which part of a turn a reader has received."""

from __future__ import annotations

from parley.v1.turn_pb2 import TurnEvent

UNKNOWN = -1
"""The value of View.bytes if the reader's after_index is from an earlier call, because the client
then does not know how much text of the message the reader has."""


class View:
    """Which part of a turn a reader has received. It reduces a stream to what is new.

    The messages of an answer follow one another. The events answer_started and tool_result begin
    the next message, and no event of an earlier message follows them. So an event after the last
    delivered one belongs either to the message that was current then, or to a later message that
    such an event begins first. In the current message, the view cuts text by the bytes delivered
    of it. All other events, and all text of other messages, are either known, if their index is
    not after the last one, or new.

    When the server merges all texts of a message, data may arrive before the text that preceded
    it. The client sees this because indexes are left out before an event that is no text. After
    that, only a stream from the beginning can resume the turn: a stream after the last index would
    lack that text. Indexes that are left out before a text are those of texts that were merged
    into it.
    """

    def __init__(self, turn: str = "", last: int = 0, delivered_bytes: int = 0) -> None:
        """Make the view of a reader that already has this part; by default it has nothing."""
        self.turn = turn  # The id of the turn; empty until it is known.
        self.last = last  # The index of the newest delivered event.
        self.bytes = delivered_bytes  # Of the current message's text, or UNKNOWN.
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
                self.last, self.bytes = 0, 0
                self.merged = self.repeats = False
            self.turn = event.turn_id
        kind = event.WhichOneof("event")
        if event.index <= self.last:
            if kind != "finished":
                return None
            # The server's indexes restarted after a crash. The reader needs finished in any case.
            event = copy_of(event)
            event.index = self.last + 1
        self.merged = self.merged or (kind != "text_delta" and event.index > self.last + 1)
        self.last = event.index
        if kind in ("answer_started", "tool_result"):
            self.bytes = 0
        return self._new_text(event) if kind == "text_delta" else event

    def _new_text(self, event: TurnEvent) -> TurnEvent | None:
        """Return the new part of a text delta: it cuts the bytes that the reader has."""
        text = event.text_delta.text.encode()
        begin = event.text_delta.offset
        known = self.bytes - begin
        self.bytes = max(self.bytes, begin + len(text))
        if not self.repeats or known <= 0:
            return event
        if known >= len(text):
            return None  # The reader has all of it, or has text that the server lost in a crash.
        event = copy_of(event)
        event.text_delta.text = text[known:].decode(errors="replace")
        event.text_delta.offset = begin + known
        return event


def copy_of(event: TurnEvent) -> TurnEvent:
    """Return a copy that the caller may change."""
    copy = TurnEvent()
    copy.CopyFrom(event)
    return copy
