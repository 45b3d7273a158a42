"""What the demo found out: one row a version, and whether everything agreed. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wstore.cli_output import Json
    from wstore_transports.demo.events import Loaded, Published, TensorChange
    from wstore_transports.demo.jobs import Mode


@dataclass(frozen=True, slots=True)
class Change:
    """What versions changed in one or more tensors.

    Attributes:
        density: the share of elements that changed, 0 to 1.
        nbytes: that were written for it.
        ratio: how many times smaller that is than the elements; 0.0 where nothing was written.
    """

    name: str
    elements: int
    density: float
    nbytes: int
    ratio: float

    @classmethod
    def of(cls, name: str, changes: Sequence[TensorChange]) -> Change:
        """All of these together, under one name."""
        elements = sum(change.elements for change in changes)
        nbytes = sum(change.nbytes for change in changes)
        changed = sum(change.changed for change in changes)
        raw = sum(change.raw_nbytes for change in changes)
        return cls(
            name,
            elements,
            changed / elements if elements else 0.0,
            nbytes,
            raw / nbytes if nbytes else 0.0,
        )


@dataclass(slots=True)
class Row:
    """One version as its publisher and the engines saw it."""

    published: Published
    loaded: dict[int, Loaded] = field(default_factory=dict)

    @property
    def publish_s(self) -> float:
        """Seconds from the beginning of publishing to the commit."""
        return self.published.finished - self.published.started

    @property
    def encode_s(self) -> float:
        """Seconds that the trainer could not train."""
        encoded = self.published.encoded
        return self.publish_s if encoded is None else encoded - self.published.started

    @property
    def change(self) -> Change | None:
        """What the version changed in all tensors; None where nobody looked."""
        tensors = self.published.tensors
        return Change.of("", tensors) if tensors else None

    @property
    def pause_s(self) -> float | None:
        """The longest time for which an engine could not use its weights; None where nobody looked."""
        pauses = [one.pause_s for one in self.loaded.values() if one.pause_s is not None]
        return max(pauses, default=None)

    def until(self, engine: int) -> float | None:
        """Seconds from the beginning of publishing until that engine had the version in its own memory."""
        found = self.loaded.get(engine)
        return None if found is None else found.finished - self.published.started

    @property
    def losses_equal(self) -> bool:
        """Whether all engines that have it computed the trainer's loss, to the last bit."""
        return all(found.loss == self.published.loss for found in self.loaded.values())

    @property
    def digests_equal(self) -> bool:
        """Whether the memory of all engines that have it has the published digest."""
        return all(found.digest == self.published.digest for found in self.loaded.values())


class Results:
    """Collects the events by version; engines may report one before its publisher does.

    Args:
        mode: with "delta" a slow engine may pass over versions, all but the last.
    """

    def __init__(self, engines: int, versions: int, mode: Mode = "checkpoint") -> None:
        self.mode = mode
        self.engines = engines
        self.versions = versions
        self._rows: dict[int, Row] = {}
        self._early: dict[int, dict[int, Loaded]] = {}

    def published(self, event: Published) -> None:
        """The trainer committed a version."""
        self._rows[event.version] = Row(event, self._early.pop(event.version, {}))

    def loaded(self, engine: int, event: Loaded) -> None:
        """Engine number `engine` (from 0) holds a version."""
        row = self._rows.get(event.version)
        held = self._early.setdefault(event.version, {}) if row is None else row.loaded
        held[engine] = event

    @property
    def rows(self) -> list[Row]:
        """By version, ascending."""
        return [self._rows[version] for version in sorted(self._rows)]

    def skipped(self, version: int, engine: int) -> bool:
        """Whether an engine passed over a version: it holds a newer one."""
        newer = (row for row in self._rows.values() if row.published.version > version)
        return engine not in self._rows[version].loaded and any(engine in r.loaded for r in newer)

    def tensors(self) -> list[Change]:
        """What the deltas changed in each tensor, all of them together."""
        changes: dict[str, list[TensorChange]] = {}
        for row in self.rows:
            for change in row.published.tensors if row.published.kind == "delta" else ():
                changes.setdefault(change.name, []).append(change)
        return [
            replace(Change.of(name, found), elements=found[0].elements)
            for name, found in changes.items()
        ]

    def problems(self) -> list[str]:
        """Everything that is not as it must be; empty when the demo succeeded."""
        found = []
        if len(self._rows) != self.versions:
            found.append(f"{len(self._rows)} of {self.versions} versions were published")
        for row in self.rows:
            name = f"version {row.published.version}"
            passed = sum(
                self.mode == "delta" and self.skipped(row.published.version, engine)
                for engine in range(self.engines)
            )
            if len(row.loaded) + passed != self.engines:
                found.append(f"{name}: {len(row.loaded)} of {self.engines} engines had it")
            if not row.digests_equal:
                found.append(f"{name}: an engine's weights differ from the published ones")
            if not row.losses_equal:
                found.append(f"{name}: an engine's loss differs from the trainer's")
        return found

    def as_json(self, url: str) -> dict[str, Json]:
        """For `--json`."""
        problems: list[Json] = list(self.problems())
        rows: list[Json] = [self._row_json(row) for row in self.rows]
        return {
            "url": url,
            "mode": self.mode,
            "ok": not problems,
            "problems": problems,
            "versions": rows,
        }

    def _row_json(self, row: Row) -> dict[str, Json]:
        published, change = row.published, row.change
        tensors: list[Json] = [
            _change_json(Change.of(one.name, [one])) for one in published.tensors
        ]
        return {
            "version": published.version,
            "step": published.step,
            "kind": published.kind,
            "density": None if change is None else change.density,
            "ratio": None if change is None else change.ratio,
            "bytes": published.nbytes,
            "written_bytes": published.written_nbytes,
            "encode_s": row.encode_s,
            "publish_s": row.publish_s,
            "until_engine_s": [row.until(engine) for engine in range(self.engines)],
            "pause_s": row.pause_s,
            "loss": published.loss,
            "loss_equal": row.losses_equal,
            "digest": published.digest,
            "digest_equal": row.digests_equal,
            "tensors": tensors,
        }


def _change_json(change: Change) -> dict[str, Json]:
    return {
        "name": change.name,
        "elements": change.elements,
        "density": change.density,
        "bytes": change.nbytes,
        "ratio": change.ratio,
    }
