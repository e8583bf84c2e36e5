"""Sessions: the state of agents between runs."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from agent_framework import AgentSession, SessionStore

from parley.adapters._common import Clients, conversation_id
from parley.adapters._values import Values
from parley.v1.record_pb2 import RecordWrite

if TYPE_CHECKING:
    from parley._aio_records import AsyncRecords
    from parley.adapters._common import Server


class ParleySessionStore(SessionStore):
    """A store of sessions in the records of the tenant, instead of FileSessionStore.

    A session has any size. Its record has the JSON of ``AgentSession.to_dict``, so types in its
    state come back if they are registered with ``register_state_type``. If two processes set one
    session, the last one wins, as with the framework's own stores.

    The methods raise ValueError for an id that is not a string with at least one character, and
    :class:`parley.Error` if a call fails. They work in any number of event loops.
    """

    def __init__(self, server: Server, *, prefix: str = "agent_framework/") -> None:
        """Make a store. It connects with the first call.

        Args:
            server: The address of the server, or an asyncio client that the caller closes.
            prefix: The start of the keys of all records. Stores with different prefixes, of which
                none begins with another, share nothing. Up to 128 bytes.

        """
        super().__init__()
        self._clients = Clients(server)
        self._prefix = prefix
        self._values = Values(self._records, prefix)

    async def aclose(self) -> None:
        """Close the client, if the store was made with an address."""
        await self._clients.aclose()

    async def get(self, session_id: str) -> AgentSession | None:
        """Return a session, or None if there is none.

        Raises:
            ValueError: The id is empty, a registered type cannot read its state, or another program
                has deleted a piece of a session of more than 3 MiB.

        """
        value = await self._values.get(self._key(session_id))
        return None if value is None else AgentSession.from_dict(json.loads(value))

    async def set(self, session_id: str, session: AgentSession) -> None:
        """Store a session. It replaces the session before, in one commit.

        Raises:
            ValueError: The id is empty, or a number in the state is not finite.
            TypeError: The session is of a subclass of AgentSession, or its state contains a value
                that is not JSON and whose type is not registered.

        """
        key = self._key(session_id)
        if type(session) is not AgentSession:
            raise TypeError("ParleySessionStore supports AgentSession only, not its subclasses")
        write = RecordWrite(key=key, value=encode(session), media_type="application/json")
        await self._values.put(write)

    async def delete(self, session_id: str) -> None:
        """Delete a session, if there is one."""
        await self._values.delete(self._key(session_id))

    def _records(self) -> AsyncRecords:
        return self._clients.aio.tenant_records()

    def _key(self, session_id: str) -> str:
        self.validate_session_id(session_id)
        return self._prefix + conversation_id("session", session_id)


def encode(session: AgentSession) -> bytes:
    """Return the JSON of a session. It raises what :meth:`ParleySessionStore.set` raises."""
    document = session.to_dict()
    if document["service_session_id"] is not None and not isinstance(
        document["service_session_id"], str
    ):
        document["service_session_id"] = dict(document["service_session_id"])
    check(document["state"], "state")
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="surrogatepass")  # json.loads reads them.


def check(value: Any, path: str) -> None:  # noqa: ANN401 - any value
    """Raise TypeError or ValueError if JSON does not give a value back as it is."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"the session state at {path} is not a finite float")
    if isinstance(value, list):
        for i, item in enumerate(value):
            check(item, f"{path}[{i}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            check(item, f"{path}.{key}")
    elif type(value) not in (str, int, float, bool, type(None)):
        raise TypeError(
            f"the session state at {path} has the type {type(value).__name__!r}, which is not JSON;"
            f" register it with register_state_type"
        )
