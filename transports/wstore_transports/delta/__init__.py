"""Sparse broadcast: each version as what changed, anchors for those who join, applied all or nothing.

A trainer: `Publisher(url)`, then `publish(step, tensors)`. An engine: `Subscriber(url)`, `load()` once, then
`sync(state)` for each version.
"""

from wstore_transports.checkpoint.pieces import Shard
from wstore_transports.delta.agreement import Alone, Group, TorchGroup
from wstore_transports.delta.blockwise import BlockwiseFp8
from wstore_transports.delta.publisher import Publisher
from wstore_transports.delta.reports import ApplyReport, CommitReport, PublishReport
from wstore_transports.delta.shared_cache import SharedCache
from wstore_transports.delta.staged import Staged
from wstore_transports.delta.subscriber import Subscriber

__all__ = [
    "Alone",
    "ApplyReport",
    "BlockwiseFp8",
    "CommitReport",
    "Group",
    "PublishReport",
    "Publisher",
    "Shard",
    "SharedCache",
    "Staged",
    "Subscriber",
    "TorchGroup",
]
