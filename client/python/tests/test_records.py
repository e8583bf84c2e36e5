"""Records, with both clients."""

from __future__ import annotations

import asyncio
import inspect
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from fake import fail, running, serving
from programs import parleyd
from proxy import proxy_to

from parley import (
    Agent,
    AppendMessagesRequest,
    AsyncClient,
    ChangeKind,
    ChatRequest,
    ClearConversationRequest,
    Client,
    Error,
    GetContextRequest,
    GetRecordsRequest,
    GetRecordsResponse,
    JSONRecord,
    ListConversationsRequest,
    ListRecordsRequest,
    ListRecordsResponse,
    LoadConversationRequest,
    Message,
    MessageStatus,
    Record,
    RecordChange,
    RecordWrite,
    RevisionMismatchError,
    Role,
    TurnRecord,
    TurnState,
    WatchConversationsRequest,
    WriteRecordsRequest,
    WriteRecordsResponse,
    json_value,
    json_write,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
    from pathlib import Path

    from typing_extensions import Self

    from parley import Piece, RespondRequest


class BothKinds:
    """A client whose results the test can use without await: of either kind."""

    def __init__(self, address: str, *, asynchronous: bool) -> None:
        """Connect to the server at this address."""
        self._loop = asyncio.new_event_loop()
        self._client = AsyncClient(address) if asynchronous else Client(address)

    def __getattr__(self, name: str) -> Any:
        """Return a method of the client."""
        return self._plain(getattr(self._client, name))

    def records(self, conversation: str) -> Any:
        """Return the records of a conversation."""
        return PlainMethods(self._client.records(conversation), self._plain)

    def tenant_records(self) -> Any:
        """Return the records of the tenant."""
        return PlainMethods(self._client.tenant_records(), self._plain)

    def _plain(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that waits, and that returns a list instead of an async iterator."""

        def call(*arguments: Any, **options: Any) -> Any:
            result = method(*arguments, **options)
            if inspect.isawaitable(result):
                return self._loop.run_until_complete(awaited(result))
            if hasattr(result, "__aiter__"):
                return self._loop.run_until_complete(collected(result))
            return list(result) if hasattr(result, "__next__") else result

        return call

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the client."""
        self._plain(self._client.close)()
        self._loop.close()


class PlainMethods:
    """An object whose methods the test can use without await."""

    def __init__(self, of: object, plain: Callable[[Callable[..., Any]], Any]) -> None:
        """Use the methods of this object."""
        self._of, self._plain = of, plain

    def __getattr__(self, name: str) -> Any:
        """Return a method."""
        return self._plain(getattr(self._of, name))


async def awaited(result: Any) -> Any:
    """Wait for a result."""
    return await result


async def collected(items: AsyncIterable[Any]) -> list[Any]:
    """Return all items."""
    return [item async for item in items]


UTFS = ("utf-16", "utf-16-le", "utf-32", "utf-8-sig")
"""Encodings that json.loads accepts besides UTF-8."""

KINDS = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "asyncio"])


@pytest.fixture(params=[False, True], ids=["sync", "asyncio"])
def client(server_address: str, request: pytest.FixtureRequest) -> Iterator[BothKinds]:
    """Yield a client of either kind. Its server is that of all tests."""
    with BothKinds(server_address, asynchronous=request.param) as client:
        yield client


@pytest.fixture
def conversation(client: BothKinds, request: pytest.FixtureRequest) -> str:
    """Return the id of a new conversation."""
    load = LoadConversationRequest(conversation_id=request.node.name)
    assert client.load_conversation(load).created
    return load.conversation_id


def say(conversation: str, *records: RecordWrite) -> AppendMessagesRequest:
    """Return an append of a message and of records."""
    message = Message(role=Role.ROLE_USER, content="hello")
    return AppendMessagesRequest(conversation_id=conversation, messages=[message], records=records)


def version(client: BothKinds, conversation: str) -> int:
    """Return the version of a conversation."""
    load = LoadConversationRequest(conversation_id=conversation)
    version: int = client.load_conversation(load).conversation.version
    return version


