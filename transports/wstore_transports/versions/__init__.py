"""The versioned root: the log, publishing sessions, leases, retention, and where each byte of a version is.

A trainer: `Root.create(path)`, `begin_session`, `open_attempt`, write, `done`, `commit`. An engine:
`Root.open(path)`, `lease`, `wait`, `Version.manifest`, `BlockSource`. `docs/format.md` has the protocol.
"""

from wstore_transports.versions.attempt import Attempt, Outcome
from wstore_transports.versions.block_source import BlockSource, Run
from wstore_transports.versions.collection import GcPlan, GcReport, collect, plan_gc
from wstore_transports.versions.documents import Block, Manifest, ObjectRef, Spec, Tensor
from wstore_transports.versions.entering import enter
from wstore_transports.versions.leases import Lease
from wstore_transports.versions.log import Log
from wstore_transports.versions.mirrors import Mirrors
from wstore_transports.versions.retention import Fate, Retention
from wstore_transports.versions.root import Root
from wstore_transports.versions.session import PublishSession
from wstore_transports.versions.version import Version

__all__ = [
    "Attempt",
    "Block",
    "BlockSource",
    "Fate",
    "GcPlan",
    "GcReport",
    "Lease",
    "Log",
    "Manifest",
    "Mirrors",
    "ObjectRef",
    "Outcome",
    "PublishSession",
    "Retention",
    "Root",
    "Run",
    "Spec",
    "Tensor",
    "Version",
    "collect",
    "enter",
    "plan_gc",
]
