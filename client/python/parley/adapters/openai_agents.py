"""Sessions of the OpenAI Agents SDK, kept in Parley.

    pip install 'parley-client[openai-agents]'

Start at :class:`ParleySession`.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from agents.memory.session_settings import (
    SessionSettings,
    coerce_session_settings,
    resolve_session_limit,
)

from parley._error import Error, RevisionMismatchError
from parley.adapters._common import (
    MAX_REQUEST_BYTES,
    MAX_WRITES,
    Clients,
    batches,
    conversation_id,
    kept,
    removed,
)
from parley.adapters._openai_items import (
    PREFIX,
    STAGED_PREFIX,
    Encoded,
    decode,
    encode,
    item_count,
    record_keys,
)
from parley.v1.conversation_pb2 import Conversation, Retention
from parley.v1.conversation_service_pb2 import (
    AppendMessagesRequest,
    ClearConversationRequest,
    GetConversationRequest,
    ListMessagesRequest,
    LoadConversationRequest,
)
from parley.v1.record_pb2 import RecordWrite

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence

    from agents.items import TResponseInputItem

    from parley._aio_records import AsyncRecords
    from parley.adapters._common import Server
    from parley.v1.message_pb2 import Message

T = TypeVar("T")

MAX_PAGE = 1000
MAX_SEQUENCE = 2**31 - 1

NOT_FOUND = "CONVERSATION_NOT_FOUND"
VERSION_MISMATCH = "VERSION_MISMATCH"
CALL_SEPARATED = "CALL_SEPARATED"

closing: set[asyncio.Task[None]] = set()
"""The tasks that close clients, which the event loop does not keep alive."""


class ParleySession:
    """A session of the OpenAI Agents SDK that is a conversation of Parley.

    Pass it to ``Runner.run(..., session=...)``, or to ``OpenAIResponsesCompactionSession`` as its
    store. It works in any event loop, and any number of sessions in any processes may share a
    conversation: each add_items is one commit, so batches are never mixed.

    Items come back as they were: the JSON, the order of keys, floats, Unicode. Messages that other
    writers appended to the conversation, such as agents of the server, come back as items with
    their text, tool calls and tool results.

    All methods raise :class:`parley.Error` if a call fails. The client retries a call under one
    request id while the server is unavailable for a moment. If a task is cancelled while it
    changes the session, the change is made and then CancelledError is raised, as in the SDK's own
    sessions. After close they raise RuntimeError.

    Attributes:
        session_id: The id of the session.
        session_settings: The settings; ``limit`` is the default of get_items.

    """

    session_id: str
    session_settings: SessionSettings | None = None

    def __init__(
        self,
        session_id: str,
        server: Server,
        *,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        retention: Retention | None = None,
    ) -> None:
        """Make a session. It connects with its first call, and add_items creates the conversation.

        Args:
            session_id: The id, any text that is not empty. The conversation has the same id; see
                :func:`parley.adapters.conversation_id` for characters that an id cannot have.
            server: The address of a server, or a :class:`parley.AsyncClient`, which many sessions
                may share. A :class:`parley.Client` does not work: all methods are async.
            session_settings: The settings, or None for the defaults of the SDK.
            retention: The retention of a conversation that this session creates. If None, it keeps
                all messages, does not expire and is not evicted.

        Raises:
            ValueError: The id is empty or not Unicode.

        """
        self.session_id = session_id
        self.session_settings = (
            SessionSettings()
            if session_settings is None
            else coerce_session_settings(session_settings)
        )
        self._conversation_id = conversation_id(session_id)
        self._new = Conversation(retention=kept() if retention is None else retention)
        self._clients = Clients(server)
        self._closed = False

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the items, oldest first.

        Args:
            limit: The number of newest items to return. If None, the limit of session_settings; if
                that is None too or the number is negative, all items. 0 returns none.

        Raises:
            ValueError: A record of an item was deleted by another program.

        """
        self._check_open()
        limit = resolve_session_limit(limit, self.session_settings)
        if limit == 0:
            return []
        limit = None if limit is None or limit < 0 else limit
        items = (await self._read(limit)).flat()
        return items if limit is None else items[-limit:]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append items, all in one commit or none. An empty list does nothing.

        An item larger than a message may be is kept as records beside its message.

        Raises:
            TypeError: An item is not JSON.
            ValueError: An item contains itself.
            parley.Error: With the reason CONVERSATION_FULL if the conversation is as large as the
                server allows, and RECORDS_FULL for its records.

        """
        self._check_open()
        if items:
            await settled(self._append(encode(items)))

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the newest item and return it; None if there is none.

        Two callers never get the same item.
        """
        self._check_open()
        return await settled(self._pop())

    async def clear_session(self) -> None:
        """Remove all items. The conversation itself stays, with its title, labels and turns."""
        self._check_open()
        await settled(self._clear())

    def close(self) -> None:
        """Refuse further calls, and close the client if the session made it.

        In an event loop, the connection is closed soon after; :meth:`aclose` waits for that.
        """
        self._closed = True
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(self._clients.aclose())
        else:
            task = loop.create_task(self._clients.aclose())
            closing.add(task)
            task.add_done_callback(closing.discard)

    async def aclose(self) -> None:
        """Do what close does, and wait for it."""
        self._closed = True
        await self._clients.aclose()

    async def _get_compaction_snapshot(
        self,
        limit: int,
        *,
        prune_prefix: Callable[[TResponseInputItem], bool] | None = None,
    ) -> Snapshot | None:
        """Return the newest items, and a function that replaces the end of them in one commit.

        OpenAIResponsesCompactionSession and EncryptedSession call it. If prune_prefix is set, a
        replacement also removes the oldest items for which it is true.
        """
        self._check_open()
        if not self._is_plain():
            return None
        history = await self._read(limit)
        all_places = list(history.places())
        places = all_places[-limit:]

        async def replace_suffix(start: int, output: list[TResponseInputItem]) -> bool:
            self._check_open()
            replaced = places[start:]
            if not replaced:
                return False
            message, index = replaced[0]
            return await settled(
                self._replace_suffix(history, message, index, output, prune_prefix)
            )

        items = [history.items[message][index] for message, index in places]
        return Snapshot(items, history.complete and places == all_places, replace_suffix)

    async def _atomic_replace_items(self, items: list[TResponseInputItem]) -> bool:
        """Replace all items in one commit; return False if a subclass has its own storage.

        OpenAIResponsesCompactionSession calls it. It may be cancelled only before it changes
        something: the caller waits for the outcome.
        """
        self._check_open()
        if not self._is_plain():
            return False
        await self._replace_all(encode(items))
        return True

    def _is_plain(self) -> bool:
        """Report whether items are stored as they are added: no subclass transforms them."""
        own, plain = type(self), ParleySession
        return (
            own.get_items is plain.get_items
            and own.add_items is plain.add_items
            and own.pop_item is plain.pop_item
            and own.clear_session is plain.clear_session
        )

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(f"{type(self).__name__} is closed")

    @property
    def _records(self) -> AsyncRecords:
        return self._clients.aio.records(self._conversation_id)

    async def _read(self, limit: int | None) -> History:
        """Return the newest messages as they were at one instant, with at least limit items."""
        count = limit
        while True:
            history = await self._try_read(count)
            if history is None:
                continue
            if limit is None or history.complete or sum(map(len, history.items)) >= limit:
                return history
            count = 2 * (count or limit)  # Some messages have no item that can be read.

    async def _try_read(self, limit: int | None) -> History | None:
        """Return None if messages were removed between the pages."""
        request = ListMessagesRequest(
            conversation_id=self._conversation_id, page_size=min(limit or MAX_PAGE, MAX_PAGE)
        )
        messages: list[Message] = []
        found = 0
        first: Conversation | None = None
        while True:
            try:
                page = await self._clients.aio.list_messages(request)
            except Error as error:
                if error.reason != NOT_FOUND:
                    raise
                return History(Conversation(), [], [], complete=True) if first is None else None
            if first is None:
                first = page.conversation
            elif removed(page.conversation) != removed(first):
                return None
            messages.extend(page.messages)
            found += sum(map(item_count, page.messages))
            complete = not page.next_page_token
            if complete or (limit is not None and found >= limit):
                break
            request.page_token = page.next_page_token
        messages.reverse()
        items = await self._items_of(messages, first)
        return None if items is None else History(first, messages, items, complete=complete)

    async def _items_of(
        self, messages: Sequence[Message], at: Conversation
    ) -> list[list[Any]] | None:
        """Return the items of each message; None if the messages are no longer there."""
        keys = [key for message in messages for key in record_keys(message)]
        values = dict[str, bytes]()
        if keys:
            try:
                async for record in self._records.get_all(keys):
                    values[record.key] = record.value
                if len(values) < len(keys):
                    now = await self._conversation()
                    if now is None or removed(now) != removed(at):
                        return None
                    missing = next(key for key in keys if key not in values)
                    raise ValueError(f"the record {missing!r} of an item is missing")
            except Error as error:
                if error.reason != NOT_FOUND:
                    raise
                return None
        return [decode(message, values) for message in messages]

    async def _conversation(self) -> Conversation | None:
        request = GetConversationRequest(conversation_id=self._conversation_id)
        try:
            return (await self._clients.aio.get_conversation(request)).conversation
        except Error as error:
            if error.reason != NOT_FOUND:
                raise
            return None

    async def _append(
        self,
        encoded: Encoded,
        *,
        deleted: Sequence[str] = (),
        replace_after_sequence: int | None = None,
        if_version: int | None = None,
    ) -> None:
        """Append messages with their records, and delete up to 50 records, in one commit."""
        request = AppendMessagesRequest(
            conversation_id=self._conversation_id,
            messages=encoded.messages,
            replace_after_sequence=replace_after_sequence,
            if_version=if_version,
            create_with=self._new,
            records=[RecordWrite(key=key, delete=True) for key in deleted],
        )
        size = request.ByteSize() + sum(record.ByteSize() for record in encoded.records)
        if size <= MAX_REQUEST_BYTES and len(deleted) + len(encoded.records) <= MAX_WRITES:
            request.records.extend(encoded.records)
            await self._clients.aio.append_messages(request)
            return
        # The records do not fit in the request, so they are written before it. No reader knows
        # them until the messages are committed. A clear in the meantime deletes the mark, too:
        # then the append fails, and no message is without its records.
        await self._clients.aio.load_conversation(
            LoadConversationRequest(
                conversation_id=self._conversation_id, message_limit=0, create_with=self._new
            )
        )
        version = if_version
        while True:
            mark = f"{STAGED_PREFIX}{uuid.uuid4()}"
            unmark = RecordWrite(key=mark, delete=True)
            try:
                for writes in batches([RecordWrite(key=mark), *encoded.records]):
                    reply = await self._records.write(writes, if_version=version)
                    if version is not None:  # Each write changes it.
                        version = reply.conversation.version
                    if not unmark.HasField("if_revision"):
                        unmark.if_revision = reply.revision
                staged = AppendMessagesRequest()
                staged.CopyFrom(request)
                if version is not None:
                    staged.if_version = version
                staged.records.append(unmark)
                await self._clients.aio.append_messages(staged)
            except RevisionMismatchError:
                continue
            except Error:
                await self._unstage(unmark, encoded.records)
                raise
            return

    async def _unstage(self, unmark: RecordWrite, records: Sequence[RecordWrite]) -> None:
        """Delete the records of an append that failed, unless it was committed nevertheless."""
        try:
            await self._records.write([unmark])
        except Error:
            return  # Without the mark they belong to a message. clear_session deletes any others.
        await self._delete_records(record.key for record in records)

    async def _delete_records(self, keys: Iterable[str]) -> None:
        """Delete records that no message has."""
        for writes in batches([RecordWrite(key=key, delete=True) for key in keys]):
            await self._records.write(writes)

    async def _pop(self) -> TResponseInputItem | None:
        while True:
            history = await self._read(1)
            places = list(history.places())
            if not places:
                return None
            message, index = places[-1]
            rest = history.items[message][:index]
            if await self._replace(history, message, rest, history.conversation.version):
                item: TResponseInputItem = history.items[message][index]
                return item

    async def _clear(self) -> None:
        if await self._conversation() is not None:
            await self._replace_all(Encoded([], []))

    async def _replace_all(self, encoded: Encoded) -> None:
        """Replace all messages, and delete the records that were written before."""
        keys: list[str] = []
        before = await self._conversation()
        if before is not None and before.record_count:
            # Later records may belong to messages that are appended after the replacement.
            keys = [
                record.key
                async for record in self._records.list(PREFIX, keys_only=True, page_size=MAX_PAGE)
                if record.revision <= before.version
            ]
        # The marks of staged records are the first keys.
        at_once = MAX_WRITES // 2
        await self._append(encoded, deleted=keys[:at_once], replace_after_sequence=0)
        await self._delete_records(keys[at_once:])

    async def _replace(
        self, history: History, message: int, items: list[Any], version: int
    ) -> bool:
        """Replace the messages from this index of a history on; return False at another version.

        The records of the messages are deleted after the commit. If the process dies in between,
        clear_session deletes them.
        """
        sequence = history.messages[message].sequence
        gone = history.messages[message:]
        try:
            if not items:
                # This also removes a tool result whose call stays.
                await self._clients.aio.clear_conversation(
                    ClearConversationRequest(
                        conversation_id=self._conversation_id,
                        after_sequence=sequence - 1,
                        if_version=version,
                    )
                )
            else:
                while (call := await self._try_replace(sequence, items, version)) is not None:
                    # A result would be removed and its call would stay. So the messages from the
                    # call on are written again: a new call may have no result.
                    earlier = await self._between(call, sequence)
                    parts = await self._items_of(earlier, history.conversation)
                    if parts is None:
                        return False
                    items = [item for part in parts for item in part] + items
                    gone = [*earlier, *gone]
                    sequence = call
        except Error as error:
            if error.reason not in (VERSION_MISMATCH, NOT_FOUND):
                raise
            return False
        await self._delete_records(key for old in gone for key in record_keys(old))
        return True

    async def _try_replace(self, sequence: int, items: list[Any], version: int) -> int | None:
        """Return None, or the sequence of a call that would be separated from its result."""
        try:
            await self._append(
                encode(items), replace_after_sequence=sequence - 1, if_version=version
            )
        except Error as error:
            call = int(error.metadata.get("call_sequence", "0"))
            if error.reason != CALL_SEPARATED or not 0 < call < sequence:
                raise
            return call
        return None

    async def _between(self, start: int, end: int) -> list[Message]:
        """Return the messages from one sequence to before another."""
        request = ListMessagesRequest(
            conversation_id=self._conversation_id,
            after_sequence=start - 1,
            ascending=True,
            page_size=min(end - start, MAX_PAGE),
        )
        messages: list[Message] = []
        while True:
            page = await self._clients.aio.list_messages(request)
            messages.extend(message for message in page.messages if message.sequence < end)
            last = page.messages[-1].sequence if page.messages else end
            if last >= end - 1 or not page.next_page_token:
                return messages
            request.page_token = page.next_page_token

    async def _replace_suffix(
        self,
        history: History,
        message: int,
        index: int,
        output: list[TResponseInputItem],
        prune_prefix: Callable[[TResponseInputItem], bool] | None,
    ) -> bool:
        """Replace the items from this place on if they are still the newest ones."""
        suffix = [old.sequence for old in history.messages[message:]]
        items = [*history.items[message][:index], *output]
        now = history.conversation
        while not await self._replace(history, message, items, now.version):
            # Another change, such as a new title or a removal of older messages, is no conflict.
            current = await self._read(len(suffix))
            newest = [old.sequence for old in current.messages[-len(suffix) :]]
            now = current.conversation
            if now.uid != history.conversation.uid or newest != suffix:
                return False
        if prune_prefix is not None:
            await self._prune(prune_prefix, suffix[0])
        return True

    async def _prune(self, prunable: Callable[[TResponseInputItem], bool], end: int) -> None:
        """Remove the oldest messages before a sequence while all their items are prunable."""
        request = ListMessagesRequest(
            conversation_id=self._conversation_id, ascending=True, page_size=MAX_WRITES
        )
        while True:
            page = await self._clients.aio.list_messages(request)
            messages = [message for message in page.messages if message.sequence < end]
            parts = await self._items_of(messages, page.conversation)
            if parts is None:
                continue
            count = 0
            while count < len(parts) and all(map(prunable, parts[count])):
                count += 1
            if count == 0:
                return
            await self._clients.aio.clear_conversation(
                ClearConversationRequest(
                    conversation_id=self._conversation_id,
                    after_sequence=MAX_SEQUENCE,
                    sequences=[message.sequence for message in messages[:count]],
                )
            )
            await self._delete_records(
                key for message in messages[:count] for key in record_keys(message)
            )
            if count < len(page.messages) or not page.next_page_token:
                return
            # The page is gone, so the next one is the first one again.


