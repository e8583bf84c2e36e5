"""What a reader has been shown of a turn."""

from __future__ import annotations

from parley.v1.turn_pb2 import TurnEvent

UNKNOWN = -1
"""How much of a message a reader has been shown that brought its after_index from elsewhere."""


class View:
    """What a reader has been shown of a turn. It cuts a stream that repeats some of it.

    The messages of an answer follow each other: answer_started or tool_result opens another,
    and nothing of the one before comes later. So an event behind the last one shown is of the
    message under way then, or of one that such an event behind the last one opens first. Of
    the message under way, text is cut by the bytes shown of it; everything else, and all text
    of the others, is either not behind the last one, and known, or new.

    Where texts are merged, data may overtake the text that came before it; the indexes left
    out in between tell. From then on only a stream from the start can be gone on with: the
    one behind the last index would lack that text.
    """

    def __init__(self, turn: str = "", last: int = 0, shown_bytes: int = 0) -> None:
        """Begin with what was shown elsewhere; nothing unless said."""
        self.turn = turn  # Its id; empty until it is known.
        self.last = last  # Index of the newest event shown.
        self.bytes = shown_bytes  # Of the text of the message under way; or UNKNOWN.
        self.merged = False  # The events before last have not all been shown one by one.
        self.repeats = False  # The stream begins before last.

    def next(self) -> int:
        """Return the index behind which the next stream has to begin."""
        return 0 if self.merged and self.bytes != UNKNOWN else self.last

    def begin(self, after: int) -> int:
        """Note that a stream begins behind an index, and return it."""
        self.repeats = after < self.last
        return after

    def gone(self) -> bool:
        """Note that the events are not kept one by one any more; tell if there is a way on."""
        self.merged = self.bytes != UNKNOWN
        return self.merged

    def take(self, event: TurnEvent) -> TurnEvent | None:
        """Note an event as shown; return what is new of it: all, some text in a copy, or None."""
        if event.turn_id not in ("", self.turn):
            if self.turn:
                self.last, self.bytes = 0, 0
                self.merged = self.repeats = False
            self.turn = event.turn_id
        kind = event.WhichOneof("event")
        if event.index <= self.last:
            if kind != "finished":
                return None
            # A server that lost count in a crash; the end is news in any case.
            event = copy_of(event)
            event.index = self.last + 1
        self.merged = self.merged or event.index > self.last + 1
        self.last = event.index
        if kind in ("answer_started", "tool_result"):
            self.bytes = 0
        return self._take_text(event) if kind == "text_delta" else event

    def _take_text(self, event: TurnEvent) -> TurnEvent | None:
        text = event.text_delta.text.encode()
        begin = event.text_delta.offset
        known = self.bytes - begin
        self.bytes = max(self.bytes, begin + len(text))
        if not self.repeats or known <= 0:
            return event
        if known >= len(text):
            return None  # All of it; or a crash has taken the end of what was shown.
        event = copy_of(event)
        event.text_delta.text = text[known:].decode(errors="replace")
        event.text_delta.offset = begin + known
        return event


def copy_of(event: TurnEvent) -> TurnEvent:
    """Return a copy, to be changed."""
    copy = TurnEvent()
    copy.CopyFrom(event)
    return copy
