"""LlamaIndex: a chat store whose messages are those of conversations.

Each key of the store is a conversation. Start at :class:`ParleyChatStore`.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, NamedTuple

import grpc
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.storage.chat_store.base import BaseChatStore

from parley._error import Error
from parley.adapters._common import Clients, Server, conversation_id, kept, removed
from parley.adapters._steps import Steps, arun, run
from parley.v1.conversation_pb2 import Conversation, Retention
from parley.v1.conversation_service_pb2 import (
    AppendMessagesRequest,
    AppendMessagesResponse,
    DeleteConversationRequest,
    ListConversationsRequest,
    ListConversationsResponse,
    ListMessagesRequest,
    ListMessagesResponse,
    ListOrder,
)
from parley.v1.message_pb2 import Message, Native, Role, ToolResult
from parley.v1.record_pb2 import RecordWrite
from parley.v1.record_service_pb2 import (
    GetRecordsRequest,
    GetRecordsResponse,
    WriteRecordsRequest,
    WriteRecordsResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ONE = "llama_index.chat_message"  # the native value is one line: the JSON of a chat message
SEVERAL = "llama_index.chat_messages"  # several lines
RECORDS = "llama_index.records"  # keys of records, one a line; their values joined are the lines
RECORD_PREFIX = "llama_index/"

LABELS = {"parley.adapter": "llama_index"}
KEY_LABEL = "llama_index.key"
MAX_KEY_BYTES = 1024  # of the value of a label

INLINE_BYTES = 64 << 10  # larger lines are records, so that a message stays below 256 KiB
TEXT_BYTES = 4 << 10  # of the readable text of a message whose lines are elsewhere
PIECE_BYTES = 1 << 20  # of a record
COMMIT_BYTES = 2 << 20  # of the records in one call, which has at most 4 MiB
COMMIT_MESSAGES = COMMIT_WRITES = 100
NEWEST = 50  # messages that stay single when older ones are joined
ATTEMPTS = 100  # to read or change a conversation that others change at the same time

ROLES = {
    MessageRole.SYSTEM: Role.ROLE_SYSTEM,
    MessageRole.DEVELOPER: Role.ROLE_SYSTEM,
    MessageRole.USER: Role.ROLE_USER,
    MessageRole.ASSISTANT: Role.ROLE_ASSISTANT,
    MessageRole.CHATBOT: Role.ROLE_ASSISTANT,
    MessageRole.MODEL: Role.ROLE_ASSISTANT,
    MessageRole.FUNCTION: Role.ROLE_TOOL,
    MessageRole.TOOL: Role.ROLE_TOOL,
}
CHAT_ROLES = {
    Role.ROLE_SYSTEM: MessageRole.SYSTEM,
    Role.ROLE_USER: MessageRole.USER,
    Role.ROLE_ASSISTANT: MessageRole.ASSISTANT,
    Role.ROLE_TOOL: MessageRole.TOOL,
}


class Entry(NamedTuple):
    """A stored message: its sequence, its chat messages as JSON, and its records."""

    sequence: int
    lines: list[bytes]
    records: list[str]


class View(NamedTuple):
    """A conversation at one version; version 0 means that it does not exist."""

    version: int
    entries: list[Entry]

    @property
    def lines(self) -> list[bytes]:
        """All chat messages as JSON."""
        return [line for entry in self.entries for line in entry.lines]


class ParleyChatStore(BaseChatStore):
    """A chat store in Parley. Each key is a conversation with the id ``conversation_id(key)``.

    The async methods make asyncio calls and work in any number of event loops. Each change is one
    commit: readers and crashes see all of it or nothing. A change that depends on the stored
    messages is repeated if another process has changed them in between, so nothing is lost. After
    100 times it raises :class:`parley.Error`, ABORTED, and has changed nothing.

    All methods raise :class:`parley.Error` if a call fails. ValueError means that a key is empty or
    has more than 1024 bytes of UTF-8, or that a message cannot be JSON.
    """

    _clients: Clients = PrivateAttr()
    _retention: Retention = PrivateAttr()

    def __init__(self, server: Server, *, retention: Retention | None = None) -> None:
        """Make a store. It connects with the first call.

        Args:
            server: The address of the server, or a client that the caller closes.
            retention: The retention of new conversations. If None, they keep all messages, do not
                expire and are not evicted.

        """
        super().__init__()
        self._clients = Clients(server)
        self._retention = retention or kept()

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the class."""
        return "ParleyChatStore"

    def close(self) -> None:
        """Close the sync client, if the store was made with an address."""
        self._clients.close()

    async def aclose(self) -> None:
        """Close the clients, if the store was made with an address."""
        await self._clients.aclose()

    def set_messages(self, key: str, messages: list[ChatMessage]) -> None:
        """Replace all messages of a key. The key exists then, also without messages."""
        run(self._clients.sync, self._set(key, messages))

    async def aset_messages(self, key: str, messages: list[ChatMessage]) -> None:
        """Do what :meth:`set_messages` does."""
        await arun(self._clients.aio, self._set(key, messages))

    def get_messages(self, key: str) -> list[ChatMessage]:
        """Return all messages of a key, oldest first; none if there is no such key."""
        return run(self._clients.sync, self._get(key))

    async def aget_messages(self, key: str) -> list[ChatMessage]:
        """Do what :meth:`get_messages` does."""
        return await arun(self._clients.aio, self._get(key))

    def add_message(self, key: str, message: ChatMessage, idx: int | None = None) -> None:
        """Add a message: at the end if idx is None, otherwise as ``list.insert`` does."""
        run(self._clients.sync, self._add(key, message, idx))

    async def async_add_message(
        self, key: str, message: ChatMessage, idx: int | None = None
    ) -> None:
        """Do what :meth:`add_message` does."""
        await arun(self._clients.aio, self._add(key, message, idx))

    def delete_messages(self, key: str) -> list[ChatMessage] | None:
        """Delete a key, and return its messages; None if there is no such key."""
        return run(self._clients.sync, self._delete(key))

    async def adelete_messages(self, key: str) -> list[ChatMessage] | None:
        """Do what :meth:`delete_messages` does."""
        return await arun(self._clients.aio, self._delete(key))

    def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Delete one message and return it; None if there is none.

        A negative idx counts from the end.
        """
        return run(self._clients.sync, self._delete_one(key, idx))

    async def adelete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Do what :meth:`delete_message` does."""
        return await arun(self._clients.aio, self._delete_one(key, idx))

    def delete_last_message(self, key: str) -> ChatMessage | None:
        """Delete the last message and return it; None if there is none."""
        return run(self._clients.sync, self._delete_one(key, -1))

    async def adelete_last_message(self, key: str) -> ChatMessage | None:
        """Do what :meth:`delete_last_message` does."""
        return await arun(self._clients.aio, self._delete_one(key, -1))

    def get_keys(self) -> list[str]:
        """Return all keys that this adapter has written, the oldest first."""
        return run(self._clients.sync, list_keys())

    async def aget_keys(self) -> list[str]:
        """Do what :meth:`get_keys` does."""
        return await arun(self._clients.aio, list_keys())

    def _set(self, key: str, messages: list[ChatMessage]) -> Steps[None]:
        lines = [encode(message) for message in messages]
        yield from self._change(key, lambda _: lines)

    def _get(self, key: str) -> Steps[list[ChatMessage]]:
        view = yield from read(conversation_id(key))
        return [decode(line) for line in view.lines]

    def _add(self, key: str, message: ChatMessage, idx: int | None) -> Steps[None]:
        line = encode(message)
        if idx is not None:
            where = idx
            yield from self._change(key, lambda old: [*old[:where], line, *old[where:]])
            return
        stored, records = store([line])
        if sum(len(record.value) for record in records) > COMMIT_BYTES:
            yield from self._change(key, lambda old: [*old, line])
            return
        request = self._append_request(key)
        request.messages.append(stored)
        request.records.extend(records)
        try:
            yield request
        except Error as error:
            if error.reason != "CONVERSATION_FULL":
                raise
            yield from self._change(key, lambda old: [*old, line])

    def _delete(self, key: str) -> Steps[list[ChatMessage] | None]:
        conversation = conversation_id(key)
        for _ in range(ATTEMPTS):
            view = yield from read(conversation)
            if not view.version:
                return None
            try:
                yield DeleteConversationRequest(
                    conversation_id=conversation, if_version=view.version
                )
            except Error as error:
                if not was_changed(error):
                    raise
            else:
                return [decode(line) for line in view.lines]
        raise busy(conversation)

    def _delete_one(self, key: str, idx: int) -> Steps[ChatMessage | None]:
        deleted: bytes | None = None

        def without(old: list[bytes]) -> list[bytes] | None:
            nonlocal deleted
            deleted = None
            if not -len(old) <= idx < len(old):
                return None
            new = list(old)
            deleted = new.pop(idx)
            return new

        yield from self._change(key, without)
        return None if deleted is None else decode(deleted)

    def _change(self, key: str, change: Callable[[list[bytes]], list[bytes] | None]) -> Steps[None]:
        """Replace the messages of a key by those that a function makes of them.

        The function returns None to change nothing. It is called again if another process has
        changed the conversation.
        """
        join, conversation = False, conversation_id(key)
        for _ in range(ATTEMPTS):
            view = yield from read(conversation)
            new = change(view.lines)
            if new is None:
                return
            try:
                yield from self._replace(key, view, new, join=join)
            except Error as error:
                if error.reason == "CONVERSATION_FULL" and not join:
                    join = True
                elif not was_changed(error):
                    raise
            else:
                return
        raise busy(conversation)

    def _replace(self, key: str, view: View, new: list[bytes], *, join: bool) -> Steps[None]:
        """Replace the messages of a view.

        With join, those that do not change are written again, too: as records, which have more
        space than the messages of a conversation.
        """
        conversation, version = conversation_id(key), view.version
        stays = [] if join else common(view.entries, new)
        rest = new[sum(len(entry.lines) for entry in stays) :]
        messages, records = store_all(rest, join=join)
        old = {name for entry in view.entries for name in entry.records}
        used = {name for entry in stays for name in entry.records}
        used.update(record.key for record in records)
        records = [record for record in records if record.key not in old]
        unused = [RecordWrite(key=name, delete=True) for name in sorted(old - used)]
        if sum(len(record.value) for record in records) > COMMIT_BYTES:
            # Nothing refers to these records before the messages are there.
            if not version:
                request = self._append_request(key)
                request.replace_after_sequence = request.if_version = 0
                created: AppendMessagesResponse = yield request
                version = created.conversation.version
            version = yield from write(conversation, records, version)
            records = []
        request = self._append_request(key)
        request.if_version = version
        request.replace_after_sequence = stays[-1].sequence if stays else 0
        request.messages.extend(messages)
        space = COMMIT_WRITES - len(records)
        request.records.extend([*records, *unused[:space]])
        reply: AppendMessagesResponse = yield request
        try:
            yield from write(conversation, unused[space:], reply.conversation.version)
        except Error as error:
            if not was_changed(error):
                raise
            # The messages are right. The records stay until the key is deleted.

    def _append_request(self, key: str) -> AppendMessagesRequest:
        conversation = conversation_id(key)
        if len(key.encode()) > MAX_KEY_BYTES:
            raise ValueError(f"the key {key[:40]!r}... has more than {MAX_KEY_BYTES} bytes")
        return AppendMessagesRequest(
            conversation_id=conversation,
            create_with=Conversation(labels={**LABELS, KEY_LABEL: key}, retention=self._retention),
        )


