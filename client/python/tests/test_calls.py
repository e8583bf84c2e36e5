"""Calls that are one gRPC call each: retries, errors, options, and the list of methods."""

from __future__ import annotations

import asyncio
import inspect
import json
import pickle
import re
import socket
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import grpc
import pytest
from fake import LIMIT, fail, hang, serving
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

import parley
import parley.v1
from parley import (
    AppendMessagesRequest,
    AppendMessagesResponse,
    AsyncClient,
    AsyncStream,
    CallOptions,
    Client,
    Conversation,
    Error,
    FieldViolation,
    GetConversationRequest,
    GetConversationResponse,
    ImportConversationsRequest,
    ImportConversationsResponse,
    RevisionMismatchError,
    Stream,
    UpdateConversationRequest,
    _aio_status,
    _error,
    _options,
)
from parley.v1 import (
    admin_service_pb2,
    conversation_service_pb2,
    interaction_log_service_pb2,
    record_service_pb2,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

PACKAGE = Path(parley.__file__).parent
METHODS = [
    method
    for module in (
        conversation_service_pb2,
        interaction_log_service_pb2,
        admin_service_pb2,
        record_service_pb2,
    )
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
GET = GetConversationRequest(conversation_id="c")


def snake(name: str) -> str:
    """Return a name in Python's spelling."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_every_call_has_a_method(client: type, method: Any) -> None:
    """Each has the request and reply types of the API, and a docstring."""
    function = getattr(client, "appender" if method.name == "AppendStream" else snake(method.name))
    assert inspect.getdoc(function)
    if method.name == "AppendStream":
        assert function.__annotations__["return"] == client.__name__.replace("Client", "Appender")
        return
    hints = function.__annotations__
    request, reply = method.input_type.name, method.output_type.name
    argument = hints.get("request", hints.get("requests"))
    if method.client_streaming:
        assert f"Iterable[{request}]" in argument
    else:
        assert argument == request
    if method.server_streaming:
        kind = AsyncStream if client is AsyncClient else Stream
        item = {"Chat": "TurnEvent", "ResumeTurn": "TurnEvent"}.get(method.name, reply)
        item = "ConversationChange" if method.name == "WatchConversations" else item
        assert hints["return"] == f"{kind.__name__}[{item}]"
    else:
        assert hints["return"] == reply
        assert inspect.iscoroutinefunction(function) is (client is AsyncClient)


def test_every_message_is_exported() -> None:
    """So is every enum. __all__ is sorted and contains only existing names."""
    exported = set(parley.__all__)
    for path in sorted((PACKAGE / "v1").glob("*_pb2.py")):
        module = getattr(__import__(f"parley.v1.{path.stem}").v1, path.stem)
        descriptor = module.DESCRIPTOR
        for name in (*descriptor.message_types_by_name, *descriptor.enum_types_by_name):
            assert name in exported
            assert getattr(parley, name) is getattr(module, name)
    assert parley.__all__ == sorted(exported)
    for name in exported:
        assert inspect.getdoc(getattr(parley, name)), f"{name} has no docstring"


def test_retried_methods_equal_those_of_the_go_client() -> None:
    """The service config of this package is a copy of the Go client's."""
    of_go = Path(__file__).parents[2] / "service_config.json"
    ours = json.loads((PACKAGE / "service_config.json").read_text("utf-8"))
    assert ours == json.loads(of_go.read_text("utf-8"))
    (config,) = ours["methodConfig"]
    retried = {(name["service"], name["method"]) for name in config["name"]}
    known = {(method.containing_service.full_name, method.name) for method in METHODS}
    assert retried <= known
    for method in METHODS:  # A call with a request_id may be sent again.
        if "request_id" in method.input_type.fields_by_name:
            assert (method.containing_service.full_name, method.name) in retried


class Flaky:
    """Handlers that fail the first calls with UNAVAILABLE."""

    def __init__(self, failures: int) -> None:
        """Fail this many calls."""
        self._failures = failures
        self.requests: list[Any] = []

    def append(self, request: Any, context: Any) -> AppendMessagesResponse:
        """Answer AppendMessages."""
        self._record(request, context)
        return AppendMessagesResponse(conversation=Conversation(id="c"))

    def update(self, request: Any, context: Any) -> None:
        """Answer UpdateConversation."""
        self._record(request, context)

    def _record(self, request: Any, context: Any) -> None:
        self.requests.append(request)
        if len(self.requests) <= self._failures:
            fail(context, grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")


def test_retries_carry_one_request_id() -> None:
    """The client sets it on a copy of the request."""
    for asynchronous in (False, True):
        flaky, request = Flaky(3), AppendMessagesRequest(conversation_id="c")
        with serving(AppendMessages=flaky.append) as address:
            reply = call(address, "append_messages", request, asynchronous=asynchronous)
        assert reply.conversation.id == "c"
        ids = [request.request_id for request in flaky.requests]
        assert len(ids) == 4
        assert len(set(ids)) == 1
        assert re.fullmatch(r"[0-9a-f-]{36}", ids[0])
        assert not request.request_id


def test_a_request_id_of_the_caller_is_sent() -> None:
    """The caller needs it to retry after its own restart."""
    flaky = Flaky(0)
    with serving(AppendMessages=flaky.append) as address:
        call(address, "append_messages", AppendMessagesRequest(request_id="mine"))
    assert flaky.requests[0].request_id == "mine"


def test_retries_end() -> None:
    """After five attempts the call raises the server's error."""
    flaky = Flaky(99)
    with serving(AppendMessages=flaky.append) as address, pytest.raises(Error) as raised:
        call(address, "append_messages", AppendMessagesRequest())
    assert raised.value.reason == "SHUTTING_DOWN"
    assert len(flaky.requests) == 5


def test_writes_without_request_id_are_sent_once() -> None:
    """The server may have made the change although the call failed."""
    flaky = Flaky(1)
    with serving(UpdateConversation=flaky.update) as address, pytest.raises(Error) as raised:
        call(address, "update_conversation", UpdateConversationRequest())
    assert raised.value.code is grpc.StatusCode.UNAVAILABLE
    assert len(flaky.requests) == 1


def call(
    address: str, name: str, request: Any, *, asynchronous: bool = False, **options: Any
) -> Any:
    """Make one call with a new client."""

    async def make() -> Any:
        async with AsyncClient(address) as client:
            return await getattr(client, name)(request, **options)

    if asynchronous:
        return asyncio.run(make())
    with Client(address) as client:
        return getattr(client, name)(request, **options)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "asyncio"])
def test_no_server(*, asynchronous: bool) -> None:
    """Calls and streams fail soon."""
    with serving() as address:
        pass
    with pytest.raises(Error) as raised:
        call(address, "get_conversation", GET, asynchronous=asynchronous)
    assert raised.value.code is grpc.StatusCode.UNAVAILABLE
    assert raised.value.reason == ""
    assert isinstance(raised.value.__cause__, grpc.RpcError)

    async def chat() -> None:
        async with AsyncClient(address) as client:
            await anext(client.chat(parley.ChatRequest()))

    with pytest.raises(Error) as raised, Client(address) as client:
        asyncio.run(chat()) if asynchronous else next(client.chat(parley.ChatRequest()))
    assert raised.value.code is grpc.StatusCode.UNAVAILABLE
    assert "nothing new" not in raised.value.message


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "asyncio"])
def test_options_reach_grpc(*, asynchronous: bool) -> None:
    """The server receives metadata and timeout."""
    seen: dict[str, Any] = {}

    def get(_: Any, context: grpc.ServicerContext) -> GetConversationResponse:
        seen.update(context.invocation_metadata())
        seen["left"] = context.time_remaining()
        return GetConversationResponse()

    with serving(GetConversation=get) as address:
        call(
            address,
            "get_conversation",
            GET,
            asynchronous=asynchronous,
            metadata=(("x-who", "me"),),
            timeout=50,
        )
    assert seen["x-who"] == "me"
    assert 40 < seen["left"] < 51
    assert seen["user-agent"].startswith("parley-client-python")


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "asyncio"])
def test_deadline(*, asynchronous: bool) -> None:
    """A timeout raises an Error like any other failure."""
    with (
        serving(GetConversation=lambda _, context: hang(context)) as address,
        pytest.raises(Error) as raised,
    ):
        call(address, "get_conversation", GET, asynchronous=asynchronous, timeout=0.1)
    assert raised.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


