"""The options of a call and of the channel of a client."""

from __future__ import annotations

import ipaddress
import json
import re
import uuid
from collections.abc import Sequence  # noqa: TC003 - typing.get_type_hints needs it
from importlib import resources
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import grpc

from parley._error import Error

if TYPE_CHECKING:
    from google.protobuf.message import Message

# The same as the server's limit, so that the client can read every reply.
MAX_MESSAGE_BYTES = 4 << 20
# The size of the buffer in which gRPC keeps a call, framing included, to send it again. gRPC's
# default of 256 KiB is smaller than the largest batch of messages.
MAX_RETRY_BYTES = MAX_MESSAGE_BYTES + (64 << 10)

HEADER_KEY = re.compile("[a-z0-9_.-]+")
HEADER_VALUE = re.compile(b"[ -~]*")

M = TypeVar("M", bound="Message")


class CallOptions(TypedDict, total=False):
    """The keyword arguments of every call. They have the same meaning as in gRPC.

    For a stream, ``timeout`` limits the loop from its first step, over all attempts. The
    other options apply to each attempt.
    """

    timeout: float | None
    """Seconds until the call fails with DEADLINE_EXCEEDED; None means no limit."""
    metadata: Sequence[tuple[str, str | bytes]] | None
    """The headers of the call; their names are in lower case. The headers authorization and
    parley-tenant replace the client's token and tenant."""
    credentials: grpc.CallCredentials | None
    """The credentials of the caller instead of the client's token. They need a connection with
    TLS."""
    wait_for_ready: bool | None
    """Wait until the server is reachable instead of failing with UNAVAILABLE."""
    compression: grpc.Compression | None
    """The compression of the request."""


def channel_options(target: str, more: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return the options of a channel to target. The options in more override the defaults."""
    options: dict[str, Any] = {
        "grpc.service_config": service_config(),
        "grpc.primary_user_agent": "parley-client-python",
        "grpc.max_receive_message_length": MAX_MESSAGE_BYTES,
        "grpc.max_send_message_length": MAX_MESSAGE_BYTES,
        "grpc.per_rpc_retry_buffer_size": MAX_RETRY_BYTES,
        # The server closes connections of clients that ping more often than every 10 s.
        "grpc.keepalive_time_ms": 30_000,
        "grpc.keepalive_timeout_ms": 10_000,
        # For its other pings gRPC waits a minute, and sends no keepalive pings in that time.
        "grpc.http2.ping_timeout_ms": 10_000,
        "grpc.keepalive_permit_without_calls": 1,
        "grpc.http2.max_pings_without_data": 0,
        # Reconnect as quickly as calls are retried. Otherwise all retries would fail on the
        # connection that a restart broke, or after an outage that took longer than they do. The
        # second option limits one connection attempt.
        "grpc.initial_reconnect_backoff_ms": 100,
        "grpc.min_reconnect_backoff_ms": 10_000,
        "grpc.max_reconnect_backoff_ms": 1_000,
    }
    if is_local(target):
        # A proxy from the environment would read the plaintext, and would resolve "localhost" as
        # its own machine. gRPC itself does not exclude loopback addresses.
        options["grpc.enable_http_proxy"] = 0
    return list((options | dict(more)).items())


def service_config() -> str:
    """Return the settings of gRPC's retries."""
    # It lists the retried methods by name. A test compares the list with the Go client's.
    text = resources.files("parley").joinpath("service_config.json").read_text("utf-8")
    config = json.loads(text)
    for method in config["methodConfig"]:
        # When gRPC retries a stream of requests, it may lose one of them, and the replies no longer
        # fit the requests. So the appender itself makes these attempts.
        method["name"] = [name for name in method["name"] if name["method"] != "AppendStream"]
    return json.dumps(config)


def for_grpc(options: CallOptions) -> dict[str, Any]:
    """Return options as arguments for gRPC.

    Raises:
        Error: INVALID_ARGUMENT if metadata contains an invalid header. gRPC would report it only
            when it sends the call, as a failure of the server.

    """
    given: dict[str, Any] = {**options}
    if given.get("metadata"):
        given["metadata"] = tuple(given["metadata"])
        for key, value in given["metadata"]:
            check_header(key, value)
    return given


def check_header(key: str, value: str | bytes) -> None:
    """Raise an Error unless gRPC can send the header."""
    wrong = ""
    if not HEADER_KEY.fullmatch(key):
        wrong = "the name may contain only a-z, 0-9, '-', '_' and '.'"
    elif key.endswith("-bin"):
        if not isinstance(value, bytes):
            wrong = f"the value of a -bin header must be bytes, not {type(value).__name__}"
    elif not HEADER_VALUE.fullmatch(value.encode() if isinstance(value, str) else value):
        wrong = (
            "the value may contain only printable ASCII; for bytes use a name with -bin at the end"
        )
    if wrong:
        raise Error(grpc.StatusCode.INVALID_ARGUMENT, f"metadata {key!r}: {wrong}")


def too_large(size: int) -> Error | None:
    """Return the error of a request of size bytes, or None if it can be sent."""
    if size <= MAX_MESSAGE_BYTES:
        return None
    text = (
        f"the request has {size} bytes, the limit is {MAX_MESSAGE_BYTES}; "
        "send fewer or smaller messages and records"
    )
    return Error(grpc.StatusCode.RESOURCE_EXHAUSTED, text)


def explain_size(error: Error, request: Message | None) -> Error:
    """Return a clear error in place of the one with which gRPC refuses a too large request."""
    if not request or error.code is not grpc.StatusCode.RESOURCE_EXHAUSTED or error.reason:
        return error
    if (clear := too_large(request.ByteSize())) is None:
        return error
    clear.__cause__ = error.__cause__
    return clear


def is_local(target: str) -> bool:
    """Report whether a target is certainly on this machine. If it cannot be parsed: False."""
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    if target.startswith("dns:"):
        target = target[target.rfind("/") + 1 :].removeprefix(
            "dns:"
        )  # A name server may precede it.
    host = target
    if target.startswith("["):
        host = target[1:].partition("]")[0]
    elif target.count(":") == 1:
        host = target.partition(":")[0]
        if not host:
            return True  # For gRPC, ":50051" is this machine.
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def with_request_id(request: M) -> M:
    """Return the request, or a copy with a random request_id if its request_id is empty."""
    field = request.DESCRIPTOR.fields_by_name.get("request_id")
    if field is None or getattr(request, field.name):
        return request
    filled = type(request)()
    filled.CopyFrom(request)
    setattr(filled, field.name, str(uuid.uuid4()))
    return filled