def list_keys() -> Steps[list[str]]:
    """Return the keys of all conversations of this adapter, the oldest first."""
    keys: list[str] = []
    request = ListConversationsRequest(
        page_size=1000, labels=LABELS, order=ListOrder.LIST_ORDER_CREATE_TIME_DESC
    )
    while True:
        page: ListConversationsResponse = yield request
        keys += [entry.conversation.labels[KEY_LABEL] for entry in page.conversations]
        if not page.next_page_token:
            return keys[::-1]
        request.page_token = page.next_page_token


def read(conversation: str) -> Steps[View]:
    """Return a conversation as it is at one version."""
    for _ in range(ATTEMPTS):
        try:
            view = yield from read_once(conversation)
        except Error as error:
            if error.code is not grpc.StatusCode.NOT_FOUND:
                raise
            return View(0, [])
        if view:
            return view
    raise busy(conversation)


def read_once(conversation: str) -> Steps[View | None]:
    """Return a conversation, or None if messages were removed between the pages."""
    request = ListMessagesRequest(conversation_id=conversation, page_size=1000, ascending=True)
    page: ListMessagesResponse = yield request
    first, messages = page.conversation, list(page.messages)
    while page.next_page_token:
        request.page_token = page.next_page_token
        page = yield request
        if removed(page.conversation) != removed(first):
            return None
        messages += page.messages
    # Messages that were appended between the pages are on the last ones.
    version = page.conversation.version
    keys = list(
        dict.fromkeys(
            key
            for message in messages
            if message.native.type == RECORDS
            for key in message.native.value.decode().splitlines()
        )
    )
    values: dict[str, bytes] = {}
    while missing := [key for key in keys if key not in values]:
        reply: GetRecordsResponse = yield GetRecordsRequest(
            conversation_id=conversation, keys=missing[:100]
        )
        if not reply.records:
            return None
        values.update((record.key, record.value) for record in reply.records)
    return View(version, [load(message, values) for message in messages])


