"""The shape of the repository: what imports where, what a wheel holds, what is named how."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "wstore": ROOT / "wstore",
    "wstore_codecs": ROOT / "codecs" / "wstore_codecs",
    "wstore_transports": ROOT / "transports" / "wstore_transports",
}
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.parametrize("folder", ["codecs", "transports"])
def test_folder_of_a_package_is_no_package_itself(folder: str) -> None:
    """A package `codecs` would shadow the standard library's module."""
    found = {path.name for path in (ROOT / folder).iterdir() if path.name != "__pycache__"}
    assert found == {f"wstore_{folder}"}


def test_tests_are_no_packages() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_package_is_typed_and_each_of_its_folders_has_an_init(package: str) -> None:
    root = PACKAGES[package]
    assert (root / "py.typed").is_file()
    folders = {path.parent for path in root.rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_is_named_like_one_of_the_standard_library(package: str) -> None:
    """Run as a script, a `http.py` would break `urllib` for everything that it imports."""
    names = {path.stem for path in PACKAGES[package].rglob("*.py")} - {"__init__", "__main__"}
    assert names & set(sys.stdlib_module_names) == set()


def test_wheel_lists_exactly_the_three_packages() -> None:
    listed = SETTINGS["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {ROOT / path for path in listed} == set(PACKAGES.values())


def test_every_dependency_is_pinned() -> None:
    """What `make` installs is the same tomorrow."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {_canonical(line) for line in lines if "==" in line and not line.startswith(" ")}
    project = SETTINGS["project"]
    wanted = [
        *project["dependencies"],
        *project["optional-dependencies"]["bench"],
        *SETTINGS["dependency-groups"]["dev"],
        *SETTINGS["build-system"]["requires"],
    ]
    assert {_canonical(line) for line in wanted} - pinned == set()


def _canonical(requirement: str) -> str:
    name = requirement.split("[")[0].split("=")[0].split(">")[0].split("<")[0]
    return name.strip().lower().replace("_", "-")


@pytest.mark.long
def test_wheel_works_in_a_fresh_environment(tmp_path: Path) -> None:
    """Built, installed without dependencies, and imported from elsewhere, by a bare interpreter."""
    build = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    command = [sys.executable, "-c", build, str(tmp_path)]
    name = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    wheel = tmp_path / name.strip().splitlines()[-1]
    with zipfile.ZipFile(wheel) as archive:
        top = {entry.split("/")[0] for entry in archive.namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == set(PACKAGES)

    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    code = (
        "import wstore; p = wstore.StoragePath('object'); p.write_text('x');"
        "assert p.read_text() == 'x'; print(wstore.__file__)"
    )
    command = [str(python), "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "env"))
