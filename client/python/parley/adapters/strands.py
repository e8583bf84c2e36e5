# ruff: noqa: ANN401, ARG002 - the methods have the **kwargs: Any of the interface
"""Strands Agents: sessions, and the storage of bytes under keys.

:class:`ParleySessionRepository` is for RepositorySessionManager, :class:`ParleyStorage` for all
parts of Strands that take a Storage, such as SnapshotSessionManager.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import fields
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import grpc
from strands.session.session_repository import SessionRepository
from strands.storage import Storage
from strands.types.exceptions import SessionException, StorageError
from strands.types.session import Session, SessionAgent, SessionMessage, decode_bytes_values

from parley._error import Error
from parley.adapters._common import Clients, Server, conversation_id, kept, record_key
from parley.adapters._values import VALUE_BYTES, DamagedValueError, Values
from parley.v1.conversation_pb2 import Conversation, Retention
from parley.v1.conversation_service_pb2 import (
    AppendMessagesRequest,
    DeleteConversationRequest,
    ListMessagesRequest,
    LoadConversationRequest,
)
from parley.v1.message_pb2 import Message, Role, ToolResult
from parley.v1.record_pb2 import RecordWrite

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterator

    from strands.multiagent.base import MultiAgentBase

    from parley._aio_records import AsyncRecords
    from parley._records import Records
    from parley.v1.record_pb2 import Record

TEXT_BYTES = 16 << 10  # of the readable text of a message
READABLE_MESSAGES = 1000
REVISIONS = 10_000
NOTHING = 2**31 - 1  # replace_after_sequence that removes no message
COMMIT_MESSAGES = 100
MAX_PAGE = 1000

SESSION_KEY = "strands/session"
MESSAGE_FIELDS = frozenset(field.name for field in fields(SessionMessage))


class ParleySessionRepository(SessionRepository):
    """A repository of sessions. Each is the conversation with the id ``conversation_id(session)``.

    Session, agents, messages and multi-agent states are records of the conversation, and so nothing
    of them is ever dropped. Each message is also appended to the conversation, in the same commit,
    with its role and its text: for other programs and for routing. Of these texts the conversation
    keeps the newest 1000, each cut to 16 KiB.

    The methods raise SessionException

    - if what they create exists, or what they change does not: also if two processes use one
      session, so that neither overwrites a message of the other,
    - if another process has changed an agent or a multi-agent since this repository has read or
      written it,
    - if a value has more than 3 MiB as JSON.

    They raise ValueError for an id that is empty or too long, and :class:`parley.Error` if the
    server cannot be reached or refuses a call for other reasons. Any number of threads may share a
    repository.
    """

    def __init__(self, server: Server, *, retention: Retention | None = None) -> None:
        """Make a repository. It connects with the first call.

        Args:
            server: The address of the server, or a sync client that the caller closes.
            retention: The retention of new conversations. If None, they do not expire and are not
                evicted.

        """
        self._clients = Clients(server)
        if retention is None:
            retention = kept()
            retention.keep_all = False
            retention.max_messages = READABLE_MESSAGES
        self._retention = retention
        self._revisions = OrderedDict[tuple[str, str], int]()

    def close(self) -> None:
        """Close the client, if the repository was made with an address."""
        self._clients.close()

    def create_session(self, session: Session, **kwargs: Any) -> Session:
        """Create a session, and return it. SessionException if it exists."""
        conversation = conversation_id(session.session_id)
        request = AppendMessagesRequest(
            conversation_id=conversation,
            replace_after_sequence=NOTHING,
            create_with=Conversation(
                labels={"parley.adapter": "strands"}, retention=self._retention
            ),
            records=[write_of(SESSION_KEY, session.to_dict(), 0)],
        )
        with refusing(f"session {session.session_id} already exists"):
            self._clients.sync.append_messages(request)
        return session

    def read_session(self, session_id: str, **kwargs: Any) -> Session | None:
        """Return a session, or None if there is none."""
        record = self._read(session_id, SESSION_KEY)
        return None if record is None else Session.from_dict(json.loads(record.value))

    def delete_session(self, session_id: str, **kwargs: Any) -> None:
        """Delete a session with all that belongs to it. SessionException if there is none."""
        request = DeleteConversationRequest(conversation_id=conversation_id(session_id))
        with refusing(f"session {session_id} does not exist"):
            self._clients.sync.delete_conversation(request)

    def create_agent(
        self,
        session_id: str,
        session_agent: SessionAgent,
        **kwargs: Any,
    ) -> None:
        """Create an agent. SessionException if it exists or the session does not."""
        self._create(session_id, agent_key(session_agent.agent_id), session_agent.to_dict())

    def read_agent(
        self,
        session_id: str,
        agent_id: str,
        **kwargs: Any,
    ) -> SessionAgent | None:
        """Return an agent, or None if there is none."""
        value = self._read_state(session_id, agent_key(agent_id))
        return None if value is None else SessionAgent.from_dict(value)

    def update_agent(
        self,
        session_id: str,
        session_agent: SessionAgent,
        **kwargs: Any,
    ) -> None:
        """Replace an agent; its time of creation stays. SessionException if there is none."""
        key = agent_key(session_agent.agent_id)
        record = self._to_update(session_id, key)
        session_agent.created_at = json.loads(record.value)["created_at"]
        self._update(session_id, record, session_agent.to_dict())

    def create_message(
        self,
        session_id: str,
        agent_id: str,
        session_message: SessionMessage,
        **kwargs: Any,
    ) -> None:
        """Create a message of an agent. SessionException if its id exists for that agent."""
        key = message_key(agent_id, session_message.message_id)
        request = AppendMessagesRequest(
            conversation_id=conversation_id(session_id),
            must_exist=True,
            messages=[readable(agent_id, session_message)],
            records=[write_of(key, session_message.to_dict(), 0)],
        )
        with refusing(
            f"message {session_message.message_id} of agent {agent_id} already exists,"
            f" or session {session_id} does not"
        ):
            self._clients.sync.append_messages(request)

    def read_message(
        self,
        session_id: str,
        agent_id: str,
        message_id: int,
        **kwargs: Any,
    ) -> SessionMessage | None:
        """Return a message, or None if there is none."""
        record = self._read(session_id, message_key(agent_id, message_id))
        return None if record is None else message_of(record)

    def update_message(
        self,
        session_id: str,
        agent_id: str,
        session_message: SessionMessage,
        **kwargs: Any,
    ) -> None:
        """Replace a message, also its text in the conversation. SessionException if there is none.

        Its time of creation stays. After a return no reader gets the text before.
        """
        key = message_key(agent_id, session_message.message_id)
        while True:
            record = self._read(session_id, key)
            if record is None:
                raise SessionException(f"message {session_message.message_id} does not exist")
            session_message.created_at = json.loads(record.value)["created_at"]
            write = write_of(key, session_message.to_dict(), record.revision)
            request = self._replacing(session_id, agent_id, session_message)
            request.records.append(write)
            try:
                self._clients.sync.append_messages(request)
            except Error as error:
                if error.code is not grpc.StatusCode.ABORTED:
                    raise
            else:
                return

    def list_messages(
        self,
        session_id: str,
        agent_id: str,
        limit: int | None = None,
        offset: int = 0,
        **kwargs: Any,
    ) -> list[SessionMessage]:
        """Return messages of an agent in the order of their ids.

        Args:
            session_id: The session.
            agent_id: The agent; SessionException if there is none.
            limit: The maximum number; None means all.
            offset: How many to leave out at the start.
            kwargs: Ignored.

        """
        found = self._list_messages(session_id, message_prefix(agent_id), limit, offset)
        # An agent is created before its messages, so most calls need not read it.
        if not found and self._read(session_id, agent_key(agent_id)) is None:
            raise SessionException(f"agent {agent_id} in session {session_id} does not exist")
        return [message_of(record) for record in found]

    def _list_messages(
        self, session_id: str, prefix: str, limit: int | None, offset: int
    ) -> list[Record]:
        """Return the records of messages; none if the session does not exist."""
        records, after = self._records(session_id), ""
        try:
            if offset:
                pages = records.list(prefix, keys_only=True, page_size=min(offset, MAX_PAGE))
                skipped = [record.key for record in islice(pages, offset)]
                if len(skipped) < offset:
                    return []
                after = skipped[-1]
            page_size = 0 if limit is None else min(limit, MAX_PAGE)
            return list(islice(records.list(prefix, after_key=after, page_size=page_size), limit))
        except Error as error:
            if error.code is grpc.StatusCode.NOT_FOUND:
                return []
            raise

    def create_multi_agent(
        self,
        session_id: str,
        multi_agent: MultiAgentBase,
        **kwargs: Any,
    ) -> None:
        """Create the state of a multi-agent. SessionException if it exists."""
        self._create(session_id, multi_agent_key(multi_agent.id), multi_agent.serialize_state())

    def read_multi_agent(
        self,
        session_id: str,
        multi_agent_id: str,
        **kwargs: Any,
    ) -> dict[str, Any] | None:
        """Return the state of a multi-agent, or None if there is none."""
        return self._read_state(session_id, multi_agent_key(multi_agent_id))

    def update_multi_agent(
        self,
        session_id: str,
        multi_agent: MultiAgentBase,
        **kwargs: Any,
    ) -> None:
        """Replace the state of a multi-agent. SessionException if there is none."""
        record = self._to_update(session_id, multi_agent_key(multi_agent.id))
        self._update(session_id, record, multi_agent.serialize_state())

    def _records(self, session_id: str) -> Records:
        return self._clients.sync.records(conversation_id(session_id))

    def _read(self, session_id: str, key: str) -> Record | None:
        try:
            return self._records(session_id).get(key)
        except Error as error:
            if error.code is grpc.StatusCode.NOT_FOUND:
                return None
            raise

    def _read_state(self, session_id: str, key: str) -> dict[str, Any] | None:
        record = self._read(session_id, key)
        if record is None:
            return None
        self._remember(session_id, key, record.revision)
        value: dict[str, Any] = json.loads(record.value)
        return value

    def _create(self, session_id: str, key: str, value: object) -> None:
        with refusing(f"{key} already exists, or session {session_id} does not"):
            reply = self._records(session_id).write([write_of(key, value, 0)])
        self._remember(session_id, key, reply.revision)

    def _to_update(self, session_id: str, key: str) -> Record:
        record = self._read(session_id, key)
        if record is None:
            raise SessionException(f"{key} in session {session_id} does not exist")
        if self._revisions.get((session_id, key), record.revision) != record.revision:
            raise SessionException(changed(key, session_id))
        return record

    def _update(self, session_id: str, record: Record, value: object) -> None:
        with refusing(changed(record.key, session_id)):
            reply = self._records(session_id).write([write_of(record.key, value, record.revision)])
        self._remember(session_id, record.key, reply.revision)

    def _remember(self, session_id: str, key: str, revision: int) -> None:
        self._revisions[session_id, key] = revision
        self._revisions.move_to_end((session_id, key))
        if len(self._revisions) > REVISIONS:
            self._revisions.popitem(last=False)

    def _replacing(
        self, session_id: str, agent_id: str, session_message: SessionMessage
    ) -> AppendMessagesRequest:
        """Return the request that replaces the text of a message in the conversation."""
        conversation, message = conversation_id(session_id), readable(agent_id, session_message)
        request = ListMessagesRequest(conversation_id=conversation, page_size=1000)
        newer: list[Message] = []
        page = self._clients.sync.list_messages(request)
        version = page.conversation.version
        while True:
            for each in page.messages:
                if each.id == message.id:
                    last = each.sequence - 1
                    rest = [message, *reversed(newer)]
                    if len(rest) > COMMIT_MESSAGES:
                        # One commit does not take them all. The texts are copies: the oldest go.
                        rest = rest[1 - COMMIT_MESSAGES :]
                    return AppendMessagesRequest(
                        conversation_id=conversation,
                        if_version=version,
                        replace_after_sequence=last,
                        messages=rest,
                    )
                newer.append(each)
            if not page.next_page_token:  # The conversation has dropped the text.
                return AppendMessagesRequest(
                    conversation_id=conversation,
                    if_version=version,
                    replace_after_sequence=NOTHING,
                )
            request.page_token = page.next_page_token
            page = self._clients.sync.list_messages(request)


class ParleyStorage(Storage):
    """A storage of bytes under keys, in the records of the tenant or of one conversation.

    Keys are any text except the empty one. They stay as they are: "/" has no meaning, except that
    the methods of Strands use it for namespaces. A key has up to about 490 bytes of UTF-8. Values
    have any size; those above 3 MiB are written in pieces before the commit that makes them
    visible.

    The methods work in any number of event loops and raise StorageError for each failure.
    """

    def __init__(
        self,
        server: Server,
        *,
        conversation: str | None = None,
        prefix: str = "strands/",
        retention: Retention | None = None,
    ) -> None:
        """Make a storage. It connects with the first call.

        Args:
            server: The address of the server, or an asyncio client that the caller closes.
            conversation: The id of the conversation whose records to use; the first write creates
                it. If None, the records of the tenant.
            prefix: The start of the keys of all records. Storages of the same scope with different
                prefixes, of which none begins with another, share nothing.
            retention: The retention of a new conversation. If None, it keeps all, does not expire
                and is not evicted.

        """
        self._clients = Clients(server)
        self._conversation = None if conversation is None else conversation_id(conversation)
        self._prefix = prefix
        self._retention = retention or kept()
        create = None if conversation is None else self._create
        self._values = Values(self._records, prefix, create)

    async def aclose(self) -> None:
        """Close the client, if the storage was made with an address."""
        await self._clients.aclose()

    async def write(self, key: str, data: bytes) -> None:
        """Write the value of a key. It replaces the value before."""
        head = RecordWrite(key=self._name(key), value=bytes(data))
        with wrapping(f"writing {key!r} failed"):
            await self._values.put(head)

    async def read(self, key: str) -> bytes | None:
        """Return the value of a key, or None if there is none."""
        name = self._name(key)
        with wrapping(f"reading {key!r} failed"):
            return await self._values.get(name)

    async def delete(self, key: str) -> None:
        """Delete the value of a key, if there is one."""
        name = self._name(key)
        with wrapping(f"deleting {key!r} failed"):
            await self._values.delete(name)

    async def list(self, query: str = "") -> builtins.list[str]:
        """Return the keys that begin with a text, sorted; all keys if it is empty."""
        start = f"{self._prefix}value/"
        with wrapping(f"listing {query!r} failed"):
            try:
                records = self._records().list(start + encode(query), keys_only=True)
                return sorted([unquote(r.key[len(start) :]) async for r in records])
            except Error as error:
                if error.code is grpc.StatusCode.NOT_FOUND:
                    return []
                raise

    def _records(self) -> AsyncRecords:
        if self._conversation is None:
            return self._clients.aio.tenant_records()
        return self._clients.aio.records(self._conversation)

    def _name(self, key: str) -> str:
        if not key:
            raise StorageError("a storage key must not be empty")
        return f"{self._prefix}value/{encode(key)}"

    async def _create(self) -> None:
        await self._clients.aio.load_conversation(
            LoadConversationRequest(
                conversation_id=self._conversation or "",
                message_limit=0,
                create_with=Conversation(
                    labels={"parley.adapter": "strands"}, retention=self._retention
                ),
            )
        )


def agent_key(agent_id: str) -> str:
    """Return the key of an agent."""
    return record_key("strands", "agent", agent_id)


def multi_agent_key(multi_agent_id: str) -> str:
    """Return the key of the state of a multi-agent."""
    return record_key("strands", "multi_agent", multi_agent_id)


def message_prefix(agent_id: str) -> str:
    """Return the start of the keys of the messages of an agent."""
    return record_key("strands", "message", agent_id, "")


def message_key(agent_id: str, message_id: int) -> str:
    """Return the key of a message. The keys have the order of the ids."""
    if not isinstance(message_id, int) or not 0 <= message_id < 10**12:
        raise ValueError(f"the message id {message_id!r} is not an integer from 0 to 10**12 - 1")
    return record_key("strands", "message", agent_id, f"{message_id:012}")


def message_of(record: Record) -> SessionMessage:
    """Return what ``SessionMessage.from_dict`` returns, which reads signatures for each value."""
    value: dict[str, Any] = json.loads(record.value)
    known = {name: value[name] for name in value if name in MESSAGE_FIELDS}
    return SessionMessage(**decode_bytes_values(known))


def write_of(key: str, value: object, if_revision: int) -> RecordWrite:
    """Return the write of a value as JSON.

    Raises:
        SessionException: The value is too large or not JSON.

    """
    try:
        encoded = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise SessionException(f"the value of {key} is not JSON: {error}") from error
    if len(encoded) > VALUE_BYTES:
        raise SessionException(f"{key} has {len(encoded)} bytes as JSON, limit {VALUE_BYTES}")
    return RecordWrite(
        key=key, value=encoded, media_type="application/json", if_revision=if_revision
    )


def readable(agent_id: str, session_message: SessionMessage) -> Message:
    """Return the copy of a message for other programs: its role and its text."""
    message = session_message.to_message()
    texts: list[str] = []
    results: list[str] = []
    for block in message["content"]:
        if "text" in block:
            texts.append(block["text"])
        elif "toolUse" in block:
            texts.append(f"[calls {block['toolUse']['name']}]")
        elif "toolResult" in block:
            results.append(block["toolResult"]["toolUseId"])
            texts += [part["text"] for part in block["toolResult"]["content"] if "text" in part]
    text = "\n".join(texts).encode(errors="replace")[:TEXT_BYTES].decode(errors="ignore")
    copy = Message(id=message_id_of(agent_id, session_message.message_id))
    if message["role"] == "assistant":
        copy.role, copy.content = Role.ROLE_ASSISTANT, text
        if len(agent_id.encode()) <= 128:
            copy.agent = agent_id
    elif results:
        copy.role = Role.ROLE_TOOL
        copy.tool_result.CopyFrom(ToolResult(call_id=results[0][:64] or "none", content=text))
    else:
        copy.role, copy.content = Role.ROLE_USER, text
    return copy


def message_id_of(agent_id: str, message_id: int) -> str:
    """Return the id of the copy of a message, at most 256 bytes."""
    return conversation_id(agent_id, str(message_id))


def changed(key: str, session_id: str) -> str:
    """Return what to say about a value that another process has changed."""
    return f"{key} in session {session_id} was changed by another process; read it again"


def encode(key: str) -> str:
    """Return a key without the characters that keys of records must not have."""
    return re.sub("[%\x00-\x1f\x7f-\x9f\u2028\u2029]", lambda match: quote(match[0]), key)


@contextmanager
def refusing(text: str) -> Iterator[None]:
    """Raise SessionException for a conflict, or for something that does not exist."""
    try:
        yield
    except Error as error:
        if error.code in (grpc.StatusCode.ABORTED, grpc.StatusCode.NOT_FOUND):
            raise SessionException(text) from error
        raise


@contextmanager
def wrapping(text: str) -> Iterator[None]:
    """Raise StorageError for each error of a call, and for a value that is damaged."""
    try:
        yield
    except (Error, DamagedValueError) as error:
        raise StorageError(f"{text}: {error}") from error
