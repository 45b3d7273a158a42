"""The table of environment variables in docs/storage.md has every variable that the code looks at."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("wstore", "codecs/wstore_codecs", "transports/wstore_transports")
NAME = re.compile(
    r"(AWS|AZURE|AZURITE|CLOUDSDK|COMP|GCSFS|GOOGLE|NO|SSL|STORAGE|WSTORE|_TYPER|_WSTORE)_[A-Z0-9_]+"
)

# The standard library and fsspec read these for us.
ELSEWHERE = {"FSSPEC_CONFIG_DIR", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"}
# What shells and libraries say among themselves: nothing to be set by hand.
INTERNAL = {
    "COMP_CWORD",
    "COMP_WORDS",
    "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT",
    "NO_GCE_CHECK",
    "_TYPER_COMPLETE_ARGS",
    "_WSTORE_COMPLETE",
}


def in_code() -> set[str]:
    """Every string of the packages that is the name of a variable."""
    found = set()
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            if "testing" in file.relative_to(ROOT).parts:
                continue
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found |= {node.value} if NAME.fullmatch(node.value) else set()
    return found - INTERNAL


def in_table() -> list[str]:
    """The first column of the section's table, in its order."""
    section = (ROOT / "docs/storage.md").read_text().partition("## Environment variables")[2]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([A-Z0-9_]+)`", row)]


def test_every_variable_is_in_the_table_once() -> None:
    named = in_table()
    assert len(named) == len(set(named))
    assert set(named) == in_code() | ELSEWHERE
