"""Messages of the framework as messages of Parley, and back.

A message has the exact JSON of one message of the framework in ``native``, and beside it the role
and the text that people, routing summaries and other agents read.

- A batch of more than 100 messages is still one commit: the newest 50 have a message each, and
  one message before them has all others.
- JSON of more than 16 KiB is in records of the conversation.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

from agent_framework import Content, Message

from parley.adapters._common import conversation_id
from parley.v1.message_pb2 import Message as Stored
from parley.v1.message_pb2 import Native, Role, ToolResult
from parley.v1.record_pb2 import RecordWrite

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ONE = "agent_framework.message"  # the native value is one line: the JSON of a message
SEVERAL = "agent_framework.messages"  # several lines
RECORDS = "agent_framework.records"  # keys of records, one a line; their values joined are lines
RECORD_PREFIX = "agent_framework/message/"

COMMIT_MESSAGES = 100
NEWEST = 50  # messages that stay single in a larger batch
# 100 messages with so much JSON and text fit in a request, which has at most 4 MiB.
INLINE_BYTES = 16 << 10
TEXT_BYTES = 16 << 10
PIECE_BYTES = 2 << 20  # of a record
AGENT_BYTES = 128

ROLES = {
    "system": Role.ROLE_SYSTEM,
    "developer": Role.ROLE_SYSTEM,
    "assistant": Role.ROLE_ASSISTANT,
}
ROLE_NAMES = {
    Role.ROLE_SYSTEM: "system",
    Role.ROLE_USER: "user",
    Role.ROLE_ASSISTANT: "assistant",
    Role.ROLE_TOOL: "tool",
}


def encode(messages: Sequence[Message]) -> tuple[list[Stored], list[RecordWrite]]:
    """Return at most 100 messages for these, in their order, and the records that they need."""
    single = len(messages) if len(messages) <= COMMIT_MESSAGES else NEWEST
    start = len(messages) - single
    groups = [messages[:start]] if start else []
    groups += [[message] for message in messages[start:]]
    stored: list[Stored] = []
    records: list[RecordWrite] = []
    for group in groups:
        value = b"\n".join(map(to_json, group))
        native = Native(type=ONE if len(group) == 1 else SEVERAL, value=value)
        if len(value) > INLINE_BYTES:
            name, keys = uuid.uuid4(), list[str]()
            for at in range(0, len(value), PIECE_BYTES):
                keys.append(f"{RECORD_PREFIX}{name}/{len(keys):06}")
                records.append(RecordWrite(key=keys[-1], value=value[at : at + PIECE_BYTES]))
            native = Native(type=RECORDS, value="\n".join(keys).encode())
        message = readable(group[0]) if len(group) == 1 else transcript(group)
        message.native.CopyFrom(native)
        stored.append(message)
    return stored, records


def record_keys(stored: Stored) -> list[str]:
    """Return the keys of the records of a message."""
    native = stored.native
    return native.value.decode().splitlines() if native.type == RECORDS else []


def decode(stored: Stored, values: Mapping[str, bytes]) -> list[Message]:
    """Return the messages of the framework in a message. The mapping has the values of records.

    A message that another program wrote has its role, text, tool calls and tool result.
    """
    value = stored.native.value
    if stored.native.type == RECORDS:
        value = b"".join(values[key] for key in record_keys(stored))
    elif stored.native.type not in (ONE, SEVERAL):
        return [foreign(stored)]
    # json.dumps escapes line breaks. splitlines of a str would also split at U+2028.
    return [Message.from_dict(json.loads(line)) for line in value.split(b"\n")]


def to_json(message: Message) -> bytes:
    """Return the JSON of a message in one line. to_dict leaves out what is not JSON."""
    text = json.dumps(message.to_dict(), ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="surrogatepass")  # json.loads reads them.


def readable(message: Message) -> Stored:
    """Return a message with the role and the text, for readers that are not the framework.

    Tool calls are only named in the text: the API would not let a call go without its result.
    """
    text = cut("\n".join(filter(None, map(text_of, message.contents))))
    if message.role == "tool":
        calls = [c.call_id for c in message.contents if c.type == "function_result" and c.call_id]
        call = conversation_id(calls[0]) if calls else "unknown"
        return Stored(role=Role.ROLE_TOOL, tool_result=ToolResult(call_id=call, content=text))
    stored = Stored(role=ROLES.get(message.role, Role.ROLE_USER), content=text)
    author = (message.author_name or "").encode(errors="replace").decode()
    if message.role == "assistant" and len(author.encode()) <= AGENT_BYTES:
        stored.agent = author
    return stored


def transcript(messages: Sequence[Message]) -> Stored:
    """Return a message with the texts of several ones, the newest if they are too long."""
    lines = (f"{m.role}: {' '.join(filter(None, map(text_of, m.contents)))}" for m in messages)
    text = "\n".join(lines).encode(errors="replace")[-TEXT_BYTES:].decode(errors="ignore")
    return Stored(role=Role.ROLE_USER, content=text)


def text_of(content: Content) -> str:
    """Return a text for a content; empty if people need not see it."""
    if content.type == "text_reasoning":
        return ""
    if content.type == "function_call":
        return f"[calls {content.name}]"
    if content.type == "function_result":
        return str(content.result or "")
    text = content.text or content.message
    return text or f"[{content.media_type or content.type}]"


def cut(text: str) -> str:
    """Return the start of a text, up to 16 KiB."""
    return text.encode(errors="replace")[:TEXT_BYTES].decode(errors="ignore")


def foreign(stored: Stored) -> Message:
    """Return the message for one that another program wrote."""
    contents: list[Content] = []
    if stored.content:
        contents.append(Content.from_text(stored.content))
    for call in stored.tool_calls:
        contents.append(Content.from_function_call(call.id, call.name, arguments=call.arguments))
    if stored.HasField("tool_result"):
        result = stored.tool_result
        contents.append(Content.from_function_result(result.call_id, result=result.content))
    return Message(ROLE_NAMES[stored.role], contents, author_name=stored.agent or None)
