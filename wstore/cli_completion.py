"""Shell completion: names of commands without importing their packages, local paths, keys of a bucket.

`wstore --install-completion` sets it up. Whatever goes wrong while a word is completed is nothing to
complete: a shell has no place for an error.
"""

from __future__ import annotations

import os
import threading
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import quote

from wstore.path import StoragePath
from wstore.stores.registry import bare_store
from wstore.transfer import attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping

TIMEOUT_S = 2.0
_MAX_SCANNED = 10_000
_MAX_SHOWN = 200


def is_completing(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a shell asks for completions, instead of somebody running a command."""
    return environment.get("_WSTORE_COMPLETE", "").startswith("complete")


def command_typed(
    known: Collection[str], environment: Mapping[str, str] = os.environ
) -> str | None:
    """The command on the line that is being typed, if it is there already."""
    line = environment.get("_TYPER_COMPLETE_ARGS") or environment.get("COMP_WORDS", "")
    word = next((word for word in line.split()[1:] if not word.startswith("-")), None)
    return word if word in known else None


def join_colons(environment: MutableMapping[str, str]) -> str:
    """Put URLs together that bash took apart: to bash a colon is a word of its own.

    Changes the variables that describe the line. Returns what the answers must then leave out: bash
    replaces only what is behind the colon.
    """
    words, at = environment.get("COMP_WORDS", "").split(), environment.get("COMP_CWORD", "")
    if environment.get("_WSTORE_COMPLETE") != "complete_bash" or not at.isdecimal():
        return ""
    joined: list[str] = []
    left_out, cursor = "", int(at)
    for number, word in enumerate(words):
        if joined and (word == ":" or (word.startswith("//") and joined[-1].endswith(":"))):
            left_out = joined[-1] if number == int(at) else ""
            joined[-1] += word
            cursor -= number <= int(at)
        else:
            joined.append(word)
    environment["COMP_WORDS"], environment["COMP_CWORD"] = " ".join(joined), str(cursor)
    return left_out


def complete_url(incomplete: str) -> list[str]:
    """What `incomplete` may become: local names, or the keys below the last "/" of a URL."""
    return _within(TIMEOUT_S, lambda: list(islice(_candidates(incomplete), _MAX_SHOWN)))


def _candidates(typed: str) -> Iterator[str]:
    folder, slash, start = typed.rpartition("/")
    if "://" not in typed:
        yield from _local(folder + slash, start)
    elif "://" in folder + slash and not folder.endswith((":/", ":")):
        yield from _keys(folder, start)


def _local(folder: str, start: str) -> Iterator[str]:
    with os.scandir(folder or ".") as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            hidden = entry.name.startswith(".") and not start.startswith(".")
            if entry.name.startswith(start) and not hidden:
                yield f"{folder}{entry.name}" + ("/" if entry.is_dir() else "")


def _keys(folder: str, start: str) -> Iterator[str]:
    path = StoragePath(folder)
    prefix = f"{path.key}/" if path.key else ""
    # One listing, without retries: whoever waits for a completion waits for no store.
    entries = bare_store(path.location).list(prefix, recursive=False)
    for entry in islice(entries, _MAX_SCANNED):
        name = entry.key.removeprefix(prefix)
        shown = quote(name, safe="/") if folder.lower().startswith("file:") else name
        if shown.startswith(start):
            yield f"{folder}/{shown}"


def _within(timeout_s: float, call: Callable[[], list[str]]) -> list[str]:
    found: list[str] = []
    # An error is dropped: see the module.
    thread = threading.Thread(target=attempt, args=(lambda: found.extend(call()),), daemon=True)
    thread.start()
    thread.join(timeout_s)
    return list(found)
