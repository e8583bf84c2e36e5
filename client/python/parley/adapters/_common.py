"""What all adapters share: ids, retention, and the clients."""

from __future__ import annotations

import hashlib
import re
import threading
import unicodedata
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import quote

from parley._aio_client import AsyncClient
from parley._client import Client
from parley.v1.conversation_pb2 import Conversation, Retention

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from parley.v1.record_pb2 import RecordWrite

Server: TypeAlias = "str | Client | AsyncClient"
"""The address of a server, as :class:`parley.Client` takes it, or a client of that server.

An adapter makes its own client for an address, and closes it. It uses a client that it gets, and
does not close it.
"""

MAX_WRITES = 100  # of records in a call
# A request has at most 4 MiB. The rest is for ids, keys and the lengths of fields.
MAX_REQUEST_BYTES = (4 << 20) - (128 << 10)
MAX_ID_BYTES = 256
MAX_KEY_BYTES = 512
DIGEST_BYTES = 65  # of a shortened id: a tilde and a SHA-256 in hexadecimal
SHORTENED = re.compile(r"~[0-9a-f]{64}\Z")
PLAIN = re.compile("[!-$&-.0-~]+")  # printable ASCII without space, "%" and "/"

MAKING = threading.Lock()
"""Is held while a client is made, so that threads that begin at once share it. It is no attribute:
frameworks copy the objects that have clients."""


def kept() -> Retention:
    """Return the retention of conversations that live until they are deleted."""
    return Retention(keep_all=True, no_expiry=True, no_eviction=True)


def batches(writes: Iterable[RecordWrite], spare: int = 0) -> Iterator[list[RecordWrite]]:
    """Split writes of records into those of one call each, with space for some small ones more."""
    batch: list[RecordWrite] = []
    size = 0
    for write in writes:
        length = write.ByteSize()
        if batch and (len(batch) + spare == MAX_WRITES or size + length > MAX_REQUEST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(write)
        size += length
    if batch:
        yield batch


def removed(conversation: Conversation) -> tuple[str, int]:
    """Return what differs if messages were removed between two reads of a conversation."""
    return conversation.uid, conversation.last_sequence - conversation.message_count


def conversation_id(*ids: str) -> str:
    """Return the id of the conversation for one or more ids of a framework.

    The ids are joined by "/". In each of them these characters are percent-encoded as UTF-8: "%",
    control characters, line breaks, a space as the first or last character, and "/" if there are
    several ids. The single ids "." and ".." become "%2E" and "%2E%2E". A result of more than 256
    bytes, the limit of the API, is cut to 191 bytes, or less to keep a character whole; "~" and the
    SHA-256 of the complete one follow. A shorter result that already ends like that is treated in
    the same way. So different ids never get the same conversation, and most ids stay as they are.

    Raises:
        ValueError: There is no id, all are empty, or one is not Unicode.

    """
    if not any(ids):
        raise ValueError("the id of a conversation is empty")
    joined = "/".join(encoded(part, several=len(ids) > 1) for part in ids)
    if joined in (".", ".."):
        joined = joined.replace(".", "%2E")
    complete = joined.encode()
    if len(complete) <= MAX_ID_BYTES and not SHORTENED.search(joined):
        return joined
    start = complete[: MAX_ID_BYTES - DIGEST_BYTES].decode(errors="ignore")
    return f"{start}~{hashlib.sha256(complete).hexdigest()}"


def record_key(*parts: str) -> str:
    """Return the key of a record for the parts of a path: they are encoded and joined by "/".

    The encoding is that of :func:`conversation_id` for several ids. The keys of paths that begin
    with the same parts begin with the same bytes.

    Raises:
        ValueError: The key has more than 512 bytes, the limit of the API.

    """
    return key_of(*(encoded(part, several=True) for part in parts))


def key_of(*segments: str) -> str:
    """Return the key of a record for the parts of a path that are encoded already.

    Raises:
        ValueError: The key has more than 512 bytes, the limit of the API.

    """
    key = "/".join(segments)
    if len(key.encode()) > MAX_KEY_BYTES:
        raise ValueError(f"the key {key!r} has more than {MAX_KEY_BYTES} bytes")
    return key


def encoded(part: str, *, several: bool) -> str:
    """Return an id with the characters percent-encoded that :func:`conversation_id` names."""
    if PLAIN.fullmatch(part):
        return part

    def encode(i: int, character: str) -> str:
        category = unicodedata.category(character)
        at_end = i in (0, len(part) - 1)
        kept = (
            character != "%"
            and not (several and character == "/")
            and category not in ("Cc", "Zl", "Zp")
            and not (category == "Zs" and at_end)
        )
        return character if kept else quote(character, safe="")

    return "".join(encode(i, character) for i, character in enumerate(part))


class Clients:
    """The clients of an adapter: a sync one and an asyncio one.

    For an address, both are made when they are first used. For a client, only the calls of its
    kind work.
    """

    def __init__(self, server: Server) -> None:
        """Use this server."""
        self._target = server if isinstance(server, str) else None
        self._sync = server if isinstance(server, Client) else None
        self._aio = server if isinstance(server, AsyncClient) else None

    @property
    def sync(self) -> Client:
        """The sync client."""
        with MAKING:
            if self._sync is None:
                if self._target is None:
                    raise TypeError(
                        "a sync method needs a parley.Client or the address of the server"
                    )
                self._sync = Client(self._target)
            return self._sync

    @property
    def aio(self) -> AsyncClient:
        """The asyncio client. It works in any number of event loops."""
        with MAKING:
            if self._aio is None:
                if self._target is None:
                    raise TypeError(
                        "an async method needs a parley.AsyncClient or the address of the server"
                    )
                self._aio = AsyncClient(self._target)
            return self._aio

    def close(self) -> None:
        """Close the sync client if it was made here."""
        if self._target is not None and self._sync is not None:
            self._sync.close()
            self._sync = None

    async def aclose(self) -> None:
        """Close the clients that were made here."""
        self.close()
        if self._target is not None and self._aio is not None:
            await self._aio.close()
            self._aio = None
