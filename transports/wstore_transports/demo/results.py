"""What the demo found out: one row a version, and whether everything agreed. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wstore.cli_output import Json
    from wstore_transports.demo.events import Loaded, Published


@dataclass(slots=True)
class Row:
    """One version as its publisher and the engines saw it."""

    published: Published
    loaded: dict[int, Loaded] = field(default_factory=dict)

    @property
    def publish_s(self) -> float:
        """Seconds the trainer spent in `write`."""
        return self.published.finished - self.published.started

    def until(self, engine: int) -> float | None:
        """Seconds from the start of `write` until that engine had the version in its own memory."""
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
    """Collects the events by version; engines may report one before its publisher does."""

    def __init__(self, engines: int, versions: int) -> None:
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

    def problems(self) -> list[str]:
        """Everything that is not as it must be; empty when the demo succeeded."""
        found = []
        if len(self._rows) != self.versions:
            found.append(f"{len(self._rows)} of {self.versions} versions were published")
        for row in self.rows:
            name = f"version {row.published.version}"
            if len(row.loaded) != self.engines:
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
        return {"url": url, "ok": not problems, "problems": problems, "versions": rows}

    def _row_json(self, row: Row) -> dict[str, Json]:
        published = row.published
        return {
            "version": published.version,
            "step": published.step,
            "bytes": published.nbytes,
            "written_bytes": published.written_nbytes,
            "publish_s": row.publish_s,
            "until_engine_s": [row.until(engine) for engine in range(self.engines)],
            "loss": published.loss,
            "loss_equal": row.losses_equal,
            "digest": published.digest,
            "digest_equal": row.digests_equal,
        }
