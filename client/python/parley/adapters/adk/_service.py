"""The session service."""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.platform import time as adk_time
from google.adk.platform import uuid as adk_uuid
from google.adk.sessions import BaseSessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse

from parley._error import Error, RevisionMismatchError
from parley.adapters._common import Clients, conversation_id, kept
from parley.adapters.adk._events import (
    EVENT,
    EVENT_RECORDS,
    Messages,
    as_event,
    as_message,
    piece_keys,
    timestamp_of,
)
from parley.adapters.adk._state import (
    BOTH_PREFIX,
    SESSION_PREFIX,
    STATE_KEY,
    Change,
    Header,
    SharedState,
    Stored,
    app_key,
    by_scope,
    label,
    to_json,
    user_key,
)
from parley.v1.conversation_pb2 import Conversation, Retention
from parley.v1.conversation_service_pb2 import (
    AppendMessagesRequest,
    AppendMessagesResponse,
    DeleteConversationRequest,
    ListConversationsRequest,
    ListMessagesRequest,
)
from parley.v1.record_pb2 import RecordWrite

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType

    from google.adk.events import Event
    from typing_extensions import Self

    from parley._aio_client import AsyncClient
    from parley.adapters._common import Server
    from parley.v1.message_pb2 import Message

NUMBER = "adk.event"  # Metadata of a message: the number of the event, from 1.
APP, USER = "adk.app", "adk.user"  # Labels of a conversation.

# A request has at most 4 MiB. The rest is for ids, keys, labels and the text of the message.
MAX_REQUEST_BYTES = (4 << 20) - (256 << 10)
MAX_PAGE = 1000
MAX_SEQUENCE = 2**31 - 1
CONCURRENT_READS = 32

NOT_FOUND = "CONVERSATION_NOT_FOUND"
VERSION_MISMATCH = "VERSION_MISMATCH"
REQUEST_ID_REUSED = "REQUEST_ID_REUSED"

STALE = (
    "The session has been modified in storage since it was loaded. "
    "Please reload the session before appending more events."
)


