"""What publishing and applying did: figures for people, logs and metrics."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PublishReport:
    """What `publish` did until it returned: all of it is this rank's.

    Attributes:
        step: the trainer's label.
        kind: "full" or "delta".
        base: the version that the delta applies to; 0 for a full version.
        tensors: stored names; tied ones are not counted.
        elements: of all tensors.
        changed: elements that the delta changes; of blocks that are stored whole, all.
        raw_nbytes: bytes of the tensors' elements.
        nbytes: bytes of the parts. 0 for a full version, which is encoded after `publish` returns.
        spilled_nbytes: of those, what did not fit the memory budget and went to local disk.
        baseline_nbytes: bytes of memory that the baseline takes.
        queue_depth: parts that were encoded and not uploaded yet.
        seconds: by stage: "wait" (for the version before), "open", "encode".
    """

    step: int
    kind: str
    base: int
    tensors: int
    elements: int
    changed: int
    raw_nbytes: int
    nbytes: int
    spilled_nbytes: int
    baseline_nbytes: int
    queue_depth: int
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def density(self) -> float:
        """The share of elements that change, 0 to 1."""
        return self.changed / self.elements if self.elements else 0.0

    @property
    def ratio(self) -> float:
        """How many times smaller than the tensors the parts are; 0.0 where nothing is known."""
        return self.raw_nbytes / self.nbytes if self.nbytes else 0.0


@dataclass(frozen=True, slots=True)
class CommitReport:
    """What became of the version in flight.

    Attributes:
        version: the number under which readers see it.
        url: of the version, for `Subscriber.at`.
        step: the trainer's label.
        kind: "full" or "delta".
        digest: the model digest.
        nbytes: bytes of all objects of the version, of all ranks.
        seconds: by stage, after `publish` returned: "upload" (what was left of it), "commit", "advance".
    """

    version: int
    url: str
    step: int
    kind: str
    digest: str
    nbytes: int
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ApplyReport:
    """What `apply` did.

    Attributes:
        version: the version that the state holds now.
        step: the trainer's label of it.
        digest: its model digest.
        versions: how many versions further the state is; 0 when it was loaded whole.
        elements: elements of the frames' blocks.
        changed: elements that the deltas list, summed over versions.
        replaced: elements of blocks that were replaced whole.
        fetched_nbytes: bytes that were read from the store (or the shared cache).
        spilled_nbytes: of those, what did not fit the memory budget and went to local disk.
        seconds: by stage: "wait", "fetch", "check", "apply" (the pause that an engine sees).
    """

    version: int
    step: int
    digest: str
    versions: int
    elements: int
    changed: int
    replaced: int
    fetched_nbytes: int
    spilled_nbytes: int
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def density(self) -> float:
        """The share of the touched blocks' elements that changed, 0 to 1."""
        touched = self.elements
        return (self.changed + self.replaced) / touched if touched else 0.0
