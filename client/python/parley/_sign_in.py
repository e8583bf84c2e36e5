"""How the calls of a client sign in: the token and the tenant in their headers."""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import re
import stat
import time
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc

from parley._error import Error
from parley._options import CallOptions, for_grpc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

TOKEN_KEY, TENANT_KEY = "authorization", "parley-tenant"
MAX_TOKEN_BYTES = 12 << 10  # It leaves space for the other headers: a server accepts 16 KiB.
TENANT = re.compile("[a-zA-Z0-9_][a-zA-Z0-9._-]{0,63}")  # The server has the same pattern.
TOKEN = re.compile("[!-~]+")

Source: TypeAlias = "Callable[[bool], object]"
"""A source of tokens: it returns a token or, in an asyncio client, an awaitable of one. Its
parameter says that the server has refused the last token."""


class SignIn:
    """The settings with which all calls of a client sign in. Threads may share it."""

    def __init__(
        self,
        token: str | Callable[[], object] | None = None,
        token_file: str | os.PathLike[str] | None = None,
        tenant: str | None = None,
    ) -> None:
        """Check the settings, and read those that are None from the environment.

        Raises:
            ValueError: A setting is not valid. The text does not contain the token.
            OSError: The file of the token cannot be read.

        """
        where = "token", "token_file"
        if token is None and token_file is None:
            where = "PARLEY_TOKEN", "PARLEY_TOKEN_FILE"
            token, token_file = (os.environ.get(name) for name in where)
        if token and token_file:
            raise ValueError(f"{where[0]} and {where[1]} are both set; set one of them")
        self.source: Source | None = None
        if token_file:
            self.source = TokenFile(token_file).read
        elif callable(token):
            self.source = source_of(token)
        elif token:
            self.source = source_of_fixed(check_token(token, where[0]))
        self._tenant = os.environ.get("PARLEY_TENANT", "") if tenant is None else tenant
        if self._tenant and not TENANT.fullmatch(self._tenant):
            raise ValueError(
                f"tenant is {self._tenant[:80]!r}, want 1 to 64 letters, digits, dots, underscores "
                "and hyphens, not starting with a dot or a hyphen"
            )

    def needs_token(self, arguments: dict[str, Any]) -> bool:
        """Report whether a call needs a token of this client. Its options may have their own."""
        own = arguments.get("credentials") or has_header(arguments, TOKEN_KEY)
        return self.source is not None and not own

    def add_headers(self, arguments: dict[str, Any], token: str) -> None:
        """Add the token, unless it is empty, and the tenant to the headers of a call."""
        headers = [(TOKEN_KEY, f"Bearer {token}")] if token else []
        if self._tenant and not has_header(arguments, TENANT_KEY):
            headers.append((TENANT_KEY, self._tenant))
        if headers:
            arguments["metadata"] = (*(arguments.get("metadata") or ()), *headers)


class Attempts:
    """The sign-in of one call or stream, over all its attempts. Use one of the subclasses."""

    def __init__(self, sign_in: SignIn, options: CallOptions) -> None:
        """Sign in a call with these options."""
        self._sign_in = sign_in
        self._options = options
        self._token = ""  # Of the newest attempt; empty if it had none of the client.
        self._next_token = ""  # Of the next attempt; empty if the source must be asked.
        self._replaced = False  # The token of the newest attempt replaced a refused one.

    def deadline(self) -> float:
        """Return the time, as of time.monotonic, when the timeout that begins now has passed."""
        timeout = self._options.get("timeout")
        return math.inf if timeout is None else time.monotonic() + timeout

    def accepted(self) -> None:
        """Record that the server has accepted the newest token: it has sent a message."""
        self._replaced = False

    def may_replace(self, error: Error) -> bool:
        """Report whether another token may help after this error of the newest attempt."""
        refused = error.code is grpc.StatusCode.UNAUTHENTICATED
        return refused and bool(self._token) and not self._replaced

    def _begin(self) -> tuple[dict[str, Any], Source | None]:
        """Return the arguments of the next attempt, and the source to ask for its token."""
        arguments = for_grpc(self._options)
        if not self._sign_in.needs_token(arguments):
            return arguments, None
        self._token, self._next_token = self._next_token, ""
        return arguments, None if self._token else self._sign_in.source

    def _complete(self, arguments: dict[str, Any], deadline: float) -> dict[str, Any]:
        """Add the headers, and the time that is left after the source was asked."""
        self._sign_in.add_headers(arguments, self._token)
        if deadline < math.inf:
            arguments["timeout"] = max(0, deadline - time.monotonic())
        return arguments

    def _replace(self, token: str) -> bool:
        if token == self._token:
            return False
        self._next_token, self._replaced = token, True
        return True