class Importer:
    """Handlers that count or refuse imported requests."""

    def count(self, requests: Any, _: Any) -> ImportConversationsResponse:
        """Answer ImportConversations."""
        return ImportConversationsResponse(imported_count=sum(1 for _ in requests))

    def refuse(self, requests: Any, context: Any) -> None:
        """Refuse the first request."""
        next(requests)
        fail(context, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")


def parts(count: int) -> Iterator[ImportConversationsRequest]:
    """Yield requests."""
    for _ in range(count):
        yield ImportConversationsRequest()


async def async_parts(count: int) -> AsyncIterator[ImportConversationsRequest]:
    """Yield requests."""
    for part in parts(count):
        yield part


def broken_parts() -> Iterator[ImportConversationsRequest]:
    """Yield a request and raise."""
    yield ImportConversationsRequest()
    raise LookupError("the file is damaged")


def test_import() -> None:
    """All requests of sync and async iterables are sent."""
    with serving(ImportConversations=Importer().count) as address:
        assert call(address, "import_conversations", parts(3)).imported_count == 3
        assert call(address, "import_conversations", [*parts(2)]).imported_count == 2
        for requests in (parts(3), async_parts(3)):
            reply = call(address, "import_conversations", requests, asynchronous=True)
            assert reply.imported_count == 3


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "asyncio"])
def test_import_that_fails(*, asynchronous: bool) -> None:
    """The call raises the iterable's exception, or the server's error before the last request."""
    with (
        serving(ImportConversations=Importer().count) as address,
        pytest.raises(LookupError, match="damaged"),
    ):
        call(address, "import_conversations", broken_parts(), asynchronous=asynchronous)
    with serving(ImportConversations=Importer().refuse) as address, pytest.raises(Error) as raised:
        call(address, "import_conversations", parts(100_000), asynchronous=asynchronous)
    assert raised.value.reason == "INVALID_REQUEST"


