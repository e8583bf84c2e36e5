"""How calls and streams sign in, with a fake server that records their headers."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from fake import HELLO, LIMIT, TURN, fail, hang, reply, serving, text_of

from parley import (
    AsyncClient,
    AsyncStream,
    ChangeKind,
    Client,
    ConversationChange,
    Error,
    ExportConversationsRequest,
    ExportConversationsResponse,
    GetConversationRequest,
    GetConversationResponse,
    ImportConversationsResponse,
    Stream,
    WatchConversationsRequest,
    WatchConversationsResponse,
    _sign_in,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

GET = GetConversationRequest(conversation_id="c")
SECRET = "5ecret"  # noqa: S105 - not a real one
both = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "asyncio"])

METHODS = ("get", "chat", "watch", "export", "import")


class Recorder:
    """The handlers of a server that records the headers of calls and checks their tokens."""

    def __init__(self) -> None:
        """Accept every token."""
        self.valid: set[str] | None = None
        self.calls: list[tuple[str, str]] = []  # token and tenant
        self.replaced: set[str] = set()  # Streams with these tokens end when they are read.

    def _begin(self, context: Any) -> str:
        headers: dict[str, list[str]] = {}
        for key, value in context.invocation_metadata():
            headers.setdefault(key, []).append(value)
        token = ",".join(headers.get("authorization", [])).removeprefix("Bearer ")
        self.calls.append((token, ",".join(headers.get("parley-tenant", []))))
        if self.valid is not None and token not in self.valid:
            fail(context, grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")
        return token

    def _end(self, context: Any, token: str) -> None:
        if token in self.replaced:
            fail(context, grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")

    def tokens(self) -> list[str]:
        """Return the tokens of all calls."""
        return [token for token, _ in self.calls]

    def get(self, _: Any, context: Any) -> GetConversationResponse:
        """Answer GetConversation."""
        self._begin(context)
        return GetConversationResponse()

    def chat(self, _: Any, context: Any) -> Iterator[Any]:
        """Answer Chat with a turn; stop after its first text if the token was replaced."""
        token = self._begin(context)
        yield from map(reply, TURN[:2])
        self._end(context, token)
        yield from map(reply, TURN[2:])

    def resume(self, request: Any, context: Any) -> Iterator[Any]:
        """Answer ResumeTurn with one event, if the token was replaced, or with the rest."""
        token = self._begin(context)
        rest = TURN[request.after_index :]
        yield reply(rest[0])
        self._end(context, token)
        yield from map(reply, rest[1:])

    def watch(self, request: Any, context: Any) -> Iterator[WatchConversationsResponse]:
        """Answer WatchConversations with one change, whose cursor counts the streams."""
        token = self._begin(context)
        yield WatchConversationsResponse(
            change=ConversationChange(
                kind=ChangeKind.CHANGE_KIND_HEARTBEAT, cursor=request.cursor + "1"
            )
        )
        self._end(context, token)
        hang(context)

    def export(self, _: Any, context: Any) -> Iterator[ExportConversationsResponse]:
        """Answer ExportConversations."""
        token = self._begin(context)
        yield ExportConversationsResponse()
        self._end(context, token)

    def upload(self, requests: Any, context: Any) -> ImportConversationsResponse:
        """Answer ImportConversations."""
        self._begin(context)
        list(requests)
        return ImportConversationsResponse()


@contextmanager
def recording() -> Iterator[tuple[Recorder, str]]:
    """Serve a recorder; yield it and its address."""
    recorder = Recorder()
    with serving(
        GetConversation=recorder.get,
        Chat=recorder.chat,
        ResumeTurn=recorder.resume,
        WatchConversations=recorder.watch,
        ExportConversations=recorder.export,
        ImportConversations=recorder.upload,
    ) as address:
        yield recorder, address


@pytest.fixture
def server() -> Iterator[tuple[Recorder, str]]:
    """Yield a recorder and its address."""
    with recording() as server:
        yield server


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOKEN", "TOKEN_FILE", "TENANT", "TLS_CA_FILE", "TLS_CERT_FILE", "TLS_KEY_FILE"):
        monkeypatch.delenv(f"PARLEY_{name}", raising=False)


class Sequence:
    """A function that returns tokens in order, and then the last one again and again."""

    def __init__(self, *tokens: str) -> None:
        """Return these tokens."""
        self._tokens = tokens
        self.asked = 0

    def __call__(self) -> str:
        """Return the next token."""
        self.asked += 1
        return self._tokens[min(self.asked, len(self._tokens)) - 1]

    async def wait(self) -> str:
        """Return the next token after another step of the event loop."""
        await asyncio.sleep(0)
        return self()


def started(client: Any, method: str) -> Any:
    """Make a call with a client of either kind; return its reply, its stream or an awaitable."""
    match method:
        case "get":
            return client.get_conversation(GET)
        case "import":
            return client.import_conversations([])
        case "chat":
            return client.chat(HELLO)
        case "watch":
            return client.watch_conversations(WatchConversationsRequest())
    return client.export_conversations(ExportConversationsRequest())


def call(method: str, address: str, *, asynchronous: bool, count: int = 9, **settings: Any) -> Any:
    """Make one call with a new client. For a stream, return its first messages."""

    async def call_async() -> Any:
        async with AsyncClient(address, **settings) as client:
            result = started(client, method)
            if not isinstance(result, AsyncStream):
                return await result
            received = []
            async for item in result:
                received.append(item)
                if len(received) == count:
                    break
            return received

    if asynchronous:
        return asyncio.run(asyncio.wait_for(call_async(), LIMIT))
    with Client(address, **settings) as client:
        result = started(client, method)
        return list(islice(result, count)) if isinstance(result, Stream) else result


SETTINGS: dict[str, tuple[dict[str, str], dict[str, Any], tuple[str, str]]] = {
    "none": ({}, {}, ("", "")),
    "a token": ({}, {"token": "t"}, ("t", "")),
    "a function": ({}, {"token": lambda: "t"}, ("t", "")),
    "a tenant": ({}, {"tenant": "acme"}, ("", "acme")),
    "both": ({}, {"token": "t", "tenant": "acme"}, ("t", "acme")),
    "the environment": ({"PARLEY_TOKEN": "e", "PARLEY_TENANT": "globex"}, {}, ("e", "globex")),
    "a file of the environment": ({"PARLEY_TOKEN_FILE": "FILE"}, {}, ("f", "")),
    "a file": ({}, {"token_file": "FILE"}, ("f", "")),
    "arguments before the environment": (
        {"PARLEY_TOKEN": "e", "PARLEY_TENANT": "globex"},
        {"token_file": "FILE", "tenant": "acme"},
        ("f", "acme"),
    ),
    "a token before a file of the environment": (
        {"PARLEY_TOKEN_FILE": "no/such/file"},
        {"token": "t"},
        ("t", ""),
    ),
    "nothing in spite of the environment": (
        {"PARLEY_TOKEN": "e", "PARLEY_TENANT": "globex"},
        {"token": "", "tenant": ""},
        ("", ""),
    ),
    "an empty environment": ({"PARLEY_TOKEN": "", "PARLEY_TENANT": ""}, {}, ("", "")),
}


@both
@pytest.mark.parametrize("case", SETTINGS)
def test_headers(
    case: str,
    server: tuple[Recorder, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    asynchronous: bool,
) -> None:
    """Every kind of call has the token and the tenant of the settings."""
    recorder, address = server
    environment, settings, want = SETTINGS[case]
    (tmp_path / "token").write_text(" f\r\n")
    place = {"FILE": str(tmp_path / "token")}
    for key, value in environment.items():
        monkeypatch.setenv(key, place.get(value, value))
    settings = {key: place.get(str(value), value) for key, value in settings.items()}
    for method in METHODS:
        call(method, address, asynchronous=asynchronous, count=1, **settings)
    assert recorder.calls == [want] * len(METHODS)


@both
def test_headers_of_a_call(server: tuple[Recorder, str], *, asynchronous: bool) -> None:
    """They replace those of the client, and then it does not ask for a token."""
    recorder, address = server
    source = Sequence("t")
    own = (("authorization", "Bearer own"), ("parley-tenant", "other"), ("x", "y"))

    async def made() -> None:
        async with AsyncClient(address, token=source, tenant="acme") as client:
            await client.get_conversation(GET, metadata=own)
            await client.get_conversation(GET, metadata=own[1:])

    if asynchronous:
        asyncio.run(made())
    else:
        with Client(address, token=source, tenant="acme") as client:
            client.get_conversation(GET, metadata=own)
            client.get_conversation(GET, metadata=own[1:])
    assert recorder.calls == [("own", "other"), ("t", "other")]
    assert source.asked == 1


INVALID: dict[str, tuple[dict[str, str], dict[str, Any], str]] = {
    "a line break": ({}, {"token": SECRET + "\n"}, "token: the token contains a space, a line"),
    "a second header": ({}, {"token": SECRET + "\r\nx: y"}, "token: the token contains a space"),
    "its scheme": ({}, {"token": "Bearer " + SECRET}, 'without "Bearer"'),
    "not ASCII": ({}, {"token": SECRET + "é"}, "printable ASCII"),
    "a control character": ({}, {"token": SECRET + "\x7f"}, "printable ASCII"),
    "too long": ({}, {"token": SECRET * 3000}, "longer than 12288 bytes"),
    "of the environment": ({"PARLEY_TOKEN": SECRET + "\n"}, {}, "PARLEY_TOKEN: the token contains"),
    "two arguments": (
        {},
        {"token": SECRET, "token_file": "f"},
        "token and token_file are both set",
    ),
    "two variables": (
        {"PARLEY_TOKEN": SECRET, "PARLEY_TOKEN_FILE": "f"},
        {},
        "PARLEY_TOKEN and PARLEY_TOKEN_FILE are both set",
    ),
    "a tenant": ({}, {"tenant": "-acme"}, "tenant is '-acme', want 1 to 64 letters"),
    "a long tenant": ({}, {"tenant": "a" * 65}, "want 1 to 64 letters"),
    "a tenant with a line break": ({}, {"tenant": "a\n"}, r"tenant is 'a\\n', want"),
}


@both
@pytest.mark.parametrize("case", INVALID)
def test_invalid_settings(
    case: str, monkeypatch: pytest.MonkeyPatch, *, asynchronous: bool
) -> None:
    """A client with them is not made, and the error does not contain the token."""
    environment, settings, text = INVALID[case]
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    kind: Any = AsyncClient if asynchronous else Client
    with pytest.raises(ValueError, match=text) as raised:
        kind("127.0.0.1:1", **settings)
    assert SECRET not in repr(raised.value)


@pytest.mark.parametrize(
    "content",
    ["", " \n", SECRET + " x", f"{SECRET}\n{SECRET}\n", SECRET * 9999],
    ids=["empty", "blank", "two words", "two lines", "long"],
)
def test_invalid_files(content: str, tmp_path: Path) -> None:
    """A client with them is not made. The error names the file, and does not contain the token."""
    path = tmp_path / "token"
    path.write_text(content)
    with pytest.raises(ValueError, match=str(path)) as raised:
        Client("127.0.0.1:1", token_file=path)
    assert SECRET not in repr(raised.value)
    with pytest.raises(FileNotFoundError):
        Client("127.0.0.1:1", token_file=tmp_path / "none")


class SealedError(grpc.RpcError):
    """An error of the function that returns the token, which could be mistaken for a call's."""


