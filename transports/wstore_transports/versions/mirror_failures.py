"""What it means when mirrors fail: each one, and all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wstore.errors import NotFound, WStoreError
from wstore_transports.errors import MirrorsFailed, NotARoot, RecordMissing, VersionGone
from wstore_transports.versions.mirror_site import NotYet
from wstore_transports.versions.version import Version

if TYPE_CHECKING:
    from wstore_transports.versions.mirror_site import Site

    Failures = list[tuple[Site, WStoreError]]

_MAY_COME = (NotFound, RecordMissing)  # a mirror that is being filled gets them in any order


class AllFailed(Exception):
    """One round over the mirrors brought nothing."""

    def __init__(self, failures: Failures) -> None:
        super().__init__()
        self.failures = failures

    @property
    def may_pass(self) -> bool:
        """Whether another round may help: a mirror is away, or behind ("not yet")."""
        errors = [error for _, error in self.failures]
        if any(isinstance(error, VersionGone) for error in errors):
            return False
        return any(error.retryable or isinstance(error, _MAY_COME) for error in errors)

    @property
    def no_root_yet(self) -> bool:
        """Whether a mirror has nothing at all under the marker's name."""
        return any(is_empty(error) for _, error in self.failures)

    def as_error(self) -> WStoreError:
        """One error that names each URL and its cause. Of the mirrors' own kind where all agree."""
        errors = [error for _, error in self.failures]
        kinds = {type(error) for error in errors}
        kind = kinds.pop() if len(kinds) == 1 else MirrorsFailed
        if kind is NotYet:
            kind = NotFound
        if any(isinstance(error, VersionGone) for error in errors):
            kind = VersionGone
        causes = "; ".join(_named(site, error) for site, error in self.failures)
        combined = kind(f"no mirror can serve this: {causes}")
        combined.retryable = any(error.retryable for error in errors)
        return combined


def is_empty(error: WStoreError) -> bool:
    """Whether this came of a mirror that answers and has no root, so far."""
    return isinstance(error, NotARoot) and isinstance(error.__cause__, FileNotFoundError)


def meaning_of(site: Site, version: Version, error: WStoreError) -> WStoreError:
    """What it means that reading an object of the version failed here; missing is: not yet, gone, or lost."""
    if not isinstance(error, NotFound) or isinstance(error, VersionGone):
        return error
    try:
        root = site.root()
        newest = root.log.refresh().standing.latest
        if newest < version.number:
            return NotYet(
                f"is not there yet: this mirror has versions up to {newest}, not {version.number}",
                url=error.url,
            )
        return Version(root.place, version.record).missing(error)
    except WStoreError as failed:
        return failed


def _named(site: Site, error: WStoreError) -> str:
    return str(error) if error.url.startswith(site.path.url) else f"{site.path.url}: {error}"