def test_put_get_delete(client: BothKinds, conversation: str) -> None:
    """A record has the value, the revision and the fields of its last write, until a deletion."""
    records = client.records(conversation)
    assert records.get("a") is None
    assert records.put("a", b"old", labels={"kind": "old"}) == version(client, conversation)
    revision = records.put("a", b"\x00\xff", media_type="image/x", labels={"kind": "new"})
    record = records.get("a")
    assert (record.conversation_id, record.key, record.value) == (conversation, "a", b"\x00\xff")
    assert (record.media_type, dict(record.labels)) == ("image/x", {"kind": "new"})
    assert (record.revision, record.size_bytes) == (revision, 2)
    assert record.HasField("update_time")
    assert not record.HasField("expire_time")
    records.delete("a")
    assert records.get("a") is None
    assert records.put("a", b"again", if_revision=0) > revision + 1
    before = version(client, conversation)
    records.delete("never there")
    assert version(client, conversation) == before + 1
    reply = records.write([RecordWrite(key="never there", delete=True)])
    assert (reply.revision, reply.conversation.version) == (0, before + 2)


@pytest.mark.parametrize(
    "value",
    [None, False, 0, -1.5, 2**60, "", 'ü😀\u2028"\\', [], {}, [None, [1, {}]], {"a": {"": ["b"]}}],
    ids=repr,
)
def test_json(server_address: str, value: object) -> None:
    """A JSON value is read as it was written, and may be read by other clients."""
    with Client(server_address) as client:
        client.load_conversation(LoadConversationRequest(conversation_id="json"))
        records = client.records("json")
        revision = records.put_json("value", value, labels={"a": "b"})
        assert records.get_json("value") == JSONRecord(value, revision)
        record = records.get("value")
    assert record
    assert (record.media_type, dict(record.labels)) == ("application/json", {"a": "b"})
    assert json_value(record) == value
    assert b": " not in record.value


def test_keys_that_are_not_strings(client: BothKinds, conversation: str) -> None:
    """They become strings, and tuples become lists."""
    records = client.records(conversation)
    records.put_json("a", ({1: 1.5, 2.5: 0, "1.0": None, None: ()}, {True: 1}))
    wanted: list[Any] = [{"1": 1.5, "2.5": 0, "1.0": None, "null": []}, {"true": 1}]
    with pytest.raises(ValueError, match="several keys become '1'"):
        records.put_json("a", {1: 0, "1": 0})
    assert records.get_json("a").value == wanted


def test_json_of_no_record(client: BothKinds, conversation: str) -> None:
    """Its revision is the one with which a write makes sure that there is no record."""
    records = client.records(conversation)
    for step in (1, 2, 3):
        state, revision = records.get_json("state")
        assert state == (None if step == 1 else {"step": step - 1})
        records.put_json("state", {"step": step}, if_revision=revision)
    assert records.get_json("other") == (None, 0)


def test_values_that_are_not_json(client: BothKinds, conversation: str) -> None:
    """Such a value is not written. A record with another value cannot be read as JSON."""
    records = client.records(conversation)
    circle: list[Any] = []
    circle.append(circle)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    twice = [({"a": {1: "a", "1": "b"}},), {None: 0, "null": 0}, {True: 0, "true": 0}]
    for wrong in (float("nan"), [float("inf")], {1}, circle, "\ud800", deep, *twice):
        with pytest.raises(ValueError, match="record 'a' is not JSON"):
            records.put_json("a", wrong)
    assert records.get("a") is None
    nested = b"[" * 100_000 + b"]" * 100_000
    numbers = (b"NaN", b"[Infinity]", b"-Infinity")
    for value in (b"", b"{", b"\xff", b'"\xff"', *numbers, nested, *("1".encode(c) for c in UTFS)):
        records.put("a", value)
        with pytest.raises(ValueError, match="record 'a' is not JSON"):
            records.get_json("a")


def test_revision_mismatch(client: BothKinds, conversation: str) -> None:
    """The error has the key and its revision. Nothing of the batch is written."""
    records = client.records(conversation)
    revision = records.put("b", b"1")
    batch = [
        RecordWrite(key="a", value=b"2"),
        RecordWrite(key="b", value=b"2", if_revision=revision + 1),
        RecordWrite(key="c", value=b"2", if_revision=7),
    ]
    writes: list[Callable[[], object]] = [
        lambda: records.write(batch),
        lambda: records.put("b", b"2", if_revision=revision + 1),
        lambda: records.put_json("b", 2, if_revision=0),
        lambda: records.delete("b", if_revision=revision - 1),
        lambda: client.append_messages(say(conversation, *batch)),
    ]
    for write in writes:
        with pytest.raises(RevisionMismatchError) as raised:
            write()
        error = raised.value
        assert (error.key, error.current_revision) == ("b", revision)
        assert (error.code, error.reason) == (grpc.StatusCode.ABORTED, "REVISION_MISMATCH")
        assert not error.tenant_scope
    with pytest.raises(RevisionMismatchError) as raised:
        records.delete("a", if_revision=1)
    assert (raised.value.key, raised.value.current_revision) == ("a", 0)
    of_tenant = RecordWrite(key="b", tenant_scope=True, if_revision=revision)
    with pytest.raises(RevisionMismatchError) as raised:
        records.write([RecordWrite(key="b"), of_tenant])
    assert (raised.value.current_revision, raised.value.tenant_scope) == (0, True)
    assert [(r.key, r.value, r.revision) for r in records.list()] == [("b", b"1", revision)]
    assert version(client, conversation) == revision