def write(conversation: str, records: Sequence[RecordWrite], version: int) -> Steps[int]:
    """Write records in as many commits as needed, and return the version after the last."""
    remaining = list(records)
    while remaining:
        count, size = 0, 0
        while count < min(len(remaining), COMMIT_WRITES) and size < COMMIT_BYTES:
            size += len(remaining[count].value)
            count += 1
        reply: WriteRecordsResponse = yield WriteRecordsRequest(
            conversation_id=conversation, writes=remaining[:count], if_version=version
        )
        version, remaining = reply.conversation.version, remaining[count:]
    return version


def busy(conversation: str) -> Error:
    """Return the error for a conversation that others change all the time."""
    text = f"conversation {conversation!r} was changed by others in each of {ATTEMPTS} attempts"
    return Error(grpc.StatusCode.ABORTED, text)


def was_changed(error: Error) -> bool:
    """Report whether another process has changed the conversation since it was read."""
    return error.reason == "VERSION_MISMATCH" or error.code is grpc.StatusCode.NOT_FOUND


def common(entries: Sequence[Entry], lines: Sequence[bytes]) -> list[Entry]:
    """Return the entries at the start whose messages are the first of these lines."""
    same: list[Entry] = []
    start = 0
    for entry in entries:
        end = start + len(entry.lines)
        if list(lines[start:end]) != entry.lines:
            break
        same.append(entry)
        start = end
    return same