def test_import_without_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call fails as soon as gRPC does. It does not wait for a status of a server."""
    monkeypatch.setattr(_aio_status, "STATUS_DELAY", 10 * LIMIT)

    async def run() -> None:
        async with AsyncClient("127.0.0.1:1") as client:
            await asyncio.wait_for(client.import_conversations(parts(2)), LIMIT)

    with pytest.raises(Error, match="UNAVAILABLE"):
        asyncio.run(run())


def test_error_has_all_details() -> None:
    """It has the details of Parley's status. Other details are ignored."""
    status = Status()
    for detail in (
        BadRequest(field_violations=[BadRequest.FieldViolation(field="a.b", description="bad")]),
        RetryInfo(retry_delay=Duration(seconds=1, nanos=500_000_000)),
    ):
        status.details.add().Pack(detail)
    error = _error.from_details(grpc.StatusCode.ABORTED, "busy", status.SerializeToString())
    assert error.field_violations == (FieldViolation("a.b", "bad"),)
    assert error.retry_delay == 1.5
    assert error.reason == ""
    # Details that cannot be decoded are ignored.
    error = _error.from_details(grpc.StatusCode.ABORTED, "busy", b"\xff\xff")
    assert str(error) == "ABORTED: busy"


def test_revision_mismatch_has_a_type() -> None:
    """It has the key and the revision, also in a copy and after another text."""
    info = ErrorInfo(
        reason="REVISION_MISMATCH",
        domain="parley",
        metadata={"key": "schlüssel", "current_revision": "9007199254740993"},
    )
    status = Status()
    status.details.add().Pack(info)
    error = _error.from_details(grpc.StatusCode.ABORTED, "changed", status.SerializeToString())
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - this test made it
    for each in (error, copy, error.after("call")):
        assert isinstance(each, RevisionMismatchError)
        assert (each.key, each.current_revision) == ("schlüssel", 9007199254740993)
        assert (each.code, each.reason) == (grpc.StatusCode.ABORTED, "REVISION_MISMATCH")


def test_error_can_be_pickled() -> None:
    """concurrent.futures and multiprocessing do so."""
    error = Error(grpc.StatusCode.ABORTED, "busy", reason="CONVERSATION_BUSY", retry_delay=1)
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - this test made it
    assert (str(copy), copy.retry_delay) == ("ABORTED CONVERSATION_BUSY: busy", 1)