def test_too_large(client: BothKinds, conversation: str) -> None:
    """The error of a request over gRPC's limit has its size and says what to do."""
    batch = [RecordWrite(key=key, value=bytes(3 << 20)) for key in "ab"]
    writes: list[Callable[[], object]] = [
        lambda: client.records(conversation).write(batch),
        lambda: client.append_messages(say(conversation, *batch)),
        lambda: list(client.chat(ChatRequest(content="hello", records=batch))),
    ]
    for write in writes:
        with pytest.raises(Error, match="bytes, the limit is 4194304; send fewer") as raised:
            write()
        assert raised.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_list(client: BothKinds, conversation: str) -> None:
    """A list has the records of all its pages, in either direction, with or without values."""
    records = client.records(conversation)
    keys = [f"step/{number:03}" for number in range(230)]
    for start in range(0, len(keys), 100):
        batch = [RecordWrite(key=key, value=key.encode()) for key in keys[start : start + 100]]
        records.write(batch)
    records.put("step", b"shorter")
    records.put("steq", b"later")

    def listed(prefix: str = "", **options: Any) -> list[str]:
        return [record.key for record in records.list(prefix, **options)]

    assert listed() == ["step", *keys, "steq"]
    assert listed("step/") == keys
    assert listed("step/", page_size=7) == keys
    assert listed("step/", descending=True, page_size=100) == keys[::-1]
    assert listed("step/", after_key="step/1", page_size=50) == keys[100:]
    assert listed("step/", after_key="step/100", descending=True) == keys[99::-1]
    assert listed("nothing") == []
    assert [record.value for record in records.list("step/")] == [key.encode() for key in keys]
    for record in records.list("step/", keys_only=True):
        assert (record.value, record.size_bytes) == (b"", 8)


def test_records_of_the_tenant(client: BothKinds, conversation: str) -> None:
    """They are others than those of conversations, and may expire."""
    mine, tenant = client.records(conversation), client.tenant_records()
    key = f"{conversation}/a"
    mine.put(key, b"of the conversation")
    first = tenant.put(key, b"old", if_revision=0)
    second = tenant.put(key, b"new", ttl=timedelta(minutes=1), if_revision=first)
    assert second > first
    record = tenant.get(key)
    assert (record.conversation_id, record.value, record.revision) == ("", b"new", second)
    lifetime = record.expire_time.ToDatetime() - record.update_time.ToDatetime()
    assert lifetime == timedelta(minutes=1)
    assert mine.get(key).value == b"of the conversation"
    assert tenant.put_json(key, [1], ttl=timedelta(hours=1)) > second
    assert tenant.get_json(key).value == [1]
    record = tenant.get(key)
    assert record.expire_time.ToDatetime() - record.update_time.ToDatetime() == timedelta(hours=1)
    assert [record.key for record in tenant.list(conversation)] == [key]
    with pytest.raises(Error) as raised:
        mine.put(key, b"", ttl=timedelta(minutes=1))
    assert raised.value.code is grpc.StatusCode.INVALID_ARGUMENT
    tenant.delete(key)
    assert tenant.get(key) is None


def test_write_of_both_scopes(client: BothKinds, conversation: str) -> None:
    """One commit may write records of the conversation and of the tenant."""
    mine, tenant = client.records(conversation), client.tenant_records()
    batch = [json_write("a", 1), json_write(conversation, 2, tenant_scope=True)]
    current = version(client, conversation)
    reply = mine.write(batch, if_version=current)
    assert reply.conversation.record_count == 1
    assert mine.get_json("a") == JSONRecord(1, reply.revision)
    assert tenant.get_json(conversation) == JSONRecord(2, reply.tenant_revision)
    with pytest.raises(Error) as raised:
        mine.write(batch, if_version=current)
    assert raised.value.reason == "VERSION_MISMATCH"


