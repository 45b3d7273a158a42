"""What S3 accepts. Source: "Amazon S3 multipart upload limits", Amazon S3 User Guide."""

from __future__ import annotations

from wstore.stores.base import GiB, MiB, PieceLimits

LIMITS = PieceLimits(
    min_piece=5 * MiB,
    max_piece=5 * GiB,
    max_pieces=10_000,
    max_put=5 * GiB,
    max_object=10_000 * 5 * GiB,
)
MAX_COPY = 5 * GiB
