"""Reader leases: which versions a living reader needs. They give liveness, never correctness."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from typing import TYPE_CHECKING, Self

from wstore.errors import NotFound, WStoreError
from wstore.probes import Probe
from wstore.stores.forking import renew_after_fork
from wstore_transports.errors import NoVersion, RootError, VersionGone
from wstore_transports.versions import layout
from wstore_transports.versions.documents import LeaseDocument
from wstore_transports.versions.heartbeat import Heartbeat, OverwritePace, StandstillWatch
from wstore_transports.versions.parallel import in_parallel
from wstore_transports.versions.sealing import read_document, seal

if TYPE_CHECKING:
    from types import TracebackType

    from wstore.path import StoragePath
    from wstore_transports.versions.place import Place

_log = logging.getLogger(__name__)

_RELEASE_S = 5.0  # how long a release waits for a store that hangs


class Lease:
    """One reader's lease, renewed by a background thread until released.

    When the constructor returns, **everything** is leased. The order that protects: lease everything,
    then read the log (`Root.latest`), then narrow with `only`. To move on, `hold` the next version
    first, then narrow to it. A lease protects with a version all that it references and builds on.
    Thread-safe. A pause of the process longer than the root's lease period loses the protection, not
    correctness: objects may be gone then, and reads raise VersionGone. It stays with the process that took
    it: in a forked child it counts as released, and the parent's goes on.

    Args:
        reader: a name for people; made from host and process when None. Two readers may share it.
        interval_s: between renewals; a quarter of the lease period when None.
    """

    def __init__(
        self, place: Place, reader: str | None = None, *, interval_s: float | None = None
    ) -> None:
        host = "".join(c if c.isalnum() and c.isascii() else "-" for c in socket.gethostname())
        self.reader = layout.check_name(reader or f"h{host[:60]}-{os.getpid()}", "reader")
        self._place = place
        self._interval_s = place.lease_s / 4 if interval_s is None else interval_s
        self._path = place.path / layout.lease_name(self.reader, secrets.token_hex(8))
        self._pace = OverwritePace(self._path)
        self._lock = threading.Lock()
        self._counter = 0
        self._versions: frozenset[int] | None = None
        self._later: frozenset[int] | None = None  # what `narrow` asked for and is not written yet
        self._released = False
        renew_after_fork(self)
        self._write(None)
        self._heartbeat = Heartbeat(
            self._renew, interval_s=self._interval_s, name=f"wstore-lease-{self.reader}"
        )

    def after_fork(self) -> None:
        """The document is the parent's, who renews it."""
        self._lock = threading.Lock()
        self._released = True

    @property
    def versions(self) -> frozenset[int] | None:
        """What is leased; None: everything."""
        return self._versions

    def everything(self) -> None:
        """Lease all versions. In the store when this returns."""
        self._write(None)

    def only(self, *versions: int) -> None:
        """Lease these versions and no others. In the store when this returns."""
        self._write(frozenset(versions))

    def narrow(self, *versions: int) -> None:
        """As `only`, but never waits for a store that lets an object be overwritten only so often:
        there the heartbeat narrows the lease when it may. Until then more is leased, which is safe."""
        delay_s = self._pace.remaining_s
        if delay_s == 0.0:
            self.only(*versions)
            return
        self._later = frozenset(versions)
        self._heartbeat.soon(delay_s)

    def hold(self, version: int) -> None:
        """Lease `version` besides what is leased, then make sure that it is alive still.

        Raises:
            VersionGone: retention was faster; the lease is as before. NoVersion.
        """
        before = self._versions if self._later is None else self._later
        if before is not None:
            self._write(before | {version})
        # Only now: a floor that is not in the log yet will find this lease before it deletes.
        self._place.log.refresh()
        try:
            self._place.log.weights(version)
        except (NoVersion, VersionGone):
            self._write(before)
            raise

    def release(self) -> None:
        """Give the lease up. Idempotent. A failure is logged: the lease then runs out by itself.

        Takes a few seconds at most: where the store hangs, the removal goes on in the background.
        """
        if self._released:
            return
        self._released = True
        self._heartbeat.close()
        removal = Probe(self._remove, place=self._place.path.url)
        removal.start()
        if removal.done.wait(_RELEASE_S):
            removal.result()
        else:
            removal.give_up()
            _log.warning("%s: the store hangs, the lease may have to run out", self._path.url)

    def _remove(self) -> None:
        with self._lock:  # after a renewal that is under way
            try:
                self._path.remove(missing_ok=True)
            except WStoreError as error:
                _log.warning("the lease was not removed, it will run out: %s", error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def _renew(self) -> None:
        with self._lock:
            if self._released:
                return
            later = self._later
            versions = self._versions if later is None else later
            self._store(versions)
            self._versions = versions
            if self._later is later:
                self._later = None

    def _write(self, versions: frozenset[int] | None) -> None:
        with self._lock:
            if self._released:
                raise RootError("this lease is released; take a new one", url=self._path.url)
            self._later = None
            self._store(versions)
            self._versions = versions

    def _store(self, versions: frozenset[int] | None) -> None:
        self._counter += 1
        document = LeaseDocument(
            root=self._place.root_id,
            reader=self.reader,
            counter=self._counter,
            interval_s=self._interval_s,
            versions=None if versions is None else sorted(versions),
        )
        with self._pace:
            self._path.write_file(seal(document))


class LeaseWatch:
    """Judges the leases of a root by looking at them again and again, with its own clock only."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._watch = StandstillWatch()

    def look(self) -> tuple[dict[str, LeaseDocument], list[StoragePath]]:
        """The leases that count as alive, by name; and the paths of the dead ones.

        Dead: the counter stood still for a lease period, between looks of this object. A lease that
        cannot be parsed counts as one of everything while it stays, and dies like any other.
        """
        now = time.monotonic()
        alive: dict[str, LeaseDocument] = {}
        dead: list[StoragePath] = []
        paths = [path for path in _children(self._place.path) if layout.is_lease(path.name)]
        for path, lease in zip(paths, in_parallel(self._read, paths), strict=True):
            if lease is None:
                continue
            value = (lease.counter, tuple(lease.versions or ()), lease.versions is None)
            if self._watch.observe(path.name, value, now) >= self._place.lease_s:
                dead.append(path)
            else:
                alive[path.name] = lease
        return alive, dead

    def _read(self, path: StoragePath) -> LeaseDocument | None:
        try:
            return read_document(LeaseDocument, path, root=self._place.root_id)
        except NotFound:
            return None
        except WStoreError as error:
            _log.warning("a lease cannot be read and is taken for one of everything: %s", error)
            return LeaseDocument(
                root=self._place.root_id,
                reader="unreadable",
                counter=0,
                interval_s=1,
                versions=None,
            )


def _children(root: StoragePath) -> list[StoragePath]:
    try:
        return list((root / layout.LEASES).iterdir())
    except NotFound:
        return []
