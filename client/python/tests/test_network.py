"""Sign-in and TLS with a real server."""

from __future__ import annotations

import asyncio
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import pytest
from programs import Certificates, Server, create_token, parleyd

from parley import (
    AsyncClient,
    Client,
    Conversation,
    ConversationChange,
    CreateConversationRequest,
    DeleteInteractionsRequest,
    Error,
    GetConversationRequest,
    ListConversationsRequest,
    WatchConversationsRequest,
    _tls,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LIST = ListConversationsRequest()
EXPIRY = 8  # seconds; the server ends a stream 30 s later
CONFIG = "client_certificates: [{cn: shop, tenants: [acme], role: writer}]"
VARIABLES = ("TOKEN", "TOKEN_FILE", "TENANT", "TLS_CA_FILE", "TLS_CERT_FILE", "TLS_KEY_FILE")

both = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "asyncio"])


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(f"PARLEY_{name}", raising=False)


class Network(NamedTuple):
    """A server with TLS and sign-in, and credentials for it."""

    address: str
    certificates: Certificates
    folder: Path
    acme: str
    """A token of a writer of the tenant acme."""
    reader: str
    """A token of a reader of the tenant acme."""
    several: str
    """A token of a writer of the tenants acme and globex."""
    brief: str
    """A token of a writer of the tenant acme that expires soon."""

    def tls(self, **settings: Any) -> dict[str, Any]:
        """Return these settings of a client and the authority of the server's certificate."""
        return {"ca_file": self.certificates.ca_file, **settings}


@contextmanager
def serving_network(folder: Path, *, brief: bool = False) -> Iterator[Network]:
    """Run a server until the block ends."""
    certificates = Certificates(folder)
    server_file, key_file = certificates.issue("server", "DNS:localhost", "IP:127.0.0.1")
    tokens = folder / "tokens.yaml"
    created = [
        create_token(tokens, "acme", "writer"),
        create_token(tokens, "acme", "reader"),
        create_token(tokens, "acme,globex", "writer"),
        create_token(tokens, "acme", "writer", f"{EXPIRY}s") if brief else "",
    ]
    with parleyd(
        folder,
        CONFIG,
        f"--tls-cert-file={server_file}",
        f"--tls-key-file={key_file}",
        f"--tls-client-ca-file={certificates.ca_file}",
        f"--auth-token-file={tokens}",
    ) as server:
        yield Network(server.address, certificates, folder, *created)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """Yield a server that the tests share."""
    with serving_network(tmp_path_factory.mktemp("network")) as network:
        yield network


def list_conversations(address: str, *, asynchronous: bool, **settings: Any) -> list[str]:
    """Return the ids of all conversations that a new client can list."""

    async def listed() -> Any:
        async with AsyncClient(address, **settings) as client:
            return await client.list_conversations(LIST)

    if asynchronous:
        reply = asyncio.run(listed())
    else:
        with Client(address, **settings) as client:
            reply = client.list_conversations(LIST)
    return sorted(entry.conversation.id for entry in reply.conversations)


def token_of(network: Network) -> Callable[[], str]:
    """Return a function that returns a token."""
    return lambda: network.acme


def async_token_of(network: Network) -> Callable[[], Any]:
    """Return an async function that returns a token."""

    async def token() -> str:
        return network.acme

    return token


def file_of(network: Network, token: str) -> Path:
    """Return a file with a token."""
    path = network.folder / "token"
    path.write_text(token + "\n")
    return path


@both
def test_sign_in(network: Network, *, asynchronous: bool) -> None:
    """Each source of a token signs in."""
    sources: list[dict[str, Any]] = [
        {"token": network.acme},
        {"token": token_of(network)},
        {"token_file": file_of(network, network.acme)},
    ]
    if asynchronous:
        sources.append({"token": async_token_of(network)})
    for source in sources:
        list_conversations(network.address, asynchronous=asynchronous, **network.tls(**source))


