"""Errors of versioned roots, in the same tree as `wstore.errors`. All of them pickle."""

from __future__ import annotations

from wstore.errors import IntegrityError, NotFound, WStoreError


class RootError(WStoreError):
    """A root cannot be used the way it was asked to be."""


class NotARoot(RootError, ValueError):
    """There is no (valid) `wstore.json` here, so nothing is read, written or deleted."""


class NoRoot(NotARoot, FileNotFoundError):
    """Nothing here says that it is a root: there is no `wstore.json`."""


class NoVersion(RootError, LookupError):
    """The log shows no committed version yet, or no version of this number."""


class VersionGone(NotFound):
    """The version was committed once, and retention has let it go: start again from a newer one."""


class RecordMissing(IntegrityError):
    """A log record is not there, though something that was written after it is: the root has lost it.
    (A mirror that is being filled may not have it yet.)"""


class Fenced(RootError):
    """Another publisher has taken this root over. Nothing more may be published by this session."""


class AttemptAborted(RootError):
    """The version was not committed: a rank gave up, or what the ranks wrote is not whole."""


class RunEnded(RootError):
    """The publisher said that no further version will come."""


class PublisherLost(RootError, TimeoutError):
    """The publisher's counter stood still for longer than a living one's would."""


class DifferentRoots(RootError, ValueError):
    """Places that were given as mirrors of one root hold different ones."""


class MirrorsFailed(RootError, OSError):
    """No mirror could serve what was asked; the message names each URL and its cause."""


class GroupFailed(RootError):
    """The ranks of an engine do not agree, or one did not answer. Each that raises this applied nothing."""


class IsAMirror(RootError):
    """This root is filled from another place; only what fills it may write to its log."""


class LogsParted(RootError):
    """A mirror's log is not the beginning of its source's: something else wrote to one of them."""
