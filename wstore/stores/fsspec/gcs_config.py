"""How to reach Google Cloud Storage's JSON API through gcsfs: everything the environment says."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fsspec.config import conf

from wstore.errors import InvalidArgument
from wstore.stores.fsspec.gcs_replies import no_credentials
from wstore.stores.fsspec.gcsfs_library import CREDENTIAL_ERRORS, GCSFileSystem

if TYPE_CHECKING:
    from collections.abc import Mapping

_NONE = frozenset({"", "default"})
_TRUE = frozenset({"1", "true", "yes", "on"})


@dataclass(frozen=True, slots=True)
class GcsJsonConfig:
    """One service, one identity. Hashable; holds no secret.

    Attributes:
        emulator: "scheme://host:port" of an emulator, None for Google's service.
        credentials_file: the key file that google-auth finds in the environment, if one is named.
        anonymous: requests carry no credentials; always so on an emulator.
        connect_timeout_s: seconds to establish a connection.
        idle_timeout_s: seconds without a byte; no limit on the total.
    """

    emulator: str | None = None
    credentials_file: str | None = None
    anonymous: bool = False
    connect_timeout_s: float = 10.0
    idle_timeout_s: float = 60.0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> GcsJsonConfig:
        """Read STORAGE_EMULATOR_HOST (with or without scheme), GOOGLE_* and WSTORE_*.

        Raises:
            InvalidArgument: a variable has a value that means nothing.
        """
        emulator = emulator_url(environment.get("STORAGE_EMULATOR_HOST", ""))
        skip = environment.get("GOOGLE_SKIP_SIGNATURE", "").lower() in _TRUE
        return cls(
            emulator=emulator,
            credentials_file=environment.get("GOOGLE_APPLICATION_CREDENTIALS") or None,
            anonymous=skip or emulator is not None,
            connect_timeout_s=_seconds(environment, "WSTORE_CONNECT_TIMEOUT", 10.0),
            idle_timeout_s=_seconds(environment, "WSTORE_IDLE_TIMEOUT", 60.0),
        )


def emulator_url(text: str) -> str | None:
    """STORAGE_EMULATOR_HOST as "scheme://host:port"; None where it names no emulator.

    Raises:
        InvalidArgument: it is neither "host:port" nor a URL of one.
    """
    if text in _NONE:
        return None
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        good = (
            parts.scheme in {"http", "https"} and bool(parts.hostname) and "@" not in parts.netloc
        )
        _ = parts.port
    except ValueError:
        good = False
    if not good or parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise InvalidArgument("STORAGE_EMULATOR_HOST is neither host:port nor http://host:port")
    return f"{parts.scheme}://{parts.netloc}"


def open_gcsfs(config: GcsJsonConfig, url: str) -> GCSFileSystem:
    """A gcsfs file system of its own, without caches. Google's key files may be read.

    Raises:
        CredentialsMissing: what the environment names cannot be used.
    """
    # For bodies: no decoding, and few pauses for want of buffer.
    session = {"auto_decompress": False, "read_bufsize": 1 << 20}
    given: dict[str, object] = {"session_kwargs": session}
    # What is not given here may come from fsspec's own configuration (FSSPEC_GCS_TOKEN).
    if config.emulator is not None:
        given["endpoint_url"] = config.emulator
    if config.anonymous:
        given["token"] = "anon"
    if "project" not in conf.get("gcs", {}):
        given["project"] = ""  # only listing and making buckets needs one
    try:
        return GCSFileSystem(use_listings_cache=False, skip_instance_cache=True, **given)
    except CREDENTIAL_ERRORS as error:
        raise no_credentials(error, url) from None


def _seconds(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = -1.0
    if not 0 < value < 1e6:
        raise InvalidArgument(f"{name} is {text!r}; it must be a positive number of seconds")
    return value