class ParleySessionService(BaseSessionService):
    """The session service that keeps the sessions of ADK in a Parley server.

    Pass it to ``Runner(session_service=...)``. Each session is a conversation, and each event a
    message with a readable text and the exact event. An event and the changes of state that it
    makes are one commit: of the session (``key``), the user (``user:key``) and the application
    (``app:key``). State with the prefix ``temp:`` is not stored, nor are partial events.

    It works in any event loop. Any number of processes may share sessions, as with ADK's
    DatabaseSessionService: an append to a session that another writer has changed since it was
    loaded raises StaleSessionError. Changes that several writers make to the state of a user or an
    application are merged by key.

    All methods raise :class:`parley.Error` if a call fails. The client retries a call under one
    request id while the server is unavailable for a moment. If append_event fails nevertheless,
    call it again with the same session and event: the event is stored once.
    """

    def __init__(self, server: Server, *, retention: Retention | None = None) -> None:
        """Make a service. It connects with its first call.

        Args:
            server: The address of a server, or a :class:`parley.AsyncClient`. A
                :class:`parley.Client` does not work: all methods are async.
            retention: The retention of conversations that this service creates. If None, they
                keep all events, do not expire and are not evicted.

        """
        self._clients = Clients(server)
        self._retention = kept() if retention is None else retention
        self._locks = Locks()

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """Create a session and return it, with the state of its user and application.

        Args:
            app_name: The name of the application.
            user_id: The id of the user.
            state: The first state, with keys of any scope.
            session_id: The id of the session. Spaces around it are removed. If it is None or
                empty, a UUID.

        Raises:
            AlreadyExistsError: The session exists, or another conversation has its id.
            ValueError: An id is not Unicode.

        """
        id_ = (session_id or "").strip() or adk_uuid.new_uuid()
        conversation = conversation_id(app_name, user_id, id_)
        change = by_scope(state or {})
        header = Header(
            nonce=uuid.uuid4().hex,
            revision=0,
            app=app_name,
            user=user_id,
            id=id_,
            updated=adk_time.get_time(),
            events=0,
        )
        while True:
            app, user = await self._shared(app_name, user_id)
            request = AppendMessagesRequest(
                conversation_id=conversation,
                # An append needs a message or a replacement. This one removes nothing.
                replace_after_sequence=MAX_SEQUENCE,
                if_version=0,
                request_id=header.nonce,
                create_with=Conversation(
                    labels={APP: label(app_name), USER: label(user_id)}, retention=self._retention
                ),
                records=[header.write(), *app.merge(change.app), *user.merge(change.user)],
            )
            if change.session:
                request.records.append(RecordWrite(key=STATE_KEY, value=to_json(change.session)))
            try:
                reply = await self._client.append_messages(request)
            except RevisionMismatchError:
                continue  # Another writer changed the state of the user or the application.
            except Error as error:
                if error.reason == VERSION_MISMATCH:
                    raise AlreadyExistsError(f"Session with id {id_} already exists.") from error
                if error.reason != REQUEST_ID_REUSED:
                    raise
                reply = AppendMessagesResponse(replayed=True)
            header.revision = await self._revision_after(reply, conversation, header)
            return header.session(change.session, app, user)

    async def get_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        config: GetSessionConfig | None = None,
    ) -> Session | None:
        """Return a session, or None if it does not exist.

        The events and the state of the session are those of one instant. Events are in the order
        in which they were appended.

        Args:
            app_name: The name of the application.
            user_id: The id of the user.
            session_id: The id of the session. Spaces around it are removed.
            config: ``num_recent_events`` returns only the newest events, and reads no more of them;
                0 returns none. ``after_timestamp`` returns only events with this timestamp, in
                seconds, or a later one; it reads all events. With both, the newest of those.

        Raises:
            ValueError: A record of an event is missing.

        """
        config = config or GetSessionConfig()
        conversation = conversation_id(app_name, user_id, session_id.strip())
        shared = asyncio.ensure_future(self._shared(app_name, user_id))
        try:
            found = await self._read(conversation, config)
            if found is None or not found[0].belongs_to(app_name, user_id):
                return None
            header, state, events = found
            return header.session(state, *await shared, events=events)
        finally:
            shared.cancel()

    async def list_sessions(
        self, *, app_name: str, user_id: str | None = None
    ) -> ListSessionsResponse:
        """Return the sessions of an application, with their states and without their events.

        The session with the oldest update is the first. The update of a session is the timestamp
        of its newest event, or else its creation.

        Args:
            app_name: The name of the application.
            user_id: Only sessions of this user. If None, those of all users.

        """
        labels = {APP: label(app_name)}
        if user_id is not None:
            labels[USER] = label(user_id)
        request = ListConversationsRequest(page_size=MAX_PAGE, labels=labels)
        ids = []
        while True:
            page = await self._client.list_conversations(request)
            ids += [entry.conversation.id for entry in page.conversations]
            if not page.next_page_token:
                break
            request.page_token = page.next_page_token
        limit = asyncio.Semaphore(CONCURRENT_READS)

        async def stored(conversation: str) -> Stored | None:
            async with limit:
                return await self._stored(conversation)

        found = [
            session
            for session in await asyncio.gather(*map(stored, ids))
            if session and session.header.belongs_to(app_name, user_id)
        ]
        found.sort(key=lambda s: (s.header.updated, s.header.user, s.header.id))
        users = {s.header.user: user_key(app_name, s.header.user) for s in found}
        states = await self._states([app_key(app_name), *users.values()])
        app = states[app_key(app_name)]
        return ListSessionsResponse(
            sessions=[s.header.session(s.state, app, states[users[s.header.user]]) for s in found]
        )

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session with its events and its state. If it does not exist, do nothing.

        The state of the user and of the application stays.

        Args:
            app_name: The name of the application.
            user_id: The id of the user.
            session_id: The id of the session. Spaces around it are removed.

        """
        conversation = conversation_id(app_name, user_id, session_id.strip())
        request = DeleteConversationRequest(conversation_id=conversation, allow_missing=True)
        await self._client.delete_conversation(request)

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return the state of a user, with keys without ``user:``; empty if there is none."""
        key = user_key(app_name, user_id)
        return (await self._states([key]))[key].values

    async def append_event(self, session: Session, event: Event) -> Event:
        """Store an event and the state that it changes in one commit, and add it to the session.

        A partial event changes nothing, nor does an event that the session object has already.
        State of the scope ``temp:`` is set in the session object only.

        Args:
            session: A session of this service.
            event: The event. An event of more than 32 KiB of JSON is stored as records beside
                its message.

        Raises:
            StaleSessionError: Another writer has appended to the session, or it was deleted and
                created again. Nothing was stored. Load the session again.
            SessionNotFoundError: The session does not exist.
            parley.Error: With the reason CONVERSATION_FULL or RECORDS_FULL if the session is as
                large as the server allows. Also if a state has more than 3 MiB of JSON.

        """
        if event.partial:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        conversation = conversation_id(session.app_name, session.user_id, session.id)
        if any(known.id == event.id and known == event for known in session.events):
            return event
        # Parallel branches of an agent append to one session object.
        async with self._locks.hold(conversation):
            header = await self._commit(conversation, session, event)
            session.last_update_time = header.updated
            session._storage_update_marker = header.marker
            return self._commit_event_to_session(session, event)

    async def flush(self) -> None:
        """Do nothing: append_event returns when the event is durable."""

    async def close(self) -> None:
        """Close the client if the service made it."""
        await self._clients.aclose()

    async def __aenter__(self) -> Self:
        """Return the service. The end of the block closes it."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the service."""
        await self.close()

    @property
    def _client(self) -> AsyncClient:
        return self._clients.aio

    async def _commit(self, conversation: str, session: Session, event: Event) -> Header:
        """Store an event, and return the header of the session after it."""
        before = await self._header_of(conversation, session)
        after = Header(
            nonce=before.nonce,
            revision=before.revision,
            app=session.app_name,
            user=session.user_id,
            id=session.id,
            updated=event.timestamp,
            events=before.events + 1,
        )
        encoded = to_json(event.model_dump(exclude_none=True, mode="json"))
        # An append of the same event to the same session is the same request.
        request_id = hashlib.sha256(before.marker.encode() + encoded).hexdigest()
        change = by_scope(event.actions.state_delta)
        message, pieces = as_message(event, encoded, request_id)
        message.metadata[NUMBER] = str(after.events)
        while True:
            request = AppendMessagesRequest(
                conversation_id=conversation,
                must_exist=True,
                request_id=request_id,
                messages=[message],
                records=[after.write(), *await self._merged(conversation, session, change)],
            )
            if sum(len(piece.value) for piece in (*request.records, *pieces)) <= MAX_REQUEST_BYTES:
                request.records.extend(pieces)
            else:
                await self._stage(conversation, session, pieces)
                pieces = []
            try:
                reply = await self._client.append_messages(request)
            except RevisionMismatchError as error:
                if error.tenant_scope:
                    continue  # Another writer changed the state of the user or the application.
                raise StaleSessionError(STALE) from error
            except Error as error:
                if error.reason == NOT_FOUND:
                    raise not_found(session) from error
                if error.reason != REQUEST_ID_REUSED:
                    raise
                # The event was stored when the call failed without a reply. The state that this
                # call would have merged it into was a later one.
                reply = AppendMessagesResponse(replayed=True)
            after.revision = await self._revision_after(reply, conversation, after)
            return after

    async def _header_of(self, conversation: str, session: Session) -> Header:
        """Return what the session object is based on."""
        marker = (session._storage_update_marker or "").split(":")
        if len(marker) == 3 and marker[1].isdigit() and marker[2].isdigit():
            return Header(
                nonce=marker[0],
                revision=int(marker[1]),
                app=session.app_name,
                user=session.user_id,
                id=session.id,
                updated=session.last_update_time,
                events=int(marker[2]),
            )
        # The session object is not from this service. It is current if its last event is.
        config = GetSessionConfig(num_recent_events=1)
        found = await self._read(conversation, config)
        if found is None:
            raise not_found(session)
        header, _, events = found
        if header.updated > session.last_update_time:
            newest = [event.id for event in events]
            if newest != [event.id for event in session.events[-1:]]:
                raise StaleSessionError(STALE)
        return header

    async def _merged(
        self, conversation: str, session: Session, change: Change
    ) -> list[RecordWrite]:
        """Return the writes that merge a change into the state as it is now."""
        writes = list[RecordWrite]()
        if change.app or change.user:
            app, user = await self._shared(session.app_name, session.user_id)
            writes += [*app.merge(change.app), *user.merge(change.user)]
        if change.session:
            # The revision of the session's record guards the state, too: all appends write it.
            try:
                record = await self._client.records(conversation).get(STATE_KEY)
            except Error as error:
                if error.reason == NOT_FOUND:
                    raise not_found(session) from error
                raise
            state = json.loads(record.value) if record else {}
            writes.append(RecordWrite(key=STATE_KEY, value=to_json(state | change.session)))
        return writes

    async def _stage(self, conversation: str, session: Session, pieces: list[RecordWrite]) -> None:
        """Write the records of a large event, which no reader sees without its message."""
        for piece in pieces:
            try:
                await self._client.records(conversation).write([piece])
            except Error as error:
                if error.reason == NOT_FOUND:
                    raise not_found(session) from error
                raise

    async def _revision_after(
        self, reply: AppendMessagesResponse, conversation: str, header: Header
    ) -> int:
        """Return the revision of the session's record after it was written."""
        if not reply.replayed:
            return reply.conversation.version
        stored = await self._stored(conversation)
        if stored and (stored.header.nonce, stored.header.events) == (header.nonce, header.events):
            return stored.header.revision
        # Another writer has appended since. A record that exists never has revision 0, so that
        # the next append finds that the session is stale.
        return 0

    async def _read(
        self, conversation: str, config: GetSessionConfig
    ) -> tuple[Header, dict[str, Any], list[Event]] | None:
        """Return header, state and events of one instant; None if there is no session."""
        stored, messages = await asyncio.gather(
            self._stored(conversation), self._messages(conversation, config)
        )
        settled = False  # Nothing was appended while the messages were read.
        while stored is not None and messages is not None:
            header = stored.header
            complete = config.num_recent_events == 0 or messages.newest == header.events
            if complete or settled:
                events = await self._events(conversation, messages.messages)
                if events is not None:
                    return header, stored.state, events
            missing = settled
            messages = await self._messages(conversation, config)
            stored = await self._stored(conversation)
            settled = stored is not None and stored.header.marker == header.marker
            if settled and missing:
                raise ValueError(f"a record of an event of {conversation!r} is missing")
        return None

    async def _stored(self, conversation: str) -> Stored | None:
        """Return the records of a session; None if there is no session."""
        before = ("", 0)
        while True:
            header: Header | None = None
            state, revision = dict[str, Any](), 0
            try:
                async for record in self._client.records(conversation).list(BOTH_PREFIX):
                    if record.key.startswith(SESSION_PREFIX):
                        nonce = record.key.removeprefix(SESSION_PREFIX)
                        fields = json.loads(record.value)
                        header = Header(nonce=nonce, revision=record.revision, **fields)
                    elif record.key == STATE_KEY:
                        state, revision = json.loads(record.value), record.revision
            except Error as error:
                if error.reason != NOT_FOUND:
                    raise
                return None
            if header is None:
                return None
            # A large state is on a page of its own, which may be of a later instant. Another
            # program may have written the state: then two reads are equal.
            if revision <= header.revision or before == (header.marker, revision):
                return Stored(header, state)
            before = (header.marker, revision)

    async def _messages(self, conversation: str, config: GetSessionConfig) -> Messages | None:
        """Return the messages of the newest events, oldest first; None if there is no session."""
        found = Messages()
        limit, after = config.num_recent_events, config.after_timestamp
        if limit == 0:
            return found
        wanted = limit if not after else None
        request = ListMessagesRequest(
            conversation_id=conversation,
            page_size=MAX_PAGE if wanted is None else min(wanted, MAX_PAGE),
        )
        while True:
            try:
                page = await self._client.list_messages(request)
            except Error as error:
                if error.reason != NOT_FOUND:
                    raise
                return None
            for message in page.messages:
                # Other programs may append to the conversation, too.
                if message.native.type not in (EVENT, EVENT_RECORDS):
                    continue
                found.newest = found.newest or int(message.metadata[NUMBER])
                if not after or timestamp_of(message) >= after:
                    found.messages.append(message)
                if limit is not None and len(found.messages) == limit:
                    break
            full = limit is not None and len(found.messages) == limit
            if full or not page.next_page_token:
                found.messages.reverse()
                return found
            # Other programs may have appended any number of messages since.
            request.page_token, request.page_size = page.next_page_token, MAX_PAGE

    async def _events(self, conversation: str, messages: list[Message]) -> list[Event] | None:
        """Return the events of messages; None if a record of them is missing."""
        keys = [key for message in messages for key in piece_keys(message)]
        values = dict[str, bytes]()
        if keys:
            try:
                async for record in self._client.records(conversation).get_all(keys):
                    values[record.key] = record.value
            except Error as error:
                if error.reason != NOT_FOUND:
                    raise
        if len(values) < len(keys):
            return None
        return [as_event(message, values) for message in messages]

    async def _shared(self, app_name: str, user_id: str) -> tuple[SharedState, SharedState]:
        """Return the states of an application and of a user."""
        app, user = app_key(app_name), user_key(app_name, user_id)
        states = await self._states([app, user])
        return states[app], states[user]

    async def _states(self, keys: list[str]) -> dict[str, SharedState]:
        states = {key: SharedState(key) for key in keys}
        async for record in self._client.tenant_records().get_all(keys):
            states[record.key] = SharedState(
                record.key, json.loads(record.value), int(record.revision)
            )
        return states


class Locks:
    """A lock for each conversation and event loop. A lock that no task uses takes no memory."""

    def __init__(self) -> None:
        """Make no lock."""
        self._locks = dict[tuple[asyncio.AbstractEventLoop, str], tuple[asyncio.Lock, int]]()

    @asynccontextmanager
    async def hold(self, conversation: str) -> AsyncIterator[None]:
        """Hold the lock of a conversation in this event loop until the block ends."""
        # Only the thread of the event loop uses the entry.
        key = (asyncio.get_running_loop(), conversation)
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks.pop(key)
            if users > 1:
                self._locks[key] = (lock, users - 1)


def not_found(session: Session) -> SessionNotFoundError:
    """Return the error for a session that does not exist."""
    return SessionNotFoundError(f"Session {session.id} not found.")
