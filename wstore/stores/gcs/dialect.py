"""Google Cloud Storage's XML API, as it differs from S3's.

The tag of an object is its generation: a number that no two contents of a key share. Sources: "XML API
HTTP headers", "XML API multipart uploads" and "Quotas & limits", Cloud Storage documentation.
"""

from __future__ import annotations

import re

from wstore.stores.base import GiB, MiB, PieceLimits
from wstore.stores.s3.dialect import Dialect

_GENERATION = re.compile(r"[1-9][0-9]{0,18}")
_TiB = 1 << 40


def generation(text: str) -> str:
    """A generation, or "" for what is none. "0" is none: as a condition it means "no object"."""
    return text if _GENERATION.fullmatch(text) else ""


GCS = Dialect(
    service="Google Cloud Storage",
    scheme="gs",
    endpoint_variable="WSTORE_GCS_ENDPOINT",
    ca_variable="WSTORE_GCS_CA_BUNDLE",
    read_tag=generation,
    tag_header="x-goog-generation",
    tag_element="Generation",
    obstore_tag="version",
    # obstore could only name the generation itself, and a bucket that keeps old ones would serve it.
    obstore_pin=None,
    match_header="x-goog-if-generation-match",
    absent=("x-goog-if-generation-match", "0"),
    metadata="x-goog-meta-",
    copy_source="x-goog-copy-source",
    copy_match="x-goog-copy-source-if-generation-match",
    checksum=("x-goog-hash", "crc32c="),
    checksum_extra=(),
    upload_extra=(),
    piece_checksums=False,
    limits=PieceLimits(
        min_piece=5 * MiB,
        max_piece=5 * GiB,
        max_pieces=10_000,
        # One PUT takes a whole object of 5 TiB; beyond this a repeat after a failure costs too much.
        max_put=5 * GiB,
        max_object=5 * _TiB,
    ),
    max_copy=5 * _TiB,
)
