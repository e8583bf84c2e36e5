"""The credentials of a connection: TLS with which certificates, or plaintext."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from parley._options import is_local

if TYPE_CHECKING:
    from typing import TypeAlias

    PathOrText: TypeAlias = str | os.PathLike[str]


def channel_credentials(
    target: str,
    credentials: grpc.ChannelCredentials | None,
    plaintext: bool | None,
    ca_file: PathOrText | None,
    cert_file: PathOrText | None,
    key_file: PathOrText | None,
) -> grpc.ChannelCredentials | None:
    """Return the credentials for a channel to target; None means plaintext.

    Raises:
        ValueError: The arguments contradict each other, or a file is not valid.
        OSError: A file cannot be read.

    """
    if credentials or plaintext:
        choice = "credentials" if credentials else "plaintext=True"
        if ca_file or cert_file or key_file:
            raise ValueError(
                f"{choice} cannot be combined with ca_file, cert_file and key_file; leave out one"
            )
        if credentials and plaintext:
            raise ValueError("credentials cannot be combined with plaintext=True; leave out one")
        return credentials
    pair = "cert_file and key_file"
    if ca_file is None:
        ca_file = os.environ.get("PARLEY_TLS_CA_FILE")
    if cert_file is None and key_file is None:
        pair = "PARLEY_TLS_CERT_FILE and PARLEY_TLS_KEY_FILE"
        cert_file = os.environ.get("PARLEY_TLS_CERT_FILE")
        key_file = os.environ.get("PARLEY_TLS_KEY_FILE")
    if bool(cert_file) != bool(key_file):
        raise ValueError(f"only one of {pair} is set; a client certificate needs both")
    if plaintext is None and not ca_file and not cert_file and is_local(target):
        return None
    # The error of a file that does not exist has its name; those of ssl have not.
    contents = content(ca_file), content(key_file), content(cert_file)
    check_files(ca_file, cert_file, key_file)
    return grpc.ssl_channel_credentials(*contents)


def check_files(
    ca_file: PathOrText | None, cert_file: PathOrText | None, key_file: PathOrText | None
) -> None:
    """Raise a ValueError unless the files are valid. gRPC would only fail to connect."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca_file:
        try:
            context.load_verify_locations(ca_file)
        except ssl.SSLError as error:
            raise ValueError(f"CA file {os.fspath(ca_file)!r}: {error}; it must be PEM") from error
    if cert_file and key_file:
        try:
            # Without a password, OpenSSL would ask the terminal for that of an encrypted key.
            context.load_cert_chain(cert_file, key_file, password="")
        except ssl.SSLError as error:
            raise ValueError(
                f"certificate {os.fspath(cert_file)!r} with key {os.fspath(key_file)!r}: {error}; "
                "they must be PEM and belong together, and the key must not be encrypted"
            ) from error


def content(path: PathOrText | None) -> bytes | None:
    """Return the content of a file, or None without a path."""
    return Path(path).read_bytes() if path else None