@dataclass(frozen=True)
class Snapshot:
    """The newest items of a session, in the form that the SDK's compaction expects."""

    items: list[TResponseInputItem]
    """The items, oldest first."""
    complete: bool
    """Whether these are all items."""
    replace_suffix: Callable[[int, list[TResponseInputItem]], Awaitable[bool]]
    """Replaces the items from an index on, in one commit. It returns False and changes nothing if
    they are no longer the newest items."""


@dataclass(frozen=True)
class History:
    """The newest messages of a conversation at one instant."""

    conversation: Conversation
    """The header; without an id if there is no conversation."""
    messages: list[Message]
    """The messages, oldest first."""
    items: list[list[Any]]
    """The items of each message."""
    complete: bool
    """Whether there are no older messages."""

    def flat(self) -> list[Any]:
        """Return all items."""
        return [item for part in self.items for item in part]

    def places(self) -> Iterator[tuple[int, int]]:
        """Iterate over the indexes of the message, and of the item in it, of each item."""
        return (
            (message, index)
            for message, part in enumerate(self.items)
            for index in range(len(part))
        )


async def settled(change: Coroutine[Any, Any, T]) -> T:
    """Wait for the outcome of a change, also if the caller is cancelled in the meantime."""
    task = asyncio.ensure_future(change)
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancellation = cancellation or error
    if cancellation is not None:
        if not task.cancelled():
            task.exception()  # Otherwise asyncio reports that nothing has read it.
        raise cancellation from None
    return task.result()
