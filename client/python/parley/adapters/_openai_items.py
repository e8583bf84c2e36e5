"""Items of OpenAI's Responses API as messages of Parley, and back.

A message has one item: its JSON in ``native``, with the type :data:`ITEM_TYPE`, and beside it the
role, the text and the tool call or result that people, routing summaries and other agents read.

- A batch of more than 100 items is still one commit, which has up to 100 messages. Its newest
  50 items have a message each, and the older ones are spread over 50 messages of the type
  :data:`ITEMS_TYPE`, whose native value is a JSON array.
- JSON of more than 16 KiB is in records of the conversation. The native value is then empty, and
  the metadata of the message has the number of records.
- Text of more than 16 KiB is cut, and says so. The JSON is always complete.
"""

from __future__ import annotations

import json
import uuid
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from parley.v1.message_pb2 import Message, Native, Role, ToolCall, ToolResult
from parley.v1.record_pb2 import RecordWrite

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeGuard

ITEM_TYPE = "openai.responses.item"
ITEMS_TYPE = "openai.responses.items"

PREFIX = "openai.session/"  # of the keys of all records
STAGED_PREFIX = PREFIX + "!staged/"  # is before ITEM_PREFIX in lists
ITEM_PREFIX = PREFIX + "items/"

RECORDS_KEY = "native_records"  # metadata: the number of records that have the native value
ITEMS_KEY = "native_items"  # metadata: the number of items in a JSON array

MAX_MESSAGES = 100  # of an append
NEWEST = 50  # items of a longer batch that have a message each
# 100 messages with so much JSON and text fit in a request, which has at most 4 MiB.
MAX_INLINE_BYTES = 16 << 10
MAX_TEXT_BYTES = 16 << 10
MAX_VALUE_BYTES = 2 << 20

MAX_CALL_ID_BYTES = 256
MAX_TOOL_NAME_BYTES = 128

DECODER = json.JSONDecoder()

ROLES = {
    "user": Role.ROLE_USER,
    "assistant": Role.ROLE_ASSISTANT,
    "system": Role.ROLE_SYSTEM,
    "developer": Role.ROLE_SYSTEM,
}
ROLE_NAMES = {
    Role.ROLE_USER: "user",
    Role.ROLE_ASSISTANT: "assistant",
    Role.ROLE_SYSTEM: "system",
}


class Encoded(NamedTuple):
    """Items as messages, and the records that belong to them."""

    messages: list[Message]
    records: list[RecordWrite]