def test_a_repeated_request(client: BothKinds, conversation: str) -> None:
    """A call with the same request_id writes once and returns the first revision."""
    records = client.records(conversation)
    revision = records.put("a", b"1", request_id="r1")
    records.put("a", b"2", request_id="r2")
    assert records.put("a", b"1", request_id="r1") == revision
    assert records.get("a").value == b"2"
    records.delete("a", request_id="r3")
    records.put_json("a", 3, request_id="r4")
    records.delete("a", request_id="r3")
    assert records.get_json("a").value == 3


@KINDS
def test_a_lost_reply(server_address: str, *, asynchronous: bool) -> None:
    """A repeated call with if_revision succeeds, wherever the connection broke, and writes once."""
    conversation = f"lost reply {asynchronous}"
    replayed = 0
    with proxy_to(server_address) as proxy, Client(server_address) as direct:
        load = LoadConversationRequest(conversation_id=conversation)
        version = direct.load_conversation(load).conversation.version
        revision = 0
        for count in range(20, 240, 8):
            proxy.limit(count)  # The connection breaks within the reply, or before.
            write = json_write("a", count, if_revision=revision)
            with BothKinds(proxy.address, asynchronous=asynchronous) as client:
                reply = write_twice(client.records(conversation), write, str(count))
            version += 1
            revision = reply.revision
            assert revision == version
            assert direct.records(conversation).get_json("a") == (count, revision)
            replayed += reply.replayed
    assert replayed


def write_twice(records: Any, write: RecordWrite, request_id: str) -> WriteRecordsResponse:
    """Write a record, and repeat the call if the client gave up."""
    try:
        reply = records.write([write], request_id=request_id)
    except Error as error:
        if error.code is not grpc.StatusCode.UNAVAILABLE:
            raise
        reply = records.write([write], request_id=request_id)
    return reply  # type: ignore[no-any-return]


def test_no_conversation(client: BothKinds) -> None:
    """The calls do not make one. An empty id does not mean the tenant."""
    records = client.records("never made")
    for call in (
        lambda: records.get("a"),
        lambda: records.put("a", b""),
        records.list,
    ):
        with pytest.raises(Error) as raised:
            call()
        assert raised.value.reason == "CONVERSATION_NOT_FOUND"
    with pytest.raises(ValueError, match="empty"):
        client.records("")


def test_append_and_load(client: BothKinds, conversation: str) -> None:
    """Messages and records are one commit, and one read."""
    state = json_write("state/graph", {"step": 1}, labels={"node": "start"})
    shared = json_write(conversation, "shared", tenant_scope=True)
    reply = client.append_messages(say(conversation, state, shared, RecordWrite(key="blob")))
    load = LoadConversationRequest(conversation_id=conversation, record_prefixes=["state/"])
    loaded = client.load_conversation(load)
    context = client.get_context(
        GetContextRequest(conversation_id=conversation, record_prefixes=["state/", "bl"])
    )
    assert [message.content for message in loaded.messages] == ["hello"]
    (record,) = loaded.records
    assert (record.key, json_value(record)) == ("state/graph", {"step": 1})
    assert record.revision == loaded.conversation.version == reply.conversation.version
    assert [record.key for record in context.records] == ["blob", "state/graph"]
    assert client.tenant_records().get(conversation).revision == reply.tenant_revision
    deletion = RecordWrite(key="state/graph", delete=True, if_revision=record.revision)
    client.append_messages(say(conversation, deletion))
    assert not client.load_conversation(load).records


def test_clear_of_no_sequences(client: BothKinds, conversation: str) -> None:
    """With the highest after_sequence, as README.md says, an empty list removes nothing."""
    client.append_messages(say(conversation))
    for sequences, left in (([], 1), ([1], 0)):
        request = ClearConversationRequest(
            conversation_id=conversation, sequences=sequences, after_sequence=2**31 - 1
        )
        assert client.clear_conversation(request).conversation.message_count == left


@KINDS
def test_appender(server_address: str, *, asynchronous: bool) -> None:
    """Its requests may have records. The error of a request has its type."""
    conversation = f"appender {asynchronous}"
    requests = [
        say(conversation, json_write("a", 1, if_revision=0)),
        say(conversation, json_write("a", 2, if_revision=0)),
    ]

    async def run() -> list[Any]:
        async with AsyncClient(server_address) as client, client.appender() as appender:
            futures = [await appender.append(request) for request in requests]
            return await asyncio.gather(*futures, return_exceptions=True)

    with Client(server_address) as client:
        if asynchronous:
            first, second = asyncio.run(run())
        else:
            with client.appender() as appender:
                futures = [appender.append(request) for request in requests]
            first, second = (future.exception() or future.result() for future in futures)
        assert client.records(conversation).get_json("a") == (1, first.conversation.version)
    assert isinstance(second, RevisionMismatchError)
    assert second.current_revision == first.conversation.version


