"""What `import wstore` loads, and what it exports."""

from __future__ import annotations

import subprocess
import sys

import pytest

import wstore

HEAVY = (
    "numpy", "torch", "numba", "fsspec", "obstore", "urllib3", "typer", "rich", "msgspec", "xxhash",
    "google_crc32c", "asyncio", "ssl", "http", "importlib.metadata", "concurrent.futures", "email", "pickle",
)  # fmt: skip


def loaded_after(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(result.stdout.split())


def test_importing_loads_no_module_of_ours() -> None:
    loaded = loaded_after("import wstore")
    assert {name for name in loaded if name.startswith("wstore.")} == set()
    assert not loaded & {*HEAVY, "typing", "dataclasses"}


def test_the_path_loads_nothing_heavy() -> None:
    loaded = loaded_after("from wstore import StoragePath")
    assert "wstore.path" in loaded
    assert not loaded & set(HEAVY)
    assert not {name for name in loaded if name.startswith("wstore.stores.")} - {
        "wstore.stores.base",
        "wstore.stores.registry",
    }


def test_local_files_load_no_client() -> None:
    code = "import wstore, tempfile\np = wstore.StoragePath(tempfile.mkdtemp()) / 'x'\np.write_bytes(b'x')\np.read_bytes()"
    assert not loaded_after(code) & {
        "numpy",
        "torch",
        "numba",
        "fsspec",
        "obstore",
        "urllib3",
        "ssl",
    }


def test_public_names() -> None:
    assert sorted(wstore.__all__) == wstore.__all__ or set(wstore.__all__) <= set(dir(wstore))
    assert {"StoragePath", "ObjectInfo", "WStoreError", "Progress", "MEMORY_BUDGET"} <= set(
        wstore.__all__
    )
    public = {name for name in dir(wstore.errors) if isinstance(getattr(wstore.errors, name), type)}
    ours = {name for name in public if issubclass(getattr(wstore.errors, name), wstore.WStoreError)}
    assert ours - {"BodyCut", "BodyStalled"} <= set(wstore.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'StorePath'"):
        getattr(wstore, "StorePath")  # noqa: B009