def store_all(lines: Sequence[bytes], *, join: bool) -> tuple[list[Message], list[RecordWrite]]:
    """Return the messages for these lines, and their records.

    One commit takes 100 messages and about 2 MiB of them. If there are more, or with join, the
    first message contains all but the newest.
    """
    single = len(lines)
    if join or single > COMMIT_MESSAGES or size_of(lines) > PIECE_BYTES:
        single, size = 0, 0
        while single < min(NEWEST, len(lines)) and size < INLINE_BYTES:
            size += len(lines[-1 - single])
            single += 1
    start = len(lines) - single
    groups = [list(lines[:start])] if start else []
    groups += [[line] for line in lines[start:]]
    messages: list[Message] = []
    records: dict[str, RecordWrite] = {}
    for group in groups:
        message, more = store(group)
        messages.append(message)
        records.update((record.key, record) for record in more)
    return messages, list(records.values())


def size_of(lines: Sequence[bytes]) -> int:
    """Return how many bytes of these lines messages contain, and not records."""
    return sum(len(line) for line in lines if len(line) <= INLINE_BYTES)


def store(lines: list[bytes]) -> tuple[Message, list[RecordWrite]]:
    """Return the message for one or more lines, and the records that it needs."""
    value = b"\n".join(lines)
    records: list[RecordWrite] = []
    native = Native(type=ONE if len(lines) == 1 else SEVERAL, value=value)
    if len(value) > INLINE_BYTES:
        for start in range(0, len(value), PIECE_BYTES):
            piece = value[start : start + PIECE_BYTES]
            # The same bytes have the same key: a message that is written again keeps its records.
            key = RECORD_PREFIX + hashlib.sha256(piece).hexdigest()
            records.append(RecordWrite(key=key, value=piece, media_type="application/jsonl"))
        native = Native(type=RECORDS, value="\n".join(r.key for r in records).encode())
        # The same piece may occur twice in the value, but only once in a commit.
        records = list({record.key: record for record in records}.values())
    if len(lines) == 1:
        message = readable(decode(lines[0]))
    else:
        newest = [decode(line) for line in lines[-NEWEST:]]
        text = "\n".join(f"{each.role.value}: {each.content or ''}" for each in newest)
        message = Message(role=Role.ROLE_USER, content=text)
    if native.type != ONE:
        message.content = cut(message.content)
        if message.HasField("tool_result"):
            message.tool_result.content = cut(message.tool_result.content)
    message.native.CopyFrom(native)
    return message, records