def encode(items: Sequence[Any]) -> Encoded:
    """Return the messages of items, in their order: at most 100.

    Raises what ``json.dumps`` raises for an item that is not JSON.
    """
    older = max(0, len(items) - NEWEST) if len(items) > MAX_MESSAGES else 0
    groups = MAX_MESSAGES - NEWEST
    bounds = [older * i // groups for i in range(groups + 1)] if older else [0]
    encoded = Encoded([], [])
    for start, end in pairwise(bounds):
        encode_message(encoded, items[start:end])
    for i in range(older, len(items)):
        encode_message(encoded, items[i : i + 1])
    return encoded


def encode_message(encoded: Encoded, items: Sequence[Any]) -> None:
    """Add one message with these items."""
    documents = [to_json(item) for item in items]
    if len(items) == 1:
        message, value = described(items[0]), documents[0]
        message.native.CopyFrom(Native(type=ITEM_TYPE))
    else:
        # The transcript of several roles is what a program says for the user.
        message = Message(role=Role.ROLE_USER, content=cut("\n".join(map(transcript, items))))
        message.native.CopyFrom(Native(type=ITEMS_TYPE))
        message.metadata[ITEMS_KEY] = str(len(items))
        value = b"[" + b",".join(documents) + b"]"
    if len(value) <= MAX_INLINE_BYTES:
        message.native.value = value
    else:
        message.id = str(uuid.uuid4())
        parts = range(0, len(value), MAX_VALUE_BYTES)
        message.metadata[RECORDS_KEY] = str(len(parts))
        for key, start in zip(record_keys(message), parts, strict=True):
            part = value[start : start + MAX_VALUE_BYTES]
            encoded.records.append(RecordWrite(key=key, value=part))
    encoded.messages.append(message)


def record_keys(message: Message) -> list[str]:
    """Return the keys of the records that have the native value of a message; none if inline."""
    native = message.native
    if native.value or native.type not in (ITEM_TYPE, ITEMS_TYPE):
        return []
    count = int(message.metadata.get(RECORDS_KEY, "0"))
    return [f"{ITEM_PREFIX}{message.id}/{i:04}" for i in range(count)]


def item_count(message: Message) -> int:
    """Return the number of items of a message."""
    kind = message.native.type
    if kind == ITEMS_TYPE:
        return int(message.metadata[ITEMS_KEY])
    return 1 if kind == ITEM_TYPE else len(items_of_text(message))


def decode(message: Message, values: Mapping[str, bytes]) -> list[Any]:
    """Return the items of a message. The mapping has the values of its records.

    A message of another writer, which has no item or one that is not JSON, becomes items with its
    text, calls and result.
    """
    native = message.native
    kind = native.type
    if kind not in (ITEM_TYPE, ITEMS_TYPE):
        return items_of_text(message)
    value = native.value or b"".join(values[key] for key in record_keys(message))
    try:
        document = from_json(value)
    except ValueError:  # The SDK's own sessions skip it, too.
        return items_of_text(message)
    return document if kind == ITEMS_TYPE else [document]


def items_of_text(message: Message) -> list[Any]:
    """Return the items for a message that was written without items."""
    if message.role == Role.ROLE_TOOL:
        result = message.tool_result
        return [
            {
                "type": "function_call_output",
                "call_id": result.call_id,
                "output": result.content,
            }
        ]
    items: list[Any] = []
    if message.content:
        items.append({"role": ROLE_NAMES[message.role], "content": message.content})
    items.extend(
        {
            "type": "function_call",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
        }
        for call in message.tool_calls
    )
    return items


def to_json(item: object) -> bytes:
    """Return an item as JSON that Python reads back as it was: order of keys, floats, Unicode."""
    try:
        return json.dumps(item, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # A lone surrogate has no UTF-8, but an escape.
        return json.dumps(item, separators=(",", ":")).encode()


def from_json(value: bytes) -> Any:  # noqa: ANN401 - any JSON value
    """Return what ``json.loads`` returns, sooner for an object or array without space around it."""
    text = value.decode()
    if text.startswith(("{", "[")):
        document, end = DECODER.raw_decode(text)
        if end == len(text):
            return document
    return json.loads(text)


def described(item: Any) -> Message:  # noqa: ANN401 - any JSON value
    """Return a message with role, text, and tool call or result of an item."""
    if not isinstance(item, dict):
        return Message(role=Role.ROLE_USER, content=cut(text_of(item)))
    kind = str(item.get("type") or "message")
    role = item.get("role")
    if isinstance(role, str) and role in ROLES:
        return Message(role=ROLES[role], content=cut(text_of(item.get("content"))))
    if kind == "reasoning":
        return Message(role=Role.ROLE_ASSISTANT, reasoning=cut(text_of(item.get("summary"))))
    if (call := call_of(kind, item)) is not None:
        return Message(
            role=Role.ROLE_ASSISTANT, tool_calls=[call], summary=f"called {valid(call.name)}"
        )
    if (result := result_of(kind, item)) is not None:
        return Message(role=Role.ROLE_TOOL, tool_result=result)
    return Message(role=Role.ROLE_ASSISTANT, content=cut(summary_of(kind, item)))


def call_of(kind: str, item: Mapping[str, Any]) -> ToolCall | None:
    """Return the tool call of an item; None if it has none that the API accepts."""
    call_id, name = item.get("call_id"), item.get("name") or kind
    if not kind.endswith("_call") or not (
        is_name(call_id, MAX_CALL_ID_BYTES) and is_name(name, MAX_TOOL_NAME_BYTES)
    ):
        return None
    arguments = item.get("arguments")
    if not isinstance(arguments, str):
        rest = {key: value for key, value in item.items() if key in CALL_INPUTS}
        arguments = to_json(rest).decode()
    if len(arguments) > MAX_TEXT_BYTES or len(valid(arguments).encode()) > MAX_TEXT_BYTES:
        return None  # Arguments that are cut are not JSON.
    return ToolCall(id=call_id, name=name, arguments=valid(arguments))


CALL_INPUTS = ("input", "action", "actions", "operation")
"""What calls of other tools than functions have instead of arguments."""


def result_of(kind: str, item: Mapping[str, Any]) -> ToolResult | None:
    """Return the tool result of an item; None if it has none that the API accepts."""
    call_id = item.get("call_id")
    if not kind.endswith("_call_output") or not is_name(call_id, MAX_CALL_ID_BYTES):
        return None
    return ToolResult(call_id=call_id, content=cut(text_of(item.get("output"))))


def is_name(value: object, max_bytes: int) -> TypeGuard[str]:
    """Report whether the API accepts a value as an id or a name of up to so many bytes."""
    return (
        isinstance(value, str) and value == valid(value) and 1 <= len(value.encode()) <= max_bytes
    )


def summary_of(kind: str, item: Mapping[str, Any]) -> str:
    """Return a readable line for an item that is neither a message nor a call of the API."""
    texts = [text_of(item[key]) for key in SHOWN if item.get(key)]
    return " ".join([f"[{kind.replace('_', ' ')}]", *filter(None, texts)])


SHOWN = ("name", "arguments", "queries", "code", "content", "output", "error")


def transcript(item: Any) -> str:  # noqa: ANN401 - any JSON value
    """Return a line of a transcript for an item."""
    message = described(item)
    if message.tool_calls:
        return f"call: {message.tool_calls[0].name} {message.tool_calls[0].arguments}"
    if message.role == Role.ROLE_TOOL:
        return f"result: {message.tool_result.content}"
    return f"{ROLE_NAMES[message.role]}: {message.content}"


def text_of(content: Any) -> str:  # noqa: ANN401 - any JSON value
    """Return the text of a content: a string, a part, or a list of them."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, (list, tuple)):
        return "\n".join(filter(None, map(text_of, content)))
    if not isinstance(content, dict):
        return str(content)
    for key in ("text", "refusal", "transcript"):
        if isinstance(content.get(key), str):
            return str(content[key])
    kind = str(content.get("type") or "data").removeprefix("input_").replace("_", " ")
    name = content.get("filename") or content.get("file_id") or ""
    return f"[{kind}: {name}]" if isinstance(name, str) and name else f"[{kind}]"


def cut(text: str) -> str:
    """Return a text of at most 16 KiB as it is, and the beginning of a longer one with a note."""
    encoded = valid(text).encode()
    if len(encoded) <= MAX_TEXT_BYTES:
        return encoded.decode()
    start = encoded[: MAX_TEXT_BYTES - 64].decode(errors="ignore")
    return f"{start}\n[cut: {len(encoded)} bytes in all]"


def valid(text: str) -> str:
    """Return a text with "?" for lone surrogates, which have no UTF-8."""
    return text.encode(errors="replace").decode()