@both
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("failure", [SealedError("vault"), ValueError("x"), KeyError("k")])
def test_errors_of_the_function(
    method: str, failure: Exception, server: tuple[Recorder, str], *, asynchronous: bool
) -> None:
    """A call raises them unchanged and is not sent."""
    recorder, address = server

    def source() -> str:
        raise failure

    with pytest.raises(type(failure)) as raised:
        call(method, address, asynchronous=asynchronous, token=source)
    assert raised.value is failure
    assert recorder.calls == []


RESULTS: dict[str, tuple[Any, type[Exception], str]] = {
    "invalid": (SECRET + "\n", ValueError, "printable ASCII"),
    "empty": ("", ValueError, "the token is empty"),
    "bytes": (SECRET.encode(), TypeError, "must be str, not bytes"),
    "None": (None, TypeError, "must be str, not NoneType"),
}


@both
@pytest.mark.parametrize("case", RESULTS)
def test_invalid_results_of_the_function(
    case: str, server: tuple[Recorder, str], *, asynchronous: bool
) -> None:
    """A call fails, is not sent, and the error does not contain the token."""
    recorder, address = server
    result, kind, text = RESULTS[case]
    with pytest.raises(kind, match=text) as raised:
        call("get", address, asynchronous=asynchronous, token=lambda: result)
    assert SECRET not in repr(raised.value)
    assert recorder.calls == []


