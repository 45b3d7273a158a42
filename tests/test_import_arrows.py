"""Who imports whom: transports -> codecs -> storage, and what an import must not load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

HEAVY = {
    "wstore": {
        "torch", "numpy", "numba", "fsspec", "obstore", "urllib3", "typer", "rich", "msgspec",
        "wstore_codecs", "wstore_transports",
    },
    "wstore_codecs": {"torch", "numba", "obstore", "typer", "wstore_transports"},
    "wstore_transports": {"torch", "obstore", "typer"},
    "wstore.cli_program": {"torch", "numpy", "numba", "obstore", "wstore_codecs", "wstore_transports"},
}  # fmt: skip


def test_import_linter_contract_holds() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("module", HEAVY)
def test_import_loads_nothing_heavy(module: str, tmp_path: Path) -> None:
    code = f"import sys, {module}; print(*sorted({{m.partition('.')[0] for m in sys.modules}}))"
    loaded = set(_python(code, tmp_path).split())
    assert loaded & HEAVY[module] == set()
    assert module.partition(".")[0] in loaded


def test_ls_loads_no_transport_and_no_cloud_client(tmp_path: Path) -> None:
    (tmp_path / "object").write_bytes(b"x")
    code = (
        "import sys; from wstore.cli import main; assert main(['ls', '.']) == 0;"
        "print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    )
    listed, *modules = _python(code, tmp_path).splitlines()
    assert listed.endswith("object")
    heavy = HEAVY["wstore.cli_program"] | {"urllib3"}
    assert set(modules[-1].split()) & heavy == set()


def _python(code: str, directory: Path) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd=directory, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