class SyncAttempts(Attempts):
    """Attempts of a sync client."""

    def arguments(self, deadline: float) -> dict[str, Any]:
        """Return the arguments for gRPC of the next attempt, which ends at the deadline."""
        arguments, source = self._begin()
        if source:
            self._token = token_of(source(False))
        return self._complete(arguments, deadline)

    def replace(self, error: Error) -> bool:
        """Report whether to make another attempt, because the source has replaced the token."""
        source = self._sign_in.source
        return bool(source and self.may_replace(error) and self._replace(token_of(source(True))))


class AsyncAttempts(Attempts):
    """Attempts of an asyncio client."""

    async def arguments(self, deadline: float) -> dict[str, Any]:
        """See SyncAttempts."""
        arguments, source = self._begin()
        if source:
            self._token = await awaited_token(source(False), deadline)
        return self._complete(arguments, deadline)

    async def replace(self, error: Error, deadline: float) -> bool:
        """See SyncAttempts."""
        source = self._sign_in.source
        if not source or not self.may_replace(error):
            return False
        return self._replace(await awaited_token(source(True), deadline))


class TokenFile:
    """A file with a token, which another program may replace."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read the file for the first time."""
        self._path = os.fspath(path)
        self._last = self._state(), self._read()

    def read(self, refused: bool) -> str:
        """Return the token, or the last one if the file cannot be read now.

        If the server has refused the last one, the file is read even if it seems unchanged.
        """
        last, token = self._last
        try:
            state = self._state()
            # A pipe can be read only once.
            if stat.S_ISREG(state[0]) and (refused or state != last):
                # If the file changes after _state, the next call reads it again.
                token = self._read()
                self._last = state, token
        except (OSError, ValueError) as fault:
            if refused:
                text = f"the server refused the token, and there is no other: {fault}"
                code = grpc.StatusCode.UNAUTHENTICATED
                raise Error(code, text, reason=code.name) from fault
        return token

    def _state(self) -> tuple[int, ...]:
        state = os.stat(self._path)
        return state.st_mode, state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns

    def _read(self) -> str:
        with open(self._path, "rb") as file:
            content = file.read(2 * MAX_TOKEN_BYTES)
        return check_token(content.strip().decode("latin-1"), f"token file {self._path!r}")


def source_of_fixed(token: str) -> Source:
    """Return a source that always returns this token."""
    return lambda _: token


def source_of(function: Callable[[], object]) -> Source:
    """Return a source that calls a function of the caller."""
    return lambda _: function()


def token_of(result: object) -> str:
    """Return the token that a source has returned."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError("token returned an awaitable; use AsyncClient, or a function without async")
    return check_token(result, "token")


async def awaited_token(result: object, deadline: float) -> str:
    """Return the token that a source has returned, and await it if necessary."""
    if inspect.isawaitable(result):
        result = await before(deadline, result)
    return check_token(result, "token")


async def before(deadline: float, result: Awaitable[object]) -> object:
    """Await the result; raise DEADLINE_EXCEEDED at the deadline."""
    if deadline == math.inf:
        return await result
    waiting = asyncio.ensure_future(result)
    try:
        await asyncio.wait({waiting}, timeout=max(0, deadline - time.monotonic()))
        if not waiting.done():
            text = "the function token did not return a token within the timeout of the call"
            raise Error(grpc.StatusCode.DEADLINE_EXCEEDED, text)
        return waiting.result()
    finally:
        waiting.cancel()


def check_token(token: object, name: str) -> str:
    """Return the token. Raise an error, which does not contain it, if it cannot be sent."""
    if not isinstance(token, str):
        raise TypeError(f"{name}: the token must be str, not {type(token).__name__}")
    if len(token) > MAX_TOKEN_BYTES:
        raise ValueError(f"{name}: the token is longer than {MAX_TOKEN_BYTES} bytes")
    if not token:
        raise ValueError(f"{name}: the token is empty")
    if not TOKEN.fullmatch(token):
        raise ValueError(
            f"{name}: the token contains a space, a line break or another character that is not "
            'printable ASCII; it must be the plain token, without "Bearer"'
        )
    return token


def has_header(arguments: dict[str, Any], key: str) -> bool:
    """Report whether the headers of a call contain a key."""
    return any(name == key for name, _ in arguments.get("metadata") or ())