@pytest.mark.parametrize("method", METHODS)
def test_async_function(method: str, server: tuple[Recorder, str]) -> None:
    """The asyncio client awaits it. The sync client says that it cannot."""
    recorder, address = server
    call(method, address, asynchronous=True, count=1, token=Sequence("t").wait)
    assert recorder.tokens() == ["t"]
    with pytest.raises(TypeError, match="use AsyncClient"):
        call(method, address, asynchronous=False, token=Sequence("t").wait)
    assert recorder.tokens() == ["t"]


@both
def test_the_function_is_called_for_each_call(
    server: tuple[Recorder, str], *, asynchronous: bool
) -> None:
    """Each call has the token that the function returns for it."""
    recorder, address = server
    source = Sequence("a", "b", "c")

    async def made() -> None:
        async with AsyncClient(address, token=source.wait) as client:
            for _ in range(3):
                await client.get_conversation(GET)

    if asynchronous:
        asyncio.run(made())
    else:
        with Client(address, token=source) as client:
            for _ in range(3):
                client.get_conversation(GET)
    assert recorder.tokens() == ["a", "b", "c"]


REPLACED: dict[str, tuple[tuple[str, ...], list[str], bool]] = {
    "another token": (("old", "new"), ["old", "new"], True),
    "the same token": (("old",), ["old"], False),
    "another one each time": (("old", "a", "b", "c", "new"), ["old", "a"], False),
}


