"""Events of ADK as messages of Parley, and back."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from google.adk.events import Event

from parley.adapters.adk._state import to_json
from parley.v1.message_pb2 import Message, Native, Role
from parley.v1.record_pb2 import RecordWrite

if TYPE_CHECKING:
    from google.genai.types import Part

EVENT = "google.adk.event"
EVENT_RECORDS = "google.adk.event.records"  # The value names the records that have the event.
EVENT_PREFIX = "adk/event/"  # of the keys of those records

# Larger events are stored as records, because messages have less space than records: 256 KiB each
# and 3 MiB in a conversation if the operator has changed nothing.
MAX_INLINE_BYTES = 32 << 10
MAX_RECORD_BYTES = 3 << 20
MAX_TEXT = 16_000
MAX_PART_TEXT = 2_000
MAX_AGENT_BYTES = 128
MAX_MESSAGE_ID_BYTES = 256


@dataclass
class Messages:
    """Messages of events, and the number of the newest event of the session; 0 if none."""

    messages: list[Message] = field(default_factory=list)
    newest: int = 0


def as_message(event: Event, encoded: bytes, digest: str) -> tuple[Message, list[RecordWrite]]:
    """Return the message of an event, and the records that belong to it if it is large."""
    pieces = list[RecordWrite]()
    native = Native(type=EVENT, value=encoded)
    if len(encoded) > MAX_INLINE_BYTES:
        pieces = [
            RecordWrite(
                key=f"{EVENT_PREFIX}{digest}/{start // MAX_RECORD_BYTES}",
                value=encoded[start : start + MAX_RECORD_BYTES],
            )
            for start in range(0, len(encoded), MAX_RECORD_BYTES)
        ]
        reference = {"keys": [piece.key for piece in pieces], "timestamp": event.timestamp}
        native = Native(type=EVENT_RECORDS, value=to_json(reference))
    user = event.author == "user"
    return Message(
        id=event.id if len(utf8(event.id)) <= MAX_MESSAGE_ID_BYTES else "",
        role=Role.ROLE_USER if user else Role.ROLE_ASSISTANT,
        agent="" if user or len(utf8(event.author)) > MAX_AGENT_BYTES else event.author,
        content=utf8(readable(event)).decode(),
        native=native,
    ), pieces


def piece_keys(message: Message) -> list[str]:
    """Return the keys of the records that have the event of a message; none if it is inside."""
    if message.native.type == EVENT:
        return []
    keys: list[str] = json.loads(message.native.value)["keys"]
    return keys


def timestamp_of(message: Message) -> float:
    """Return the timestamp of the event of a message, in seconds."""
    return float(json.loads(message.native.value)["timestamp"])


def as_event(message: Message, records: dict[str, bytes]) -> Event:
    """Return the event of a message."""
    keys = piece_keys(message)
    encoded = b"".join(records[key] for key in keys) if keys else message.native.value
    return Event.model_validate(json.loads(encoded))


def readable(event: Event) -> str:
    """Return the event as text for people and for other agents."""
    parts = (event.content.parts if event.content else None) or []
    texts = [text for part in parts if (text := readable_part(part))]
    if not texts and event.error_message:
        texts = [event.error_message]
    return shortened("\n".join(texts), MAX_TEXT)


def readable_part(part: Part) -> str:
    """Return a part of an event's content as text; calls and results in short."""
    if part.text and not part.thought:
        return part.text
    if call := part.function_call:
        return shortened(f"calls {call.name}({json.dumps(call.args or {}, default=str)})")
    if result := part.function_response:
        text = json.dumps(result.response, default=str, ensure_ascii=False)
        return shortened(f"{result.name} returned {text}")
    if blob := part.inline_data:
        return f"[{blob.mime_type or 'data'}, {len(blob.data or b'')} bytes]"
    if file := part.file_data:
        return shortened(f"[{file.mime_type or 'file'} {file.file_uri}]")
    if code := part.executable_code:
        return shortened(code.code or "")
    if output := part.code_execution_result:
        return shortened(output.output or "")
    return ""


def shortened(text: str, limit: int = MAX_PART_TEXT) -> str:
    """Return the text, cut with an ellipsis if it is longer than the limit in characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def utf8(text: str) -> bytes:
    """Return text as UTF-8, with "?" for what is not Unicode."""
    return text.encode(errors="replace")
