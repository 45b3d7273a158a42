"""wstore: where bytes live. Paths, ranged reads and atomic writes on local disk, shared mounts and S3.

    from wstore import StoragePath

    path = StoragePath("s3://bucket/run1") / "head.json"
    path.write_bytes(b"{}")

Importing this loads nothing; a name brings its module on first use, and a store its client library.
"""

TYPE_CHECKING = (
    False  # for type checkers, which take it as true; `typing` itself would cost a third of it
)
if TYPE_CHECKING:
    from types import ModuleType

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
        StateLost,
        StoreError,
        StoreTimeout,
        UnalignedSlice,
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
    "StateLost",
    "StoragePath",
    "StoreError",
    "StoreTimeout",
    "UnalignedSlice",
    "Unavailable",
    "UnsupportedOperation",
    "WStoreError",
    "WaitTimeout",
]

_ELSEWHERE = {
    "MEMORY_BUDGET": "wstore.upload",
    "ObjectInfo": "wstore.stores.base",
    "Progress": "wstore.progress",
    "StoragePath": "wstore.path",
}


def __getattr__(name: str) -> object:
    """A public name, from its module; what is not listed elsewhere is an error class."""
    from importlib import import_module

    if name == "errors":
        errors: ModuleType = import_module("wstore.errors")
        return errors
    if name not in __all__:
        raise AttributeError(f"module 'wstore' has no attribute {name!r}")
    value: object = getattr(import_module(_ELSEWHERE.get(name, "wstore.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