def test_chat_and_watch(server_address: str) -> None:
    """A chat writes records with the message. A watch reports them if it asks for them."""
    with Client(server_address) as client:
        cursor = client.list_conversations(ListConversationsRequest(page_size=1)).watch_cursor
        note = json_write("a", 1)
        *_, last = client.chat(ChatRequest(conversation_id="watched", content="hi", records=[note]))
        assert last.finished.turn.state == TurnState.TURN_STATE_COMPLETED
        records = client.records("watched")
        value, revision = records.get_json("a")
        assert value == 1
        records.delete("a")
        client.append_messages(say("watched"))
        request = WatchConversationsRequest(conversation_ids=["watched"], cursor=cursor)
        assert not record_changes(client, request)
        request.include_records = True
        written, deleted = record_changes(client, request)
    assert (written.key, written.revision, written.deleted) == ("a", revision, False)
    assert (deleted.key, deleted.deleted) == ("a", True)
    assert deleted.revision > revision


def record_changes(client: Client, request: WatchConversationsRequest) -> list[RecordChange]:
    """Return the changes of records before the message of :func:`say`."""
    changes = []
    for change in client.watch_conversations(request):
        if change.kind == ChangeKind.CHANGE_KIND_RECORD:
            changes.append(change.record)
        if change.message.content == "hello":
            return changes
    pytest.fail("the watch has ended")


class Recorder(Agent):
    """Yields text and records."""

    def __init__(self, *records: RecordWrite) -> None:
        """Make an agent that yields these records."""
        self._records = records

    async def respond(self, request: RespondRequest) -> AsyncIterator[Piece]:
        """See Agent."""
        del request
        yield "noted"
        for record in self._records:
            yield record
        yield "."


def test_records_of_an_agent(tmp_path: Path) -> None:
    """They are written with the answer of a turn that completes, and with no other."""
    good = Recorder(json_write("a", 1), json_write("t", 2, tenant_scope=True), json_write("a", 3))
    late = Recorder(json_write("b", 1), json_write("a", 4, if_revision=0))
    with running(good) as one, running(late) as two:
        config = f'agents:\n  good: {{kind: remote, address: "{one}"}}\n'
        config += f'  late: {{kind: remote, address: "{two}"}}\n'
        with parleyd(tmp_path, config) as server, Client(server.address) as client:
            *events, last = client.chat(ChatRequest(conversation_id="c", agent="good", content="?"))
            assert last.finished.turn.state == TurnState.TURN_STATE_COMPLETED
            assert [event.record for event in events if event.HasField("record")] == [
                TurnRecord(key="a"),
                TurnRecord(key="t", tenant_scope=True),
                TurnRecord(key="a"),
            ]
            records = client.records("c")
            value, revision = records.get_json("a")
            assert value == 3
            assert client.tenant_records().get_json("t").value == 2

            *_, last = client.chat(ChatRequest(conversation_id="c", agent="late", content="?"))
            assert last.finished.turn.state == TurnState.TURN_STATE_FAILED
            (answer,) = last.finished.messages
            assert answer.content == "noted."
            assert answer.status == MessageStatus.MESSAGE_STATUS_INCOMPLETE
            assert [(r.key, r.revision) for r in records.list()] == [("a", revision)]


def test_limit_of_a_conversation(tmp_path: Path) -> None:
    """The error says how large the records would be. Deletions succeed."""
    with (
        parleyd(tmp_path, "", "--max-record-bytes=1KiB") as server,
        Client(server.address) as client,
    ):
        client.load_conversation(LoadConversationRequest(conversation_id="c"))
        records = client.records("c")
        records.put("a", bytes(600))
        with pytest.raises(Error) as raised:
            records.put("b", bytes(500))
        assert raised.value.reason == "RECORDS_FULL"
        assert raised.value.metadata == {"bytes": "1358", "limit": "1024"}
        records.delete("a")
        records.put("b", bytes(500))


PAGES = {"": ("a", "one"), "one": ("", "two"), "two": ("b", "")}
"""The keys of each page, by its token, and the token of the next page."""


