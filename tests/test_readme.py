"""The README's Python runs as it stands there, and so do the examples."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from wstore import cli_program

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def _blocks() -> dict[str, str]:
    """The Python of each section, by its title."""
    sections = re.split(r"^## ", README, flags=re.MULTILINE)[1:]
    found = {}
    for section in sections:
        title, _, body = section.partition("\n")
        for code in re.findall(r"^```python\n(.*?)^```", body, flags=re.MULTILINE | re.DOTALL):
            found[title] = code
    return found


def _run(code: str, given: dict[str, object], directory: Path) -> None:
    script = directory / "readme_block.py"
    script.write_text(code)
    runpy.run_path(str(script), init_globals=given)


def test_deltas_by_hand(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    old = {name: rng.standard_normal((300, 300), np.float32) for name in "ab"}
    new = {name: array + (rng.random((300, 300)) < 0.02) for name, array in old.items()}
    new = {name: array.astype(np.float32) for name, array in new.items()}
    served = {name: array.copy() for name, array in old.items()}
    _run(_blocks()["Deltas by hand"], {"new": new, "old": old, "served": served}, tmp_path)
    assert all(np.array_equal(served[name], new[name]) for name in new)


def test_trainer_and_engine_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    blocks = _blocks()
    trained, served = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def train_one_step(_: object) -> None:
        with torch.no_grad():
            trained.weight += 1

    given: dict[str, object] = {"model": trained, "train_one_step": train_one_step}
    _run(blocks["In a trainer"], given, tmp_path)
    assert "step 10: " in capsys.readouterr().out
    _run(blocks["In an engine"], {"model": served}, tmp_path)
    assert "now serving step 10" in capsys.readouterr().out
    assert torch.equal(served.weight, trained.weight)
    assert torch.equal(served.bias, trained.bias)
    resumed = torch.nn.Linear(8, 8)
    _run(blocks["After a restart"], {"model": resumed}, tmp_path)
    assert torch.equal(resumed.weight, trained.weight)
    whole = {name: tensor.clone() * 0 for name, tensor in trained.state_dict().items()}
    _run(blocks["Whole checkpoints"], {"model": trained, "served": whole}, tmp_path)
    assert "version 2: " in capsys.readouterr().out
    assert torch.equal(whole["weight"], trained.weight)


def test_files_of_the_readme(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run(_blocks()["Files on any store"], {}, tmp_path)
    assert capsys.readouterr().out == "['log.bin', 'notes.txt']\n"


def test_readme_lists_every_command() -> None:
    listed = set(re.findall(r"^    wstore (\w+)", README, flags=re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert listed == {*cli_program.BUILT_IN, *project["entry-points"][cli_program.GROUP]}


def test_links_of_the_documents_lead_somewhere() -> None:
    for document in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / link).exists(), f"{document.name} links to {link}"


def test_examples_run_side_by_side(tmp_path: Path) -> None:
    url = str(tmp_path / "root")
    command = [sys.executable, str(ROOT / "examples" / "engine.py"), url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as engine:
        trainer: Callable[..., None] = runpy.run_path(str(ROOT / "examples" / "trainer.py"))["main"]
        trainer(url, steps=4, publish_every=2, pause_s=0.0)
        output, _ = engine.communicate(timeout=120)
    assert engine.returncode == 0
    assert output.splitlines()[-1].startswith("version ")
    assert "step 4: 2 tensors" in output
