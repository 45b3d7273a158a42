"""The program `wstore`: its global options, how errors look, and commands of other packages.

Exit codes: 0 done, 1 failed (the store, or a verification), 2 wrong use, 3 not found, 4 timed out while
waiting, 130 interrupted. An error is one line on stderr; `--debug` shows its traceback before.

A distribution adds a command through the entry-point group `wstore.commands`: a name, and a function
with typer's annotations whose docstring is the help. It is imported only when it is called or when help
is asked for, so `wstore ls` starts without torch.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import traceback
from importlib import metadata
from typing import TYPE_CHECKING, Annotated

import typer

from wstore import cli_completion, cli_copy, cli_paths
from wstore.cli import INTERRUPTED
from wstore.cli_output import printable
from wstore.errors import (
    InvalidArgument,
    InvalidPath,
    UnsupportedOperation,
    WaitTimeout,
    WStoreError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GROUP = "wstore.commands"

FAILED, WRONG_USE, MISSING, TIMED_OUT = 1, 2, 3, 4

BUILT_IN: dict[str, Callable[..., None]] = {
    "ls": cli_paths.ls,
    "cat": cli_paths.cat,
    "cp": cli_copy.cp,
    "stat": cli_paths.stat,
    "rm": cli_paths.rm,
    "wait": cli_paths.wait,
    "watch": cli_paths.watch,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: the process's) and return its exit code. Raises only
    KeyboardInterrupt, before a command runs."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = next((word for word in words if not word.startswith("-")), None)
    before = words if command is None else words[: words.index(command)]
    try:
        return _run(words, command)
    except Exception as error:  # noqa: BLE001 - it is reported
        if "--debug" in before:
            traceback.print_exception(error)
        return _report(error)


def _run(words: list[str], command: str | None) -> int:
    if sys.stdout is None:  # also: the next file that is opened would get its number
        raise InvalidArgument("standard output is closed")
    if cli_completion.is_completing():
        return _complete()
    # A command that waits for a store which fails should say so, not stand still for two minutes.
    logging.basicConfig(level=logging.WARNING, format="wstore: %(message)s")
    app = _application(command, version="--version" in words)
    try:
        code = app(args=words, prog_name="wstore", standalone_mode=False)
    except SystemExit as done:  # --install-completion and --show-completion
        code = done.code
    sys.stdout.flush()
    return code if isinstance(code, int) else 0


def _complete() -> int:
    """Answer a shell that wants to complete a word. Without a command, only names are needed."""
    logging.disable()
    left_out = cli_completion.join_colons(os.environ)
    plugins = _plugins()
    command = cli_completion.command_typed([*BUILT_IN, *plugins])
    app = _application(command, version=command is None)
    if command is None:
        for name in plugins:
            app.command(name)(_unloaded)
    answers = io.StringIO()
    with contextlib.redirect_stdout(answers), contextlib.suppress(SystemExit):
        app(args=[], prog_name="wstore", standalone_mode=False)
    print(*(line.removeprefix(left_out) for line in answers.getvalue().splitlines()), sep="\n")
    return 0


def _unloaded() -> None:
    """A command of another package."""


def _application(command: str | None, *, version: bool) -> typer.Typer:
    """The commands that this command line may need: the one it names, or all of them for the help."""
    plugins = _plugins()
    names = [command] if command is not None else [] if version else sorted(plugins)
    if command is not None and command not in BUILT_IN and command not in plugins:
        known = ", ".join([*BUILT_IN, *sorted(plugins)])
        raise UnsupportedOperation(f"there is no command {command!r}; there are: {known}")
    app = typer.Typer(name="wstore", no_args_is_help=True)
    app.callback()(_global_options)
    for name, function in BUILT_IN.items():
        app.command(name)(function)
    for name in names:
        plugin = _load(name, plugins[name], called=command is not None) if name in plugins else None
        if plugin is not None:
            app.command(name)(plugin)
    return app


def _plugins() -> dict[str, list[metadata.EntryPoint]]:
    found: dict[str, list[metadata.EntryPoint]] = {}
    for entry in metadata.entry_points(group=GROUP):
        if entry.name not in BUILT_IN and entry not in found.setdefault(entry.name, []):
            found[entry.name].append(entry)
    return found


def _load(
    name: str, entries: list[metadata.EntryPoint], *, called: bool
) -> Callable[..., None] | None:
    """The command's function; where it cannot be had: None, said in one line, or an error if called."""
    try:
        if len(entries) > 1:
            owners = ", ".join(entry.value for entry in entries)
            raise UnsupportedOperation(f"more than one package provides it: {owners}")
        function: Callable[..., None] = entries[0].load()
        return function
    except Exception as error:
        problem = f"the command {name!r} cannot be loaded: {_describe(error)}"
        if called:
            raise WStoreError(problem) from error
        _complain(problem)
        return None


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"wstore {metadata.version('wstore')}")
        raise typer.Exit


def _global_options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Model weights in storage: local disk, shared file systems, S3, GCS, Azure, HTTP, and more.

    URLs are s3://bucket/key, gs://bucket/key, az://container/key, https://host/path, region://alias/key,
    file:///path, what fsspec knows, or plain local paths. Errors are one line on stderr; exit codes:
    0 done, 1 failed, 2 wrong use, 3 not found, 4 timed out, 130 interrupted.
    """


def _report(error: Exception) -> int:
    """Say what went wrong in one line; returns the exit code."""
    if isinstance(error, typer.Abort):
        return INTERRUPTED
    if isinstance(error, typer.TyperException):
        return _report_usage(error)
    _complain(_describe(error))
    if isinstance(error, (InvalidPath, InvalidArgument, UnsupportedOperation)):
        return WRONG_USE
    # Roots without a version, and versions of no root, are lookups that found nothing.
    if isinstance(error, WStoreError) and isinstance(error, (FileNotFoundError, LookupError)):
        return MISSING
    return TIMED_OUT if isinstance(error, WaitTimeout) else FAILED


def _report_usage(error: typer.TyperException) -> int:
    message = error.format_message().rstrip(".")
    if message.startswith("Usage:"):  # no arguments at all: the message is the help
        print(message, file=sys.stderr)
    elif message:
        _complain(f"{message}. Try --help.")
    return error.exit_code


def _describe(error: Exception) -> str:
    if isinstance(error, WStoreError):
        return str(error)
    if isinstance(error, OSError) and error.filename is None:  # stores raise errors of their own
        return f"standard output or input failed: {error.strerror or error}"
    if isinstance(error, OSError):
        return str(error)
    return f"{type(error).__name__}: {error} (--debug shows where)"


def _complain(problem: str) -> None:
    print(f"wstore: {printable(' '.join(problem.split()))}", file=sys.stderr)
