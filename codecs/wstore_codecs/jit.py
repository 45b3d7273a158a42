"""Compiles kernels with numba: on use, once a process, kept on disk where that is possible.

A kernel is a plain Python function that numba compiles whole; its constants live in its own module,
because numba's cache is renewed when that one file changes.
"""

from __future__ import annotations

import logging
import pickle
import threading
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import numpy as np

    S = TypeVar("S", bound=tuple[Any, ...])
    D = TypeVar("D", bound=np.dtype[Any])

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger(__name__)
_lock = threading.Lock()
_CACHE_TROUBLE = (
    OSError,
    RuntimeError,
    EOFError,
    pickle.PickleError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ImportError,
)
_done: dict[tuple[str, str], Callable[..., object]] = {}


def compiled(kernel: Callable[P, R], signature: str) -> Callable[P, R]:
    """The kernel compiled for one numba signature; it releases the GIL and wraps integers.

    The compiled code is kept in numba's cache directory. Where none can be written, or what is there
    cannot be used, it is compiled for this process alone.
    """
    key = (f"{kernel.__module__}.{kernel.__qualname__}", signature)
    found = _done.get(key)
    if found is None:
        with _lock:
            found = _done.get(key) or _done.setdefault(key, _compile(kernel, signature))
    return cast("Callable[P, R]", found)


def is_compiled(kernel: Callable[..., object], signature: str) -> bool:
    """Whether `compiled` would return at once."""
    return (f"{kernel.__module__}.{kernel.__qualname__}", signature) in _done


def frozen(array: np.ndarray[S, D]) -> np.ndarray[S, D]:
    """A view that may not be written, as the kernels take their inputs."""
    view = array.view()
    view.flags.writeable = False
    return view


def read_only(kind: str) -> str:
    """The numba type of a frozen, contiguous 1-d array."""
    return f"Array({kind}, 1, 'C', readonly=True)"


def _compile(kernel: Callable[P, R], signature: str) -> Callable[P, R]:
    import numba

    try:
        made: Callable[P, R] = numba.njit(signature, cache=True, nogil=True, error_model="numpy")(
            kernel
        )
    except _CACHE_TROUBLE as error:
        # No directory can be written, the disk is full, or a cached file is damaged: numba lets all
        # of these through. A fault of the kernel itself is none of them, or comes again below.
        _log.info("numba's cache is of no use for %s (%s): compiling", kernel.__qualname__, error)
        made = numba.njit(signature, nogil=True, error_model="numpy")(kernel)
    return made
