"""inspect: what a root, a version, a part, a frame or a safetensors file holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wstore.cli_output import counted, human_size, print_json, printable
from wstore.cli_paths import Client
from wstore_transports.commands.urls import AsJson, Url, find_root, split_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wstore.cli_output import Json
    from wstore.path import StoragePath
    from wstore_transports.checkpoint.snapshot import Snapshot
    from wstore_transports.examining.density import Density
    from wstore_transports.examining.frames import FrameRow
    from wstore_transports.examining.history import VersionRow
    from wstore_transports.versions import Root


def inspect(url: Url, client: Client = None, as_json: AsJson = False) -> None:
    """Show what a root, a version, a part, a frame, or a safetensors file or directory holds.

    Reads no tensor: of deltas, the first bytes of each frame tell how much changed.
    """
    from wstore_transports.checkpoint.reader import leased_snapshot
    from wstore_transports.errors import NoRoot

    place, number = split_version(url, client)
    try:
        root = find_root(place)
    except NoRoot:
        if number is None and _inspect_frames(url, place, as_json):
            return
        with leased_snapshot(place, number) as snapshot:
            _show_snapshot(url, None, snapshot, None, as_json)
        return
    if number is None:
        _inspect_root(root, as_json)
    else:
        _inspect_version(url, root, number, as_json)


def _inspect_root(root: Root, as_json: bool) -> None:
    from wstore_transports.examining.history import history

    rows = history(root)
    if as_json:
        versions: list[Json] = [_version_fields(row) for row in rows]
        print_json({"url": root.path.url, "versions": versions})
        return
    print(f"{printable(root.path.url)}: a root with {counted(len(rows), 'version')}")
    for row in rows:
        print(f"  {_version_line(row)}")


def _inspect_version(url: str, root: Root, number: int, as_json: bool) -> None:
    from wstore_transports.checkpoint.reader import leased_version
    from wstore_transports.checkpoint.snapshot import Snapshot
    from wstore_transports.examining.density import density
    from wstore_transports.examining.history import describe

    with leased_version(root, None, number) as version:
        manifest = version.manifest()
        found = density(version, manifest) if version.kind == "delta" else None
        row = describe(version, manifest)
        _show_snapshot(url, row, Snapshot(manifest, root.path, version), found, as_json)


def _version_fields(row: VersionRow) -> dict[str, Json]:
    version = row.version
    return {
        "version": version.number,
        "step": version.step,
        "run": version.run,
        "kind": version.kind,
        "base": version.base,
        "anchor": row.anchor is not None,
        "bytes": row.nbytes,
        "anchor_bytes": row.anchor_nbytes,
        "weights_bytes": row.raw_nbytes,
        "ratio": row.ratio,
        "blocks": row.blocks,
        "changed_blocks": row.changed,
        "tensors": row.tensors,
        "digest": version.digest,
    }


def _version_line(row: VersionRow) -> str:
    version = row.version
    kind = f"{version.kind} on {version.base}" if version.base else version.kind
    line = f"{version.number:>8}  step {version.step:<10} {kind:<16} {human_size(row.nbytes):>10}"
    line += f"  {row.ratio:>7.1f}x  {row.changed_share:>6.1%} of blocks"
    anchor = f"  anchor {human_size(row.anchor_nbytes)}" if row.anchor_nbytes else ""
    return f"{line}{anchor}  run {printable(version.run)}  digest {version.digest}"


def _show_snapshot(
    url: str,
    row: VersionRow | None,
    snapshot: Snapshot,
    found: Density | None,
    as_json: bool,
) -> None:
    if as_json:
        print_json(
            {
                "url": url,
                "version": None if row is None else _version_fields(row),
                "tensors": _tensor_fields(snapshot, found),
                **_change_fields(found),
            }
        )
        return
    specs = snapshot.specs()
    total = sum(spec.nbytes for spec in specs.values() if not spec.tied_to)
    print(f"{printable(url)}: {counted(len(specs), 'tensor')}, {human_size(total)}")
    if row is not None:
        print(_version_line(row))
    if found is not None and found.changed is not None:
        share = found.changed / found.elements if found.elements else 0.0
        print(f"{counted(found.changed, 'element')} changed, {share:.3%}")
    for name, spec in specs.items():
        tied = f"  = {printable(spec.tied_to)}" if spec.tied_to else ""
        shape = "[" + ", ".join(map(str, spec.shape)) + "]"
        size = human_size(spec.nbytes)
        change = "" if found is None or spec.tied_to else f"  {_change(found, name)}"
        print(
            f"  {spec.dtype:<8} {shape:<20} {size:>10}{change}  {spec.digest}  {printable(name)}{tied}"
        )


def _tensor_fields(snapshot: Snapshot, found: Density | None) -> dict[str, Json]:
    return {
        name: {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "bytes": spec.nbytes,
            "digest": spec.digest,
            "tied_to": spec.tied_to,
            **({} if found is None or spec.tied_to else _row_fields(found, name)),
        }
        for name, spec in snapshot.specs().items()
    }


def _row_fields(found: Density, name: str) -> dict[str, Json]:
    row = found.tensors[name]
    return {
        "stored_bytes": row.stored_nbytes,
        "ratio": row.ratio,
        "blocks": row.blocks,
        "changed_blocks": row.changed_blocks,
        "changed": row.changed,
        "density": row.density,
    }


def _change_fields(found: Density | None) -> dict[str, Json]:
    if found is None:
        return {}
    return {"changed": found.changed, "elements": found.elements}


def _change(found: Density, name: str) -> str:
    row = found.tensors[name]
    if not row.changed_blocks:
        return f"{'unchanged':>30}"
    share = "?" if row.density is None else f"{row.density:.3%}"
    blocks = f"{row.changed_blocks}/{row.blocks}"
    return f"{human_size(row.stored_nbytes):>10} {share:>9} {blocks:>9}"


# Parts and frames


def _inspect_frames(url: str, place: StoragePath, as_json: bool) -> bool:
    """Show a part or a frame; False where the place is neither."""
    from wstore_transports.examining.frames import frames_of

    if place.suffix == ".safetensors" or not place.is_file():
        return False
    rows = frames_of(place)
    if rows is None:
        return False
    if as_json:
        fields: list[Json] = [_frame_fields(row) for row in rows]
        print_json({"url": url, "frames": fields})
    else:
        _show_frames(url, rows)
    return True


def _frame_fields(row: FrameRow) -> dict[str, Json]:
    from wstore_transports.examining.frames import proof_of

    header = row.header
    members: list[Json] = [
        {
            "tensor": member.block.tensor,
            "shape": list(member.shape),
            "origin": list(member.block.origin),
            "extent": list(member.block.extent),
        }
        for member in header.unit.members
    ]
    return {
        "offset": row.offset,
        "bytes": row.nbytes,
        "weights_bytes": header.nbytes,
        "codec": header.codec,
        "dtype": header.dtype.name,
        "elements": header.size,
        "changed": row.changed,
        "body_hash": header.body_hash.hex(),
        "base": proof_of(header.base),
        "result": proof_of(header.result),
        "members": members,
    }


def _show_frames(url: str, rows: Sequence[FrameRow]) -> None:
    from wstore_transports.examining.frames import proof_of

    total = human_size(sum(row.nbytes for row in rows))
    print(f"{printable(url)}: {counted(len(rows), 'frame')}, {total}")
    for row in rows:
        header = row.header
        share = "whole" if row.changed is None else f"{row.changed / max(1, header.size):.3%}"
        print(
            f"  {row.offset:>12}  {human_size(row.nbytes):>10} of {human_size(header.nbytes):>10}  "
            f"{header.codec:<12} {header.dtype.name:<8} {share:>9}  {proof_of(header.result)}  "
            f"{printable(header.label())}"
        )
