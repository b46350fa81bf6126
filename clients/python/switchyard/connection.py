"""Where a server is and how to talk with it: addresses, TLS, the key, time limits. What Client and AsyncClient share."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from typing import List, Optional, Tuple, Union

import grpc

from switchyard.errors import bad_input

StrPath = Union[str, "os.PathLike[str]"]

KEY_VARIABLE = "SWITCHYARD_API_KEY"
_MOST_FILE_BYTES = 1 << 20
_MOST_KEY_BYTES = 1000

# Keepalive finds a silent server within 30 s; a proxy in the environment is ignored, through which gRPC would send even loopback
# addresses; reconnects wait little, for wait_ready.
CHANNEL_OPTIONS: List[Tuple[str, int]] = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 256 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


@dataclass(frozen=True)
class Settings:
    address: str
    admin_address: str
    credentials: Optional[grpc.ChannelCredentials]  # None: plaintext
    metadata: Tuple[Tuple[str, str], ...]
    timeout: float
    call_timeout: float
    watch_timeout: float


def _read(path: StrPath, is_secret: bool) -> bytes:
    """BadInput "<path>: <why>"; never shows what the file says, never waits (for a FIFO)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        with open(fd, "rb") as file:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                raise bad_input(f"{path}: not a regular file")
            if is_secret and info.st_uid != os.geteuid():
                raise bad_input(f"{path}: belongs to another user than this process's")
            if is_secret and info.st_mode & 0o077:
                raise bad_input(f"{path}: others than its owner may use it (mode {info.st_mode & 0o7777:04o}): chmod 600 it")
            data = file.read(_MOST_FILE_BYTES + 1)
    except OSError as error:
        raise bad_input(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > _MOST_FILE_BYTES:
        raise bad_input(f"{path}: at most {_MOST_FILE_BYTES} bytes, has more")
    return data


def _find_key(key: Optional[str], file: Optional[StrPath]) -> Optional[str]:
    """The key itself, else the file's, else the environment's."""
    if key is not None and file is not None:
        raise bad_input("at most one of api_key, api_key_file may be given")
    if file is not None:
        key = _read(file, is_secret=True).decode("latin-1").strip()
        if not key:
            raise bad_input(f"{file}: is empty, must have an API key")
    if key is None:
        key = os.environ.get(KEY_VARIABLE) or None
    if key is not None and not (0 < len(key) <= _MOST_KEY_BYTES and all("!" <= c <= "~" for c in key)):
        raise bad_input(f"API key: must have 1 to {_MOST_KEY_BYTES} printable ASCII characters without spaces, has {len(key)} characters")
    return key


def _make_credentials(tls: bool, ca: Optional[StrPath], cert: Optional[StrPath], key: Optional[StrPath]) -> Optional[grpc.ChannelCredentials]:
    if (cert is None) != (key is None):
        raise bad_input("tls_cert and tls_key go together")
    if not (tls or ca is not None or cert is not None):
        return None
    return grpc.ssl_channel_credentials(
        root_certificates=None if ca is None else _read(ca, is_secret=False),
        private_key=None if key is None else _read(key, is_secret=True),
        certificate_chain=None if cert is None else _read(cert, is_secret=False))


def split_address(address: str) -> Tuple[str, int]:
    """HOST:PORT, with an IPv6 address in brackets."""
    found = re.fullmatch(r"(\[[^\[\]]+\]|[^:\[\]/]+):(\d{1,5})", address)
    if not found or not 1 <= int(found.group(2)) <= 65535:
        raise bad_input(f"address: must be HOST:PORT with a port of 1 to 65535 and an IPv6 address in brackets, is {address!r}")
    return found.group(1), int(found.group(2))


def make_settings(address: str, *, admin_address: Optional[str], api_key: Optional[str], api_key_file: Optional[StrPath], tls: bool,
                  tls_ca: Optional[StrPath], tls_cert: Optional[StrPath], tls_key: Optional[StrPath], timeout: float, call_timeout: float,
                  watch_timeout: float) -> Settings:
    host, port = split_address(address)
    if admin_address is None:
        admin_address = f"{host}:{port + 1}"  # the server's default
    else:
        split_address(admin_address)
    for name, seconds in (("timeout", timeout), ("call_timeout", call_timeout), ("watch_timeout", watch_timeout)):
        if not 0 < seconds < float("inf"):
            raise bad_input(f"{name}: must be more than 0 seconds and finite, is {seconds}")
    key = _find_key(api_key, api_key_file)
    return Settings(
        address=address, admin_address=admin_address, credentials=_make_credentials(tls, tls_ca, tls_cert, tls_key),
        metadata=(("authorization", f"Bearer {key}"),) if key else (), timeout=timeout, call_timeout=call_timeout, watch_timeout=watch_timeout)
