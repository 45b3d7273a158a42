"""Making fsspec's file systems: without caches and without their own retries."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from fsspec.dircache import DirCache

from wstore.stores.fsspec.protocols import class_of, protocol_of
from wstore.stores.s3.config import S3Config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsspec import AbstractFileSystem

_S3 = frozenset({"s3", "s3a"})
_CONNECTIONS = 4  # of a client that serves one thread at a time; servers allow few (OpenSSH: 10)


class Clients:
    """The file systems of one root in one process: one for all threads where the client can do that,
    else some, each used by one thread at a time."""

    def __init__(self, scheme: str, root: str, *, threads: bool) -> None:
        self._scheme = scheme
        self._root = root
        self._free = threading.Semaphore(_CONNECTIONS)
        self._lock = threading.Lock()
        self._idle: list[AbstractFileSystem] = []
        self._shared = threads
        self._refresh = protocol_of(scheme).refresh

    @contextlib.contextmanager
    def use(self) -> Iterator[AbstractFileSystem]:
        """One of them; it is not used again where an exception passes that is no plain answer."""
        if self._shared:
            with self._lock:
                if not self._idle:
                    self._idle.append(open_files(self._scheme, self._root))
                files = self._idle[0]
            yield files
            return
        with self._free:
            with self._lock:
                kept = self._idle.pop() if self._idle else None
            files = kept or open_files(self._scheme, self._root)
            keep = False
            try:
                if self._refresh is not None:
                    self._refresh(files)
                yield files
                keep = True
            except OSError as error:
                keep = not isinstance(error, ConnectionError | TimeoutError)
                raise
            finally:
                if keep:
                    with self._lock:
                        self._idle.append(files)

    def forget(self) -> None:
        """Let go of those that are idle."""
        with self._lock:
            self._idle.clear()


def open_files(scheme: str, root: str) -> AbstractFileSystem:
    """A file system of its own for one root. Host, port and user come from the root; passwords and
    everything else from fsspec's configuration (FSSPEC_<PROTOCOL>_<KEYWORD>, ~/.config/fsspec), for S3
    also from the AWS_* variables that wstore knows. May connect."""
    kind = class_of(scheme)
    given: dict[str, object] = dict(kind._get_kwargs_from_urls(f"{scheme}://{root}/"))
    if scheme in _S3:
        given |= _s3_arguments(S3Config.from_environment())
    files = kind(skip_instance_cache=True, **given)
    if protocol_of(scheme).refresh is None:
        # Not an argument: some clients pass on what they do not know.
        files.dircache = DirCache(use_listings_cache=False)
    if scheme in _S3:
        files.retries = 1
    return files


def path_of_root(scheme: str, root: str) -> str:
    """What fsspec calls the root: keys follow after a slash."""
    if scheme in {"file", "local"}:
        return ""
    return str(class_of(scheme)._strip_protocol(f"{scheme}://{root}")).rstrip("/")


def _s3_arguments(config: S3Config) -> dict[str, object]:
    client: dict[str, object] = {
        "retries": {"total_max_attempts": 1},
        "connect_timeout": config.connect_timeout_s,
        "read_timeout": config.idle_timeout_s,
    }
    given: dict[str, object] = {
        "anon": config.anonymous,
        "client_kwargs": {"region_name": config.region},
        "requester_pays": config.requester_pays,
    }
    if config.endpoint is not None:
        given["endpoint_url"] = config.endpoint
        client["s3"] = {"addressing_style": "path"}
    if not config.checksum:
        client["request_checksum_calculation"] = "when_required"
    if config.profile is not None:
        given["profile"] = config.profile
    if config.credentials is not None:
        given["key"] = config.credentials.access_key
        given["secret"] = config.credentials.secret_key
        given["token"] = config.credentials.token
    stored = {
        "ServerSideEncryption": config.encryption,
        "SSEKMSKeyId": config.kms_key,
    }
    given["s3_additional_kwargs"] = {name: text for name, text in stored.items() if text}
    given["config_kwargs"] = client
    return given