class FlakyRecords:
    """Handlers that fail the first calls with UNAVAILABLE."""

    def __init__(self, failures: int) -> None:
        """Fail this many calls."""
        self._failures = failures
        self.requests: list[Any] = []

    def write(self, request: WriteRecordsRequest, context: Any) -> WriteRecordsResponse:
        """Answer WriteRecords."""
        self._record(request, context)
        return WriteRecordsResponse(revision=2**60, tenant_revision=7)

    def list(self, request: ListRecordsRequest, context: Any) -> ListRecordsResponse:
        """Answer ListRecords with three pages; the second is empty."""
        self._record(request, context)
        keys, following = PAGES[request.page_token]
        records = [Record(key=key) for key in keys]
        return ListRecordsResponse(records=records, next_page_token=following)

    def _record(self, request: Any, context: Any) -> None:
        self.requests.append(request)
        if len(self.requests) <= self._failures:
            fail(context, grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")


@KINDS
def test_retries(*, asynchronous: bool) -> None:
    """All attempts of a write have one request_id. A revision may have 63 bits."""
    flaky = FlakyRecords(2)
    with (
        serving(WriteRecords=flaky.write) as address,
        BothKinds(address, asynchronous=asynchronous) as client,
    ):
        assert client.records("c").put("a", bytes(3 << 20)) == 2**60
        assert client.tenant_records().put("a", b"1") == 7
        assert client.records("c").put("a", b"1", request_id="mine") == 2**60
    ids = [request.request_id for request in flaky.requests]
    assert len(ids) == 5
    assert len(ids[0]) == 36
    assert ids[0] == ids[1] == ids[2] != ids[3]
    assert ids[4] == "mine"


@KINDS
def test_pages(*, asynchronous: bool) -> None:
    """The iterator reads pages until one has no token. Their requests differ only in the token."""
    flaky = FlakyRecords(0)
    with (
        serving(ListRecords=flaky.list) as address,
        BothKinds(address, asynchronous=asynchronous) as client,
    ):
        records = client.records("c").list("p", after_key="pa", descending=True, page_size=2)
        assert [record.key for record in records] == ["a", "b"]
    first = ListRecordsRequest(
        conversation_id="c", prefix="p", after_key="pa", descending=True, page_size=2
    )
    wanted = []
    for token in ("", "one", "two"):
        first.page_token = token
        wanted.append(first.SerializeToString())
    assert [request.SerializeToString() for request in flaky.requests] == wanted


def test_a_page_is_read_when_it_is_needed() -> None:
    """A caller that stops early makes no more calls."""
    flaky = FlakyRecords(0)
    with serving(ListRecords=flaky.list) as address, Client(address) as client:
        listing = client.records("c").list()
        assert not flaky.requests
        assert next(listing).key == "a"
    assert len(flaky.requests) == 1


def test_records_that_did_not_fit(client: BothKinds, conversation: str) -> None:
    """The reply of a call names the keys of large records. The iterator gets all of them."""
    records = client.records(conversation)
    for key in ("a", "b", "c"):
        records.put(key, key.encode() * (2 << 20))
    records.write([RecordWrite(key=f"small/{number:02}") for number in range(99)])
    request = GetRecordsRequest(conversation_id=conversation, keys=["b", "none", "a"])
    reply = client.get_records(request)
    assert [record.key for record in reply.records] == ["b"]
    assert list(reply.omitted_keys) == ["a"]
    small = [f"small/{number:02}" for number in range(99)]
    got = list(records.get_all(["b", "none", "a", *small, "c", "b"]))
    assert sorted(record.key for record in got) == ["a", "b", "c", *small]
    assert {len(r.value) for r in got if r.key in "abc"} == {2 << 20}
    assert list(records.get_all([])) == []
    with pytest.raises(TypeError, match="keys is the string 'abc', want several keys"):
        records.get_all("abc")
    assert [len(record.value) for record in records.list(page_size=3)][:3] == [2 << 20] * 3


@KINDS
def test_a_server_that_returns_no_record(*, asynchronous: bool) -> None:
    """The iterator ends with an error."""

    def omit(request: GetRecordsRequest, _: Any) -> GetRecordsResponse:
        return GetRecordsResponse(omitted_keys=request.keys)

    with (
        serving(GetRecords=omit) as address,
        BothKinds(address, asynchronous=asynchronous) as client,
        pytest.raises(Error, match="none of the records"),
    ):
        list(client.records("c").get_all(f"{number}" for number in range(150)))
