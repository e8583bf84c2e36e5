"""Adapters whose sync and async methods are the same steps, written once.

The steps are a generator. It yields requests of calls, and receives the reply of each. An error of
a call is raised at its yield.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from parley._error import Error

if TYPE_CHECKING:
    from collections.abc import Generator

    from google.protobuf.message import Message

    from parley._aio_client import AsyncClient
    from parley._client import Client

T = TypeVar("T")

Steps: TypeAlias = "Generator[Message, Any, T]"
"""Steps that return T. Steps run others with ``yield from``."""


def run(client: Client, steps: Steps[T]) -> T:
    """Make the calls of the steps with a sync client, and return their result."""
    try:
        request = next(steps)
        while True:
            try:
                reply = getattr(client, method_of(request))(request)
            except Error as error:
                request = steps.throw(error)
            else:
                request = steps.send(reply)
    except StopIteration as end:
        result: T = end.value
        return result


async def arun(client: AsyncClient, steps: Steps[T]) -> T:
    """Make the calls of the steps with an asyncio client, and return their result."""
    try:
        request = next(steps)
        while True:
            try:
                reply = await getattr(client, method_of(request))(request)
            except Error as error:
                request = steps.throw(error)
            else:
                request = steps.send(reply)
    except StopIteration as end:
        result: T = end.value
        return result


def method_of(request: Message) -> str:
    """Return the name of the method of a client for a request that is not a stream."""
    words = re.findall("[A-Z][a-z]+", type(request).__name__.removesuffix("Request"))
    return "_".join(words).lower()