@both
def test_environment(
    network: Network, monkeypatch: pytest.MonkeyPatch, *, asynchronous: bool
) -> None:
    """A client without arguments signs in with the settings of the environment."""
    monkeypatch.setenv("PARLEY_TLS_CA_FILE", str(network.certificates.ca_file))
    monkeypatch.setenv("PARLEY_TOKEN", network.several)
    monkeypatch.setenv("PARLEY_TENANT", "globex")
    list_conversations(network.address, asynchronous=asynchronous)
    monkeypatch.delenv("PARLEY_TOKEN")
    monkeypatch.setenv("PARLEY_TOKEN_FILE", str(file_of(network, network.several)))
    list_conversations(network.address, asynchronous=asynchronous)
    monkeypatch.delenv("PARLEY_TOKEN_FILE")
    monkeypatch.delenv("PARLEY_TENANT")
    certificate, key = network.certificates.issue("shop")
    monkeypatch.setenv("PARLEY_TLS_CERT_FILE", str(certificate))
    monkeypatch.setenv("PARLEY_TLS_KEY_FILE", str(key))
    list_conversations(network.address, asynchronous=asynchronous)


@both
@pytest.mark.parametrize(
    "settings",
    [{}, {"token": "parley_" + "x" * 43}, {"token": "y"}, {"tenant": "acme"}],
    ids=["no token", "a wrong token", "not a token", "only a tenant"],
)
def test_invalid_credentials(
    settings: dict[str, str], network: Network, *, asynchronous: bool
) -> None:
    """The call fails with UNAUTHENTICATED."""
    with pytest.raises(Error) as raised:
        list_conversations(network.address, asynchronous=asynchronous, **network.tls(**settings))
    assert raised.value.code is grpc.StatusCode.UNAUTHENTICATED
    assert raised.value.reason == "UNAUTHENTICATED"


def test_role(network: Network) -> None:
    """PERMISSION_DENIED names the role that the call needs."""
    with Client(network.address, **network.tls(token=network.reader)) as client:
        client.list_conversations(LIST)
        with pytest.raises(Error) as raised:
            client.create_conversation(CreateConversationRequest())
        assert raised.value.reason == "PERMISSION_DENIED"
        assert raised.value.metadata == {"needed_role": "writer"}
        with pytest.raises(Error) as raised:
            client.delete_interactions(DeleteInteractionsRequest(conversation_id="c"))
        assert raised.value.metadata == {"needed_role": "admin"}


@both
def test_tenants(network: Network, *, asynchronous: bool) -> None:
    """A caller with several tenants names one, for the client or for a call."""
    several = network.tls(token=network.several)
    with pytest.raises(Error) as raised:
        list_conversations(network.address, asynchronous=asynchronous, **several)
    assert raised.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert raised.value.reason == "TENANT_REQUIRED"
    with pytest.raises(Error) as raised:
        list_conversations(network.address, asynchronous=asynchronous, **several, tenant="initech")
    assert raised.value.reason == "PERMISSION_DENIED"

    name = f"tenants-{asynchronous}"
    with Client(network.address, **several, tenant="globex") as client:
        client.create_conversation(CreateConversationRequest(conversation=Conversation(id=name)))
        get = GetConversationRequest(conversation_id=name)
        client.get_conversation(get)
        with pytest.raises(Error, match="CONVERSATION_NOT_FOUND"):
            client.get_conversation(get, metadata=(("parley-tenant", "acme"),))
    for tenant in ("acme", "globex"):
        found = list_conversations(
            network.address, asynchronous=asynchronous, **several, tenant=tenant
        )
        assert (name in found) == (tenant == "globex")


@both
def test_token_file_is_replaced(network: Network, tmp_path: Path, *, asynchronous: bool) -> None:
    """The next call has the new token."""
    path = tmp_path / "token"
    path.write_text("wrong")

    def replace() -> None:
        (tmp_path / "next").write_text(network.acme)
        (tmp_path / "next").replace(path)

    async def replaced() -> None:
        async with AsyncClient(network.address, **network.tls(token_file=path)) as client:
            with pytest.raises(Error, match="UNAUTHENTICATED"):
                await client.list_conversations(LIST)
            replace()
            await client.list_conversations(LIST)

    if asynchronous:
        asyncio.run(replaced())
    else:
        with Client(network.address, **network.tls(token_file=path)) as client:
            with pytest.raises(Error, match="UNAUTHENTICATED"):
                client.list_conversations(LIST)
            replace()
            client.list_conversations(LIST)


