"""`wstore mirror`: a root copied to another place, which may be of another kind; the log record last."""

from wstore_transports.mirroring.mirror import Mirror, MirrorReport
from wstore_transports.mirroring.tree import MirrorTree

__all__ = ["Mirror", "MirrorReport", "MirrorTree"]