@both
@pytest.mark.parametrize("method", ["get", "chat", "watch", "export"])
@pytest.mark.parametrize("case", REPLACED)
def test_a_refused_call_is_sent_again(
    case: str, method: str, server: tuple[Recorder, str], *, asynchronous: bool
) -> None:
    """It is sent again, once, if there is another token."""
    recorder, address = server
    recorder.valid = {"new"}
    tokens, want, accepted = REPLACED[case]
    source = Sequence(*tokens)
    settings: Any = {"token": source.wait if asynchronous else source, "count": 1}
    if accepted:
        call(method, address, asynchronous=asynchronous, **settings)
    else:
        with pytest.raises(Error) as raised:
            call(method, address, asynchronous=asynchronous, **settings)
        assert raised.value.code is grpc.StatusCode.UNAUTHENTICATED
        assert raised.value.reason == "UNAUTHENTICATED"
    assert recorder.tokens() == want
    assert source.asked == 2, "the function was asked again for a token that it had returned"


@both
def test_an_upload_is_not_sent_again(server: tuple[Recorder, str], *, asynchronous: bool) -> None:
    """Its requests may have been read."""
    recorder, address = server
    recorder.valid = {"new"}
    with pytest.raises(Error, match="UNAUTHENTICATED"):
        call("import", address, asynchronous=asynchronous, token=Sequence("old", "new"))
    assert recorder.tokens() == ["old"]


@both
def test_a_chat_resumes_with_another_token(
    server: tuple[Recorder, str], *, asynchronous: bool
) -> None:
    """No event is missing or doubled, and any number of tokens may expire."""
    recorder, address = server
    recorder.replaced = {"first", "second"}
    source = Sequence("first", "second", "third")
    events = call("chat", address, asynchronous=asynchronous, token=source)
    assert [event.index for event in events] == [1, 2, 3, 4]
    assert text_of(events) == "hello there"
    assert recorder.tokens() == ["first", "second", "third"]


@both
def test_a_watch_resumes_with_another_token(
    server: tuple[Recorder, str], *, asynchronous: bool
) -> None:
    """It resumes after the last change."""
    recorder, address = server
    recorder.replaced = {"first", "second"}
    source = Sequence("first", "second", "third")
    settings: Any = {"token": source.wait if asynchronous else source, "count": 3}
    changes = call("watch", address, asynchronous=asynchronous, **settings)
    assert [change.cursor for change in changes] == ["1", "11", "111"]
    assert recorder.tokens() == ["first", "second", "third"]


