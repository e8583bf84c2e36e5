"""What may be said about one call, and about the channel of a client."""

from __future__ import annotations

import ipaddress
import re
import uuid
from collections.abc import Sequence  # noqa: TC003 - typing.get_type_hints needs it
from importlib import resources
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import grpc

from parley._error import Error

if TYPE_CHECKING:
    from google.protobuf.message import Message

# The same as the server's, so that whatever it sends can be read.
MAX_MESSAGE_BYTES = 4 << 20
# gRPC sends a call again only while it remembers it whole, framing included; its own default
# of 256 KiB is less than a batch of messages may have.
MAX_RETRY_BYTES = MAX_MESSAGE_BYTES + (64 << 10)

HEADER_KEY = re.compile("[a-z0-9_.-]+")
HEADER_VALUE = re.compile(b"[ -~]*")

M = TypeVar("M", bound="Message")


class CallOptions(TypedDict, total=False):
    """What every call takes as keyword arguments; they mean what they mean in gRPC.

    Of a stream, ``timeout`` bounds the whole loop from its first step on, however often it is
    asked for anew, and the others go with each ask.
    """

    timeout: float | None
    """Seconds until the call fails with DEADLINE_EXCEEDED; None: no limit."""
    metadata: Sequence[tuple[str, str | bytes]] | None
    """Headers to send; the names are in lower case."""
    credentials: grpc.CallCredentials | None
    """Say who calls; they need a connection with TLS."""
    wait_for_ready: bool | None
    """Wait for a server that is not there instead of failing with UNAVAILABLE."""
    compression: grpc.Compression | None
    """How to compress what is sent."""


def channel_options(target: str, more: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return the options of a channel to target; more come after the defaults and replace them."""
    # The retried methods, each by name; a test compares the list with the Go client's.
    service_config = resources.files("parley").joinpath("service_config.json").read_text("utf-8")
    options: dict[str, Any] = {
        "grpc.service_config": service_config,
        "grpc.primary_user_agent": "parley-client-python",
        "grpc.max_receive_message_length": MAX_MESSAGE_BYTES,
        "grpc.max_send_message_length": MAX_MESSAGE_BYTES,
        "grpc.per_rpc_retry_buffer_size": MAX_RETRY_BYTES,
        # The server cuts off clients that ask more often than every 10 s.
        "grpc.keepalive_time_ms": 30_000,
        "grpc.keepalive_timeout_ms": 10_000,
        # Core gives its other pings a minute, and sends none for keepalive meanwhile.
        "grpc.http2.ping_timeout_ms": 10_000,
        "grpc.keepalive_permit_without_calls": 1,
        "grpc.http2.max_pings_without_data": 0,
        # Connect anew as quickly as calls are retried: they would else all fail on the
        # connection that a restart broke. The second is how long one attempt may take.
        "grpc.initial_reconnect_backoff_ms": 100,
        "grpc.min_reconnect_backoff_ms": 10_000,
        "grpc.max_reconnect_backoff_ms": 5_000,
    }
    if is_local(target):
        # A proxy that the environment names would have what is said in plaintext, and would
        # take "localhost" for itself; gRPC makes no exception of its own for loopback.
        options["grpc.enable_http_proxy"] = 0
    return list((options | dict(more)).items())


def for_grpc(options: CallOptions, *timeout: float | None) -> dict[str, Any]:
    """Return options as gRPC takes them, with another timeout if one is given.

    Raises:
        Error: INVALID_ARGUMENT: metadata has what no header may have. gRPC would say so no sooner
            than when it sends the call, and as if the server had failed.

    """
    given: dict[str, Any] = {**options}
    if timeout:
        (given["timeout"],) = timeout
    if given.get("metadata"):
        given["metadata"] = tuple(given["metadata"])
        for key, value in given["metadata"]:
            check_header(key, value)
    return given


def check_header(key: str, value: str | bytes) -> None:
    """Raise an Error unless gRPC can send it."""
    wrong = ""
    if not HEADER_KEY.fullmatch(key):
        wrong = "its name may have a-z, 0-9, '-', '_' and '.'"
    elif key.endswith("-bin"):
        if not isinstance(value, bytes):
            wrong = f"its value must be bytes, as -bin says, and is {type(value).__name__}"
    elif not HEADER_VALUE.fullmatch(value.encode() if isinstance(value, str) else value):
        wrong = "its value may have printable ASCII only; a name that ends in -bin may have bytes"
    if wrong:
        raise Error(grpc.StatusCode.INVALID_ARGUMENT, f"metadata {key!r}: {wrong}")


def is_local(target: str) -> bool:
    """Tell whether a target cannot leave this machine. What it does not understand can."""
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    if target.startswith("dns:"):
        target = target[target.rfind("/") + 1 :].removeprefix("dns:")  # A name server may lead.
    host = target
    if target.startswith("["):
        host = target[1:].partition("]")[0]
    elif target.count(":") == 1:
        host = target.partition(":")[0]
        if not host:
            return True  # gRPC takes ":50051" for this machine.
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def with_request_id(request: M) -> M:
    """Return the request itself, or a copy with a random request_id when it has an empty one."""
    field = request.DESCRIPTOR.fields_by_name.get("request_id")
    if field is None or getattr(request, field.name):
        return request
    filled = type(request)()
    filled.CopyFrom(request)
    setattr(filled, field.name, str(uuid.uuid4()))
    return filled
