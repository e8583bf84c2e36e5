"""The history of messages of a session."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import grpc
from agent_framework import HistoryProvider

# The framework's providers for Redis and Cosmos DB use it, too. No public module has it.
from agent_framework._sessions import filter_new_messages

from parley._error import Error
from parley.adapters._common import (
    MAX_REQUEST_BYTES,
    MAX_WRITES,
    Clients,
    batches,
    conversation_id,
    kept,
    removed,
)
from parley.adapters._values import is_refused
from parley.adapters.agent_framework._messages import decode, encode, record_keys
from parley.v1.conversation_pb2 import Conversation, Retention
from parley.v1.conversation_service_pb2 import (
    AppendMessagesRequest,
    DeleteConversationRequest,
    GetConversationRequest,
    ListMessagesRequest,
)
from parley.v1.record_pb2 import RecordWrite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_framework import Message

    from parley.adapters._common import Server
    from parley.v1.conversation_service_pb2 import AppendMessagesResponse
    from parley.v1.message_pb2 import Message as Stored

PAGE_SIZE = 1000


class History(NamedTuple):
    """The newest messages of a conversation; at version 0 it does not exist."""

    version: int
    messages: list[Message]


class ParleyHistoryProvider(HistoryProvider):
    """A provider of histories, instead of FileHistoryProvider. Each is a conversation.

    Its id is ``conversation_id(session_id)``, or ``conversation_id(scope, session_id)`` with a
    scope. Without a session id it is that of the session "default", as in FileHistoryProvider.

    The messages of a run are appended in one commit. Messages that the history ends with are not
    stored again, by the same rule as in the framework's own providers. If several processes use one
    session, nothing is lost.

    The methods raise :class:`parley.Error` if a call fails, and ValueError if another program has
    deleted a record of a message. They work in any number of event loops.
    """

    DEFAULT_SOURCE_ID: ClassVar[str] = "parley_history"
    DEFAULT_SESSION_ID: ClassVar[str] = "default"

    def __init__(
        self,
        server: Server,
        *,
        scope: str = "",
        source_id: str = DEFAULT_SOURCE_ID,
        load_messages: bool = True,
        store_inputs: bool = True,
        store_context_messages: bool = False,
        store_context_from: set[str] | None = None,
        store_outputs: bool = True,
        skip_excluded: bool = False,
        retention: Retention | None = None,
    ) -> None:
        """Make a provider. It connects with the first call.

        Args:
            server: The address of the server, or an asyncio client that the caller closes.
            scope: The start of the ids of conversations, such as a tenant, or "audit" for a second
                provider of the same sessions. If empty, there is none.
            source_id: The id of the provider in an agent.
            load_messages: Whether a run begins with the stored messages.
            store_inputs: Whether the input of a run is stored.
            store_context_messages: Whether messages of other context providers are stored.
            store_context_from: If set, the source ids of those whose messages are stored.
            store_outputs: Whether the output of a run is stored.
            skip_excluded: Whether get_messages leaves out messages with a true value for
                "_excluded" in additional_properties, which compaction sets.
            retention: The retention of new conversations. If None, they keep all messages, do not
                expire and are not evicted.

        """
        super().__init__(
            source_id,
            load_messages=load_messages,
            store_inputs=store_inputs,
            store_context_messages=store_context_messages,
            store_context_from=store_context_from,
            store_outputs=store_outputs,
        )
        self.skip_excluded = skip_excluded
        self._clients = Clients(server)
        self._scope = scope
        self._new = Conversation(retention=kept() if retention is None else retention)

    async def aclose(self) -> None:
        """Close the client, if the provider was made with an address."""
        await self._clients.aclose()

    async def get_messages(
        self,
        session_id: str | None,
        *,
        state: dict[str, Any] | None = None,  # noqa: ARG002 - the interface has it
        limit: int | None = None,
        **kwargs: Any,  # noqa: ANN401, ARG002
    ) -> list[Message]:
        """Return the messages of a session, oldest first.

        Args:
            session_id: The session. None or an empty id is the session "default".
            state: Ignored.
            limit: How many of the newest messages to return; None means all. Excluded messages are
                left out after that.
            kwargs: Ignored.

        """
        if limit is not None and limit <= 0:
            return []
        messages = (await self._read(self._conversation(session_id), limit)).messages
        if limit is not None:
            messages = messages[-limit:]
        if self.skip_excluded:
            messages = [m for m in messages if not m.additional_properties.get("_excluded", False)]
        return messages

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,  # noqa: ARG002 - the interface has it
        **kwargs: Any,  # noqa: ANN401, ARG002
    ) -> None:
        """Append those messages that the history does not end with, in one commit.

        Raises:
            parley.Error: With the reason CONVERSATION_FULL if the conversation is as large as the
                server allows, RECORDS_FULL for its records, and STORE_FULL if there are too many
                conversations.

        """
        conversation = self._conversation(session_id)
        while messages:
            # The rule compares no more than so many stored messages.
            history = await self._read(conversation, len(messages))
            new = filter_new_messages(history.messages, messages)
            if not new or await self._append(conversation, new, history.version):
                return

    async def clear(self, session_id: str | None) -> None:
        """Delete the conversation of a session, if there is one, with its messages and records."""
        request = DeleteConversationRequest(conversation_id=self._conversation(session_id))
        try:
            await self._clients.aio.delete_conversation(request)
        except Error as error:
            if not is_not_found(error):
                raise

    def _conversation(self, session_id: str | None) -> str:
        session = session_id or self.DEFAULT_SESSION_ID
        return conversation_id(self._scope, session) if self._scope else conversation_id(session)

    async def _read(self, conversation: str, count: int | None) -> History:
        """Return at least so many of the newest messages, or all, as they were at one instant."""
        while True:
            try:
                history = await self._try_read(conversation, count)
            except Error as error:
                if not is_not_found(error):
                    raise
                return History(0, [])
            if history is not None:
                return history

    async def _try_read(self, conversation: str, count: int | None) -> History | None:
        """Return None if messages were removed during the calls."""
        request = ListMessagesRequest(
            conversation_id=conversation, page_size=min(count or PAGE_SIZE, PAGE_SIZE)
        )
        page = await self._clients.aio.list_messages(request)
        first, stored = page.conversation, list(page.messages)
        # Each of them has at least one message of the framework.
        while page.next_page_token and (count is None or len(stored) < count):
            request.page_token = page.next_page_token
            page = await self._clients.aio.list_messages(request)
            if removed(page.conversation) != removed(first):
                return None
            stored += page.messages
        stored.reverse()
        values = await self._values(conversation, stored)
        missing = [key for each in stored for key in record_keys(each) if key not in values]
        if missing:
            now = await self._clients.aio.get_conversation(
                GetConversationRequest(conversation_id=conversation)
            )
            if removed(now.conversation) == removed(first):
                raise ValueError(f"the record {missing[0]!r} of a message was deleted")
            return None
        return History(first.version, [m for each in stored for m in decode(each, values)])

    async def _values(self, conversation: str, stored: Sequence[Stored]) -> dict[str, bytes]:
        keys = [key for each in stored for key in record_keys(each)]
        records = self._clients.aio.records(conversation).get_all(keys)
        return {record.key: record.value async for record in records}

    async def _append(self, conversation: str, messages: Sequence[Message], version: int) -> bool:
        """Append messages in one commit; return False, and append nothing, at another version."""
        stored, records = encode(messages)
        request = AppendMessagesRequest(
            conversation_id=conversation,
            messages=stored,
            if_version=version,
            create_with=self._new,
        )
        size = request.ByteSize() + sum(record.ByteSize() for record in records)
        separate: Sequence[RecordWrite] = ()
        if size <= MAX_REQUEST_BYTES and len(records) <= MAX_WRITES:
            request.records.extend(records)
        else:
            separate = records
        is_sent = False
        try:
            if separate:
                # No reader knows these records before the messages are there.
                request.if_version = await self._write(conversation, separate, version)
            is_sent = True
            await self._send(request)
        except (Exception, asyncio.CancelledError) as error:
            if not is_sent or is_refused(error):
                await self._discard(conversation, separate)
            # Another process has appended, or has deleted the conversation.
            if isinstance(error, Error) and (
                error.reason == "VERSION_MISMATCH" or is_not_found(error)
            ):
                return False
            raise
        return True

    async def _send(self, request: AppendMessagesRequest) -> AppendMessagesResponse:
        """Append, and once more under the same request id if the connection is lost.

        gRPC itself does not repeat a call after the first byte of its reply. The caller cannot
        repeat it: the framework stores a message of a user again if it has no id.
        """
        request.request_id = str(uuid.uuid4())
        try:
            return await self._clients.aio.append_messages(request)
        except Error as error:
            if error.code is not grpc.StatusCode.UNAVAILABLE:
                raise
            return await self._clients.aio.append_messages(request)

    async def _write(self, conversation: str, records: Sequence[RecordWrite], version: int) -> int:
        """Write records in as many commits as needed, and return the version after the last."""
        if not version:
            request = AppendMessagesRequest(
                conversation_id=conversation,
                replace_after_sequence=0,
                if_version=0,
                create_with=self._new,
            )
            version = (await self._send(request)).conversation.version
        for batch in batches(records):
            reply = await self._clients.aio.records(conversation).write(batch, if_version=version)
            version = reply.conversation.version
        return version

    async def _discard(self, conversation: str, records: Sequence[RecordWrite]) -> None:
        """Delete records that no message has; if that fails, they stay."""
        writes = [RecordWrite(key=record.key, delete=True) for record in records]
        with suppress(Error):
            for batch in batches(writes):
                await self._clients.aio.records(conversation).write(batch)


def is_not_found(error: Error) -> bool:
    """Report whether the conversation does not exist."""
    return error.code is grpc.StatusCode.NOT_FOUND
