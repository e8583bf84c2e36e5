"""How checkpoints, writes and the values of channels are encoded as records of a conversation.

The keys, in which NS is the namespace of a checkpoint:

    langgraph/checkpoints/NS/ID/state             a checkpoint and its metadata
    langgraph/checkpoints/NS/ID/pending/TASK/N    writes of a task to that checkpoint
    langgraph/values/NS/CHANNEL/VERSION           a value of a channel
    langgraph/pieces/DIGEST                       a part of a value or of any other of these
    langgraph/generation                          which pieces other records may refer to

In descending order, a checkpoint comes before its writes, and both before older checkpoints. A
value is written once for each version of its channel. A piece is named by its content: the lists
of two versions share the pieces in which they are equal, so that a list that grows costs what is
added to it, and some bytes for each piece.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import grpc
import ormsgpack
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from parley._error import Error
from parley.adapters._common import key_of
from parley.adapters.langgraph._steps import segment
from parley.v1.record_pb2 import RecordWrite

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from langgraph.checkpoint.serde.base import SerializerProtocol

    from parley.v1.record_pb2 import Record

ROOT = "langgraph/"
CHECKPOINTS = ROOT + "checkpoints/"
VALUES = ROOT + "values/"
PIECES = ROOT + "pieces/"
GENERATION = ROOT + "generation"
STATE = "/state"

MAX_PIECE_BYTES = 1 << 20
GROUP = 8  # items of a list in a piece
MAX_INLINE_TEXT = 256  # characters of a text that is stored in the checkpoint itself

MEDIA_TYPE = "application/x-msgpack"

Content: TypeAlias = "bytes | list[bytes]"
"""Bytes, or the digests of the pieces that have them one after the other."""


class MissingPieceError(Exception):
    """A piece was deleted after the record that refers to it was read."""


class State(NamedTuple):
    """The record of a checkpoint."""

    thread_id: str
    ns: str
    id: str
    parent_id: str | None
    checkpoint: list[Any]  # type and content; of channel_values only the small ones
    metadata: list[Any]  # type and content
    values: list[str]  # channels whose values are records of their own

    def value_keys(self, versions: Mapping[str, Any], inline: Mapping[str, Any]) -> dict[str, str]:
        """Return the key of the value of each channel that is not in the checkpoint itself."""
        return {
            channel: value_key(self.ns, channel, version)
            for channel, version in versions.items()
            if channel not in inline
        }


def namespace_prefix(ns: str) -> str:
    """Return how the keys of the checkpoints of a namespace begin."""
    return f"{CHECKPOINTS}{segment(ns)}/"


def checkpoint_prefix(ns: str, checkpoint_id: str) -> str:
    """Return how the keys of a checkpoint and its writes begin."""
    return f"{namespace_prefix(ns)}{segment(checkpoint_id)}/"


def value_key(ns: str, channel: str, version: object) -> str:
    """Return the key of a value of a channel."""
    return key_of(VALUES + segment(ns), segment(channel), segment(str(version)))


def pending_key(ns: str, checkpoint_id: str, task_id: str, name: str) -> str:
    """Return the key of writes of a task."""
    return key_of(checkpoint_prefix(ns, checkpoint_id) + "pending", segment(task_id), name)


def is_state(key: str) -> bool:
    """Return whether a key under CHECKPOINTS is that of a checkpoint, not of a write."""
    return key.count("/") == STATE_SLASHES


STATE_SLASHES = checkpoint_prefix("", "").count("/")


def piece_key(digest: bytes) -> str:
    """Return the key of a piece."""
    return PIECES + digest.hex()


class Pieces(dict[bytes, bytes]):
    """The pieces that new records refer to, by their digests."""

    def content(self, data: bytes) -> Content:
        """Return the content for some bytes; if they are many, add them as pieces."""
        if len(data) <= MAX_PIECE_BYTES:
            return data
        return self.split(data)

    def split(self, data: bytes) -> list[bytes]:
        """Add bytes as pieces, and return their digests."""
        digests = []
        for start in range(0, max(len(data), 1), MAX_PIECE_BYTES):
            piece = data[start : start + MAX_PIECE_BYTES]
            digest = hashlib.sha256(piece).digest()
            self[digest] = piece
            digests.append(digest)
        return digests

    def typed(self, serde: SerializerProtocol, value: object) -> list[Any]:
        """Return the type and content of any value."""
        kind, data = serde.dumps_typed(value)
        return [kind, self.content(data)]

    def encode(self, serde: SerializerProtocol, value: object) -> bytes:
        """Return the record for the value of a channel.

        A list is split into groups of items. With a serializer that encrypts, equal items have
        different bytes, so that pieces would save nothing.
        """
        if type(value) is list and len(value) > GROUP and type(serde) is JsonPlusSerializer:
            groups = []
            for start in range(0, len(value), GROUP):
                kind, data = serde.dumps_typed(value[start : start + GROUP])
                groups.append([kind, self.split(data)])
            return ormsgpack.packb(["", groups])
        return ormsgpack.packb(self.typed(serde, value))


def pack(key: str, parts: Iterable[object], labels: Mapping[str, str] | None = None) -> RecordWrite:
    """Return the write of a record of this encoding."""
    value = ormsgpack.packb(list(parts))
    return RecordWrite(key=key, value=value, media_type=MEDIA_TYPE, labels=labels)


def unpack(record: Record) -> Any:  # noqa: ANN401 - any structure
    """Return what pack was given.

    Raises:
        parley.Error: FAILED_PRECONDITION, because another language serializes in its own way.

    """
    if record.media_type != MEDIA_TYPE:
        raise Error(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"the record {record.key!r} was written by the adapter of another language",
        )
    return ormsgpack.unpackb(record.value)


def decode_state(record: Record) -> State:
    """Return the record of a checkpoint."""
    return State(*unpack(record))


def digests_of(*contents: Content) -> Iterator[bytes]:
    """Iterate over the digests of contents."""
    for content in contents:
        if isinstance(content, list):
            yield from content


def contents_of(value: Sequence[Any]) -> list[Content]:
    """Return the contents of the decoded record of a channel's value."""
    kind, content = value
    return [content] if kind else [group for _, group in content]


