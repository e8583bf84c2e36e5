"""Commits of checkpoints, writes and values, with the pieces that they refer to."""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from typing import TYPE_CHECKING

from parley._error import Error, RevisionMismatchError
from parley.adapters._common import batches
from parley.adapters.langgraph import _values as values
from parley.adapters.langgraph._steps import NOT_FOUND, get_all
from parley.v1.conversation_service_pb2 import LoadConversationRequest
from parley.v1.record_pb2 import RecordWrite
from parley.v1.record_service_pb2 import WriteRecordsRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from parley.adapters._steps import Steps
    from parley.v1.conversation_pb2 import Conversation
    from parley.v1.record_pb2 import Record

MAX_THREADS = 256  # whose pieces are remembered
MAX_DIGESTS = 10_000  # remembered for a thread


class Known:
    """What the server has of a thread: the pieces that a new record may refer to.

    Each commit that refers to pieces also writes the record of the generation, with its revision as
    the condition. Each deletion of pieces changes its value. So a commit never refers to a piece
    that was deleted after it was known.
    """

    def __init__(self, generation: bytes, revision: int) -> None:
        """Know no pieces of this generation."""
        self.generation = generation
        self.revision = revision
        self.digests = set[bytes]()


class Commits:
    """Writes records of threads, and remembers the pieces that the server has of each.

    It may be used by any number of threads.
    """

    def __init__(self, create_with: Conversation) -> None:
        """Create conversations with these fields."""
        self._create_with = create_with
        self._known = OrderedDict[str, Known]()
        self._lock = threading.Lock()  # of self._known and the sets in it

    def commit(
        self, conversation: str, pieces: values.Pieces, writes: Sequence[RecordWrite]
    ) -> Steps[None]:
        """Write records and those of the pieces they refer to that the server does not have.

        It is one commit, unless the records are too many or too large for a call. Then the last
        ones are written last.
        """
        if not pieces and len(list(batches(writes))) == 1:
            yield from self.write(conversation, writes)
            return
        known = self._known.get(conversation)
        while True:
            if known is None:
                known = yield from self.read_generation(conversation)
            missing = [
                RecordWrite(key=values.piece_key(digest), value=piece)
                for digest, piece in pieces.items()
                if digest not in known.digests
            ]
            revision = known.revision
            try:
                for batch in batches([*missing, *writes], spare=1):
                    guard = RecordWrite(
                        key=values.GENERATION, value=known.generation, if_revision=revision
                    )
                    revision = yield from self.write(conversation, [*batch, guard])
            except RevisionMismatchError as error:
                if error.key != values.GENERATION:
                    raise
                known = None
            else:
                with self._lock:
                    known.revision = revision
                    if len(known.digests) > MAX_DIGESTS:
                        known.digests.clear()
                    known.digests.update(pieces)
                return

    def read_generation(self, conversation: str) -> Steps[Known]:
        """Get the generation of a thread's pieces, a new one if it has none."""
        found = yield from get_all(conversation, [values.GENERATION])
        if values.GENERATION in found:
            return self.learn(conversation, found[values.GENERATION], ())
        known = Known(uuid.uuid4().bytes, 0)
        with self._lock:
            self._remember(conversation, known)
        return known

    def learn(self, conversation: str, generation: Record, digests: Iterable[bytes]) -> Known:
        """Remember pieces that were read after their generation."""
        with self._lock:
            known = self._known.get(conversation)
            if known is None or known.generation != generation.value:
                known = Known(generation.value, generation.revision)
            known.revision = max(known.revision, generation.revision)
            known.digests.update(digests)
            self._remember(conversation, known)
        return known

    def _remember(self, conversation: str, known: Known) -> None:
        self._known[conversation] = known
        self._known.move_to_end(conversation)
        while len(self._known) > MAX_THREADS:
            self._known.popitem(last=False)

    def write(self, conversation: str, writes: Sequence[RecordWrite]) -> Steps[int]:
        """Write records in one commit, and return their revision.

        If the conversation does not exist, it is created before that.
        """
        while True:
            try:
                reply = yield WriteRecordsRequest(conversation_id=conversation, writes=writes)
            except Error as error:
                if error.reason != NOT_FOUND:
                    raise
            else:
                revision: int = reply.revision
                return revision
            yield LoadConversationRequest(
                conversation_id=conversation, message_limit=0, create_with=self._create_with
            )
