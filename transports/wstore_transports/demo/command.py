"""The command `wstore demo`."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from wstore.cli_completion import complete_url
from wstore.cli_output import counted, print_json
from wstore.errors import InvalidArgument


class Mode(StrEnum):
    """How versions go from the trainer to the engines."""

    CHECKPOINT = "checkpoint"
    DELTA = "delta"


class Server(StrEnum):
    """Servers that the demo can start by itself."""

    S3 = "s3"
    GCS = "gcs"


def demo(
    url: Annotated[
        str,
        typer.Option(
            help="Publish under this URL. Default: a temporary local directory.",
            autocompletion=complete_url,
        ),
    ] = "",
    engine_url: Annotated[
        str,
        typer.Option(
            help="Where the engines find the same root: another mount of it.",
            autocompletion=complete_url,
        ),
    ] = "",
    server: Annotated[
        Server | None,
        typer.Option(help="Start a SeaweedFS or fake-gcs-server of its own, publish there."),
    ] = None,
    mode: Annotated[
        Mode, typer.Option(help="Publish whole weights each time, or what changed.")
    ] = Mode.DELTA,
    model: Annotated[
        str, typer.Option(help="Publish this safetensors file with made-up steps; needs no torch.")
    ] = "",
    versions: Annotated[int, typer.Option(min=1, help="How many versions to publish.")] = 8,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps between two versions.")] = 5,
    engines: Annotated[int, typer.Option(min=1, max=64, help="How many engines follow.")] = 2,
    seed: Annotated[int, typer.Option(help="Of data order and made-up steps.")] = 0,
    timeout: Annotated[float, typer.Option(help="Give up after so many seconds of silence.")] = 300,
    tensors: Annotated[
        bool, typer.Option("--tensors", help="Show what changed in each tensor.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, no display.")] = False,
) -> None:
    """Train a small real model, publish versions, let engines follow, and compare every one.

    A trainer process trains a byte-level transformer on the Python standard library's sources and
    publishes its weights; each engine process brings its own live module to every version, or to the newest
    where it is slower than the trainer. The held-out loss and the digest of the weights must be equal on all
    sides, to the last bit. Exit status 1 otherwise.
    """
    from wstore_transports.demo.display import table, tensor_table
    from wstore_transports.demo.run import Options, run

    if url and server is not None:
        raise InvalidArgument("give --url or --server, not both")
    if engine_url and not url:
        raise InvalidArgument("--engine-url goes with --url: the same root, as another host has it")
    options = Options(
        url=url,
        mode=mode.value,
        engine_url=engine_url,
        server=server.value if server is not None else "",
        model=model,
        versions=versions,
        steps=steps,
        engines=engines,
        seed=seed,
        timeout_s=timeout,
    )
    place, results = run(options, quiet=as_json)
    problems = results.problems()
    if as_json:
        print_json(results.as_json(place))
    else:
        _print(table(results))
        if tensors and mode is Mode.DELTA:
            _print(tensor_table(results))
        for problem in problems:
            print(f"wstore: {problem}", file=sys.stderr)
        if not problems:
            done = counted(versions, "version")
            print(f"{done} under {place}: equal in all {engines + 1} processes")
    if problems:
        raise typer.Exit(1)


def _print(renderable: object) -> None:
    from rich.console import Console

    console = Console()
    wide = console if console.is_terminal else Console(width=160)
    wide.print(renderable)