@both
@pytest.mark.parametrize("method", ["chat", "watch", "export"])
@pytest.mark.parametrize("tokens", [("old",), ("old", "bad", "other")], ids=["same", "refused"])
def test_a_stream_without_a_valid_token_fails(
    method: str, tokens: tuple[str, ...], server: tuple[Recorder, str], *, asynchronous: bool
) -> None:
    """It fails at once with UNAUTHENTICATED. It tries at most one other token."""
    recorder, address = server
    recorder.valid = recorder.replaced = {"old"}
    with pytest.raises(Error) as raised:
        call(method, address, asynchronous=asynchronous, token=Sequence(*tokens))
    assert raised.value.reason == "UNAUTHENTICATED"
    # An export does not resume, because it has begun.
    want = tokens[:1] if method == "export" else tokens[:2]
    assert recorder.tokens() == list(want)


@both
def test_a_stream_raises_the_error_of_the_function(
    server: tuple[Recorder, str], *, asynchronous: bool
) -> None:
    """It does so, too, if the function fails when the stream resumes."""
    recorder, address = server
    recorder.replaced = {"t"}
    failure, asked = ValueError("the vault is sealed"), []

    def source() -> str:
        asked.append(1)
        if len(asked) == 2:
            raise failure
        return "t"

    with pytest.raises(ValueError, match="sealed") as raised:
        call("chat", address, asynchronous=asynchronous, token=source)
    assert raised.value is failure


def test_token_file(server: tuple[Recorder, str], tmp_path: Path) -> None:
    """The client reads the file again when it has changed or its token is refused."""
    recorder, address = server
    path = tmp_path / "token"

    def expect(token: str) -> None:
        client.get_conversation(GET)
        assert recorder.tokens()[-1] == token

    def replace(token: str) -> None:
        (tmp_path / "next").write_text(token)
        (tmp_path / "next").replace(path)

    path.write_text("first\n")
    with Client(address, token_file=path) as client:
        expect("first")
        replace("second\n")
        recorder.valid = {"second"}
        expect("second")
        assert recorder.tokens() == ["first", "second"], "the old token was sent after the change"

        # The file is written in place, and seems unchanged.
        state = path.stat()
        path.write_text("third!\n")
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
        recorder.valid = {"third!"}
        expect("third!")

        # While the file is not valid, the last token is used.
        for content in ("", "\n", "a b", "x" * 99999):
            path.write_text(content)
            expect("third!")
        path.unlink()
        expect("third!")
        recorder.valid = {"fourth"}
        with pytest.raises(Error, match="UNAUTHENTICATED: the server refused the token") as raised:
            client.get_conversation(GET)
        assert raised.value.reason == "UNAUTHENTICATED"
        assert isinstance(raised.value.__cause__, FileNotFoundError)
        path.write_text("fourth")
        expect("fourth")


def test_a_pipe_is_read_once(server: tuple[Recorder, str], tmp_path: Path) -> None:
    """A shell passes a token as a pipe, which has no content after it was read."""
    recorder, address = server
    recorder.valid = set()
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with ThreadPoolExecutor() as pool:
        pool.submit(path.write_text, "t")
        with Client(address, token_file=path) as client:
            for _ in range(2):
                with pytest.raises(Error, match="UNAUTHENTICATED: unauthenticated"):
                    client.get_conversation(GET)
    assert recorder.tokens() == ["t", "t"]


def test_threads_share_a_token_file(server: tuple[Recorder, str], tmp_path: Path) -> None:
    """No call fails while the file is replaced, and none has a token that never existed."""
    recorder, address = server
    path, written = tmp_path / "token", [f"t{i}" for i in range(30)]
    path.write_text(written[0])
    stop, failures = threading.Event(), []
    with Client(address, token_file=path) as client:

        def work() -> None:
            while not stop.is_set():
                try:
                    client.get_conversation(GET)
                except Exception as failure:  # noqa: BLE001 - reported below
                    failures.append(failure)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for token in written[1:]:
            (tmp_path / "next").write_text(token)
            (tmp_path / "next").replace(path)
            client.get_conversation(GET)
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures
    assert set(recorder.tokens()) <= set(written)
    assert recorder.tokens()[-1] == written[-1]


