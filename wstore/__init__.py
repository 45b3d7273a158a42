"""wstore: where bytes live. Paths, ranged reads and atomic writes on local disk, shared mounts and S3.

    from wstore import StoragePath

    path = StoragePath("s3://bucket/run1") / "head.json"
    path.write_bytes(b"{}")

Importing this loads no client library, no numpy and no torch; those come on first use.
"""

from wstore.errors import (
    AccessDenied,
    AlreadyExists,
    Cancelled,
    ConnectionFailed,
    CredentialsMissing,
    DirectoryNotEmpty,
    ForkedProcess,
    IntegrityError,
    InvalidArgument,
    InvalidPath,
    IsADirectory,
    MissingPackage,
    NewerFormat,
    NoSpace,
    NotADirectory,
    NotFound,
    ObjectChanged,
    OutcomeUnknown,
    PreconditionFailed,
    StoreError,
    StoreTimeout,
    Unavailable,
    UnsupportedOperation,
    WaitTimeout,
    WStoreError,
)
from wstore.path import StoragePath
from wstore.progress import Progress
from wstore.stores.base import ObjectInfo
from wstore.upload import MEMORY_BUDGET

__all__ = [
    "MEMORY_BUDGET",
    "AccessDenied",
    "AlreadyExists",
    "Cancelled",
    "ConnectionFailed",
    "CredentialsMissing",
    "DirectoryNotEmpty",
    "ForkedProcess",
    "IntegrityError",
    "InvalidArgument",
    "InvalidPath",
    "IsADirectory",
    "MissingPackage",
    "NewerFormat",
    "NoSpace",
    "NotADirectory",
    "NotFound",
    "ObjectChanged",
    "ObjectInfo",
    "OutcomeUnknown",
    "PreconditionFailed",
    "Progress",
    "StoragePath",
    "StoreError",
    "StoreTimeout",
    "Unavailable",
    "UnsupportedOperation",
    "WStoreError",
    "WaitTimeout",
]