@both
def test_client_certificate(network: Network, *, asynchronous: bool) -> None:
    """It signs in without a token."""
    certificate, key = network.certificates.issue("shop")
    settings = network.tls(cert_file=certificate, key_file=key)
    list_conversations(network.address, asynchronous=asynchronous, **settings)
    certificate, key = network.certificates.issue("stranger")
    settings = network.tls(cert_file=certificate, key_file=key)
    with pytest.raises(Error) as raised:
        list_conversations(network.address, asynchronous=asynchronous, **settings)
    assert raised.value.reason == "UNAUTHENTICATED"


@both
@pytest.mark.parametrize(
    "settings",
    [{"plaintext": False}, {}],
    ids=["public authorities", "plaintext to a server with TLS"],
)
def test_wrong_connection(
    settings: dict[str, Any], network: Network, *, asynchronous: bool
) -> None:
    """A client that does not trust the server, or sends plaintext, fails with UNAVAILABLE."""
    settings |= {"token": network.acme}
    with pytest.raises(Error) as raised:
        list_conversations(network.address, asynchronous=asynchronous, **settings)
    assert raised.value.code is grpc.StatusCode.UNAVAILABLE
    assert network.acme not in repr(raised.value) + repr(raised.value.__cause__)


@both
@pytest.mark.parametrize("unix", [False, True], ids=["loopback", "a Unix socket"])
def test_plaintext_on_this_machine(tmp_path: Path, *, unix: bool, asynchronous: bool) -> None:
    """A token signs in without TLS, too."""
    tokens = tmp_path / "tokens.yaml"
    token = create_token(tokens, "acme", "writer")
    server = Server(tmp_path, "", f"--auth-token-file={tokens}")
    if unix:
        # The path of a socket may have 107 bytes.
        server.address = f"unix:{os.path.relpath(tmp_path)}/s"
    server.start()
    try:
        list_conversations(server.address, asynchronous=asynchronous, token=token)
        with pytest.raises(Error, match="UNAUTHENTICATED"):
            list_conversations(server.address, asynchronous=asynchronous)
    finally:
        server.kill()


def encrypted(key: Path) -> Path:
    """Return an encrypted copy of a key."""
    copy = key.with_name("encrypted.key")
    command = ["openssl", "ec", "-in", str(key), "-out", str(copy), "-aes128"]
    subprocess.run([*command, "-passout", "pass:word"], check=True, capture_output=True)
    return copy


def test_invalid_files(tmp_path: Path) -> None:
    """A client with them is not made; the error names the file."""
    certificates = Certificates(tmp_path)
    ca, none, junk = certificates.ca_file, tmp_path / "none.pem", tmp_path / "junk.pem"
    junk.write_text("junk")
    certificate, key = certificates.issue("one")
    other, _ = certificates.issue("two")
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"ca_file": none}, FileNotFoundError, "none.pem"),
        ({"ca_file": junk}, ValueError, "CA file .*junk.pem"),
        ({"cert_file": certificate}, ValueError, "only one of cert_file and key_file is set"),
        ({"key_file": key}, ValueError, "only one of cert_file and key_file is set"),
        ({"cert_file": certificate, "key_file": none}, FileNotFoundError, "none.pem"),
        ({"cert_file": junk, "key_file": key}, ValueError, "junk.pem.* must be PEM"),
        ({"cert_file": certificate, "key_file": junk}, ValueError, "junk.pem"),
        ({"cert_file": other, "key_file": key}, ValueError, "two.pem.*one.key.*belong together"),
        (
            {"cert_file": certificate, "key_file": encrypted(key)},
            ValueError,
            "must not be encrypted",
        ),
        ({"ca_file": ca, "plaintext": True}, ValueError, "plaintext=True cannot be combined"),
        (
            {"ca_file": ca, "credentials": grpc.ssl_channel_credentials()},
            ValueError,
            "credentials cannot be combined with ca_file",
        ),
        (
            {"plaintext": True, "credentials": grpc.ssl_channel_credentials()},
            ValueError,
            "credentials cannot be combined with plaintext=True",
        ),
    ]
    kinds: list[Any] = [Client, AsyncClient]
    for settings, kind, text in cases:
        for client in kinds:
            with pytest.raises(kind, match=text):
                client("127.0.0.1:1", **settings)