def in_async_client(
    address: str,
    token: Callable[[], Awaitable[str]],
    work: Callable[[AsyncClient], Awaitable[None]],
) -> None:
    """Run work with an asyncio client."""

    async def run() -> None:
        async with AsyncClient(address, token=token) as client:
            await work(client)

    asyncio.run(asyncio.wait_for(run(), LIMIT))


class Stuck:
    """An async function that never returns a token."""

    def __init__(self) -> None:
        """Start without calls."""
        self.asked, self.cancelled = asyncio.Event(), asyncio.Event()

    async def __call__(self) -> str:
        """Wait until the task is cancelled."""
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        return ""


def test_the_timeout_includes_the_function(server: tuple[Recorder, str]) -> None:
    """A call and a stream fail with DEADLINE_EXCEEDED, and the function is cancelled."""
    recorder, address = server

    async def get(client: AsyncClient) -> None:
        await client.get_conversation(GET, timeout=0.05)

    async def chat(client: AsyncClient) -> None:
        await anext(aiter(client.chat(HELLO, timeout=0.05)))

    for step in (get, chat):
        stuck = Stuck()

        async def work(client: AsyncClient, step: Any = step, stuck: Stuck = stuck) -> None:
            with pytest.raises(Error, match="DEADLINE_EXCEEDED: the function token did not"):
                await step(client)
            await stuck.cancelled.wait()

        in_async_client(address, stuck, work)
    assert recorder.calls == []


def test_a_closed_stream_does_not_wait_for_the_function(server: tuple[Recorder, str]) -> None:
    """The loop ends at once, and no call is made."""
    recorder, address = server
    stuck = Stuck()

    async def work(client: AsyncClient) -> None:
        stream = client.chat(HELLO)
        loop = asyncio.ensure_future(anext(aiter(stream), None))
        await stuck.asked.wait()
        await stream.aclose()
        assert await loop is None
        await stuck.cancelled.wait()

    in_async_client(address, stuck, work)
    assert recorder.calls == []


@pytest.mark.parametrize("method", ["get", "chat"])
def test_a_cancelled_task_does_not_wait_for_the_function(
    method: str, server: tuple[Recorder, str]
) -> None:
    """It raises CancelledError, the function is cancelled, and no call is made."""
    recorder, address = server
    stuck = Stuck()

    async def work(client: AsyncClient) -> None:
        async def step() -> None:
            if method == "get":
                await client.get_conversation(GET)
            else:
                await anext(aiter(client.chat(HELLO)))

        task = asyncio.ensure_future(step())
        await stuck.asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await stuck.cancelled.wait()

    in_async_client(address, stuck, work)
    assert recorder.calls == []


def test_tokens_are_in_no_text(
    server: tuple[Recorder, str], caplog: pytest.LogCaptureFixture
) -> None:
    """No error, representation or log entry contains the token."""
    recorder, address = server
    recorder.valid = set()
    caplog.set_level(logging.DEBUG)
    texts = []
    for asynchronous in (False, True):
        with pytest.raises(Error) as raised:
            call("get", address, asynchronous=asynchronous, token=SECRET)
        error = raised.value
        texts += [str(error), repr(error), repr(error.__cause__), repr(vars(error))]
    assert recorder.tokens() == [SECRET, SECRET]
    client = Client(address, token=SECRET)
    texts += [repr(client), repr(client.chat(HELLO)), repr(vars(client)), caplog.text]
    texts += [repr(vars(_sign_in.SignIn(SECRET)))]
    client.close()
    assert [text for text in texts if SECRET in text] == []


def test_other_machines_receive_no_token_in_plaintext() -> None:
    """The client begins with a TLS handshake, unless the caller chose plaintext."""
    handshake = 22  # the type of the first record of TLS
    for plaintext, first in ((None, handshake), (True, b"PRI"[0])):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            # The client does not recognize this target as this machine.
            target = f"ipv4:127.0.0.1:{listener.getsockname()[1]}"
            with Client(target, token=SECRET, plaintext=plaintext) as client:
                stream = client.chat(HELLO)
                thread = threading.Thread(target=lambda s=stream: list(s))
                thread.start()
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(LIMIT)
                    received = connection.recv(1)
                stream.close()
                client.close()
                thread.join()
        assert received == bytes([first])