def references(key: str, parts: Sequence[Any]) -> Iterator[bytes]:
    """Iterate over the digests in any decoded record under CHECKPOINTS or VALUES."""
    if key.startswith(VALUES):
        return digests_of(*contents_of(parts))
    if is_state(key):
        state = State(*parts)
        return digests_of(state.checkpoint[1], state.metadata[1])
    return digests_of(parts[2])


class Loader:
    """Loads contents, with the pieces that were read for them."""

    def __init__(self, serde: SerializerProtocol, pieces: Mapping[str, Record]) -> None:
        """Use pieces by their keys."""
        self._serde = serde
        self._pieces = pieces

    def join(self, content: Content) -> bytes:
        """Return the bytes of a content.

        Raises:
            MissingPieceError: A piece does not exist.

        """
        if isinstance(content, bytes):
            return content
        try:
            return b"".join(self._pieces[piece_key(digest)].value for digest in content)
        except KeyError as error:
            raise MissingPieceError(error.args[0]) from error

    def typed(self, typed: Sequence[Any]) -> Any:  # noqa: ANN401 - any value
        """Return the value of a type and a content."""
        kind, content = typed
        return self._serde.loads_typed((kind, self.join(content)))

    def value(self, value: Sequence[Any]) -> Any:  # noqa: ANN401 - any value
        """Return the value of a channel from its decoded record."""
        kind, content = value
        if kind:
            return self.typed(value)
        items: list[Any] = []
        for group in content:
            items += self.typed(group)
        return items


def is_inline(value: object) -> bool:
    """Return whether the value of a channel is small enough for the checkpoint itself."""
    if isinstance(value, str):
        return type(value) is str and len(value) <= MAX_INLINE_TEXT
    return value is None or isinstance(value, (bool, int, float))