def test_choice_of_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plaintext is only for this machine or on request. A certificate means TLS."""
    ca = Certificates(tmp_path).ca_file
    own = grpc.ssl_channel_credentials()

    def is_tls(target: str, **settings: Any) -> bool:
        names = ("credentials", "plaintext", "ca_file", "cert_file", "key_file")
        return _tls.channel_credentials(target, *map(settings.get, names)) is not None

    assert not is_tls("127.0.0.1:1")
    assert is_tls("example.com:1")
    assert is_tls("127.0.0.1:1", plaintext=False)
    assert not is_tls("example.com:1", plaintext=True)
    assert is_tls("127.0.0.1:1", ca_file=ca)
    assert is_tls("127.0.0.1:1", credentials=own)
    monkeypatch.setenv("PARLEY_TLS_CA_FILE", str(ca))
    assert is_tls("127.0.0.1:1")
    assert not is_tls("127.0.0.1:1", ca_file="")
    assert not is_tls("127.0.0.1:1", plaintext=True)
    monkeypatch.setenv("PARLEY_TLS_CA_FILE", "no/such/file")
    assert _tls.channel_credentials("x:1", own, None, None, None, None) is own
    monkeypatch.setenv("PARLEY_TLS_CERT_FILE", "no/such/file")
    with pytest.raises(ValueError, match="only one of PARLEY_TLS_CERT_FILE and PARLEY_TLS_KEY"):
        is_tls("127.0.0.1:1")


class Renewal:
    """A function that first returns a token that expires soon, and then another one."""

    def __init__(self, network: Network) -> None:
        """Return tokens of this server."""
        self._tokens = [network.brief, network.acme]
        self.asked = 0

    def __call__(self) -> str:
        """Return the next token."""
        self.asked += 1
        return self._tokens.pop(0)


class Seen:
    """What a watch has delivered: a conversation is created before and after it resumed."""

    def __init__(self, network: Network, name: str) -> None:
        """Create conversations whose ids begin with the name."""
        self.token = Renewal(network)
        self.ids: list[str] = []
        self._network, self._name = network, name
        self._created = 0

    def add(self, change: ConversationChange) -> bool:
        """Record a change; report whether it was the last one."""
        if change.conversation_id.startswith(self._name):
            self.ids.append(change.conversation_id)
        if self._created < self.token.asked:
            self._created += 1
            with Client(self._network.address, **self._network.tls(token=self._network.acme)) as c:
                conversation = Conversation(id=f"{self._name}-{self._created}")
                c.create_conversation(CreateConversationRequest(conversation=conversation))
        return len(self.ids) == 2


def test_a_watch_outlives_its_token(tmp_path: Path) -> None:
    """The server ends it 30 s after its token expired. It resumes with another token."""
    with serving_network(tmp_path, brief=True) as network, ThreadPoolExecutor() as pool:
        watch = WatchConversationsRequest()

        def watched() -> Seen:
            seen = Seen(network, "sync")
            with Client(network.address, **network.tls(token=seen.token)) as client:
                for change in client.watch_conversations(watch):
                    if seen.add(change):
                        break
            return seen

        async def watched_async() -> Seen:
            seen = Seen(network, "asyncio")
            async with AsyncClient(network.address, **network.tls(token=seen.token)) as client:
                async for change in client.watch_conversations(watch):
                    if seen.add(change):
                        break
            return seen

        other = pool.submit(watched)
        for seen, name in ((asyncio.run(watched_async()), "asyncio"), (other.result(), "sync")):
            assert seen.ids == [f"{name}-1", f"{name}-2"]
            assert seen.token.asked == 2