@pytest.mark.parametrize(
    ("target", "local"),
    [
        ("localhost:50051", True),
        ("LOCALHOST", True),
        ("127.0.0.1:50051", True),
        ("127.9.9.9", True),
        ("[::1]:50051", True),
        ("::1", True),
        ("[::ffff:127.0.0.1]:1", True),
        (":50051", True),
        ("unix:/run/parley.sock", True),
        ("unix-abstract:parley", True),
        ("dns:localhost:50051", True),
        ("dns:///localhost:50051", True),
        ("dns://10.0.0.53/localhost:50051", True),
        ("", False),
        ("10.0.0.1:50051", False),
        ("[2001:db8::1]:50051", False),
        ("localhost.example.com:50051", False),
        ("dns:///parley.example.com:50051", False),
        ("xds:///localhost", False),
    ],
)
def test_plaintext_stays_on_this_machine(target: str, *, local: bool) -> None:
    """A target that cannot be parsed counts as another machine."""
    assert _options.is_local(target) is local


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "asyncio"])
@pytest.mark.parametrize("variable", ["grpc_proxy", "https_proxy", "http_proxy"])
def test_no_proxy_for_this_machine(
    variable: str, monkeypatch: pytest.MonkeyPatch, *, asynchronous: bool
) -> None:
    """A proxy of the environment gets no connection to a server on this machine."""
    for name in ("no_grpc_proxy", "no_proxy", "NO_PROXY", "grpc_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    with (
        socket.create_server(("127.0.0.1", 0)) as proxy,
        serving(GetConversation=lambda *_: GetConversationResponse()) as address,
    ):
        monkeypatch.setenv(variable, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        call(address, "get_conversation", GET, asynchronous=asynchronous, timeout=LIMIT)
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):
            proxy.accept()


def test_options_of_a_call_have_types_at_run_time() -> None:
    """Tools such as validators read them."""
    assert get_type_hints(CallOptions)["timeout"] == float | None


def test_options_of_the_caller_override_the_defaults() -> None:
    """Each option occurs once."""
    options = _options.channel_options(
        "localhost",
        [("grpc.keepalive_time_ms", 5), ("grpc.enable_http_proxy", 1), ("more", 1)],
    )
    assert dict(options)["grpc.keepalive_time_ms"] == 5
    assert dict(options)["grpc.enable_http_proxy"] == 1
    assert dict(options)["more"] == 1
    assert len(options) == len(dict(options))


def test_reconnects_while_calls_are_retried() -> None:
    """Otherwise all attempts of a call may fail after an outage, although the server is back."""
    options = dict(_options.channel_options("localhost", []))
    policy = json.loads(options["grpc.service_config"])["methodConfig"][0]["retryPolicy"]
    delay, attempts = float(policy["initialBackoff"][:-1]), policy["maxAttempts"]
    most = float(policy["maxBackoff"][:-1])
    retrying = sum(min(most, delay * policy["backoffMultiplier"] ** n) for n in range(attempts - 1))
    assert options["grpc.max_reconnect_backoff_ms"] < 1000 * retrying


def test_tls_to_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller can override it."""
    made, plaintext = [], grpc.insecure_channel

    def channel(kind: str) -> Any:
        def make(*_: Any) -> grpc.Channel:
            made.append(kind)
            return plaintext("127.0.0.1:1")

        return make

    monkeypatch.setattr(grpc, "secure_channel", channel("tls"))
    monkeypatch.setattr(grpc, "insecure_channel", channel("plaintext"))
    Client("parley.example.com:443").close()
    Client("127.0.0.1:1").close()
    Client("parley.example.com:443", plaintext=True).close()
    Client("127.0.0.1:1", credentials=grpc.ssl_channel_credentials()).close()
    assert made == ["tls", "plaintext", "plaintext", "tls"]


@pytest.mark.parametrize(
    ("metadata", "ended", "at"),
    [
        ({}, "", None),
        ({"at": "2026-11-20T08:30:00Z"}, "", None),
        ({"ended": "EVICTED"}, "EVICTED", None),
        (
            {"ended": "EVICTED", "at": "2026-11-20T08:30:00Z"},
            "EVICTED",
            datetime(2026, 11, 20, 8, 30, tzinfo=timezone.utc),
        ),
        (
            {"ended": "EXPIRED", "at": "2026-11-20T08:30:00.012345678Z"},
            "EXPIRED",
            datetime(2026, 11, 20, 8, 30, 0, 12345, tzinfo=timezone.utc),
        ),
        (
            {"ended": "DELETED", "at": "2026-11-20T08:30:00.5Z"},
            "DELETED",
            datetime(2026, 11, 20, 8, 30, 0, 500000, tzinfo=timezone.utc),
        ),
    ],
)
def test_ended(metadata: dict[str, str], ended: str, at: datetime | None) -> None:
    """An error says how and when its conversation ended."""
    error = Error(grpc.StatusCode.NOT_FOUND, "gone", metadata=metadata)
    assert (error.ended, error.ended_at) == (ended, at)
    assert (error.after("call").ended, error.after("call").ended_at) == (ended, at)