def readable(chat: ChatMessage) -> Message:
    """Return a message with the role and the text, for readers that are not LlamaIndex.

    Tool calls are only in the native form: the API would not let a call go without its result,
    which a chat store may delete alone.
    """
    role = ROLES[chat.role]
    text = chat.content or ""
    if role != Role.ROLE_TOOL:
        return Message(role=role, content=text)
    call = str(chat.additional_kwargs.get("tool_call_id") or "unknown")
    if len(call.encode()) > 256:
        call = hashlib.sha256(call.encode()).hexdigest()
    return Message(role=role, tool_result=ToolResult(call_id=call, content=text))


def cut(text: str) -> str:
    """Return the start of a text."""
    return text.encode()[:TEXT_BYTES].decode(errors="ignore")


def load(message: Message, values: dict[str, bytes]) -> Entry:
    """Return the entry of a message. One that another program wrote has its role and text."""
    kind, value = message.native.type, message.native.value
    if kind == RECORDS:
        keys = value.decode().splitlines()
        lines = b"".join(values[key] for key in keys).split(b"\n")
        return Entry(message.sequence, lines, keys)
    if kind in (ONE, SEVERAL):
        return Entry(message.sequence, value.split(b"\n"), [])
    text = message.tool_result.content if message.role == Role.ROLE_TOOL else message.content
    chat = ChatMessage(role=CHAT_ROLES[message.role], content=text)
    if message.role == Role.ROLE_TOOL:
        chat.additional_kwargs["tool_call_id"] = message.tool_result.call_id
    return Entry(message.sequence, [encode(chat)], [])


def encode(message: ChatMessage) -> bytes:
    """Return the JSON of a chat message, in one line.

    Raises:
        ValueError: A value in additional_kwargs is not JSON.

    """
    try:
        value = message.model_dump(mode="json")
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise ValueError(f"the chat message is not JSON: {error}") from error


def decode(line: bytes) -> ChatMessage:
    """Return the chat message of its JSON."""
    return ChatMessage.model_validate(json.loads(line))
