"""The JSON documents of a root, as types. `docs/format.md` is their specification, byte by byte.

Every document carries `format`, and `root`: the id of the root that it belongs to, so a document copied
from elsewhere is recognised. Hashes are xxh3-128 as 32 lower-case hex digits. Sizes and offsets are bytes.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

FORMAT = 1
"""The newest document format that this code reads, and the one it writes."""

MAX_STEP = 1 << 53
"""Either way; larger integers are not exact in every reader of JSON."""

KiB = 1 << 10
MiB = 1 << 20

Hash = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
RootId = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
Number = Annotated[int, Meta(ge=0, le=999_999_999_999)]
Size = Annotated[int, Meta(ge=0, le=1 << 53)]
Extent = Annotated[list[Annotated[int, Meta(ge=0, le=1 << 53)]], Meta(max_length=32)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")]
ObjectName = Annotated[str, Meta(min_length=1, max_length=1024)]
TensorName = Annotated[str, Meta(min_length=1, max_length=1024)]
AttemptId = Annotated[str, Meta(pattern=r"^[0-9]{1,12}[.][0-9a-f]{16}\Z")]
Text = Annotated[str, Meta(max_length=2000)]
Rank = Annotated[int, Meta(ge=0, lt=100_000)]
Ranks = Annotated[int, Meta(ge=1, le=100_000)]
Step = Annotated[int, Meta(ge=-MAX_STEP, le=MAX_STEP)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Kind = Literal["full", "delta"]


class Document(Struct, frozen=True, kw_only=True, tag_field="document"):
    """What all documents have in common.

    Attributes:
        format: the format this document is written in; a greater one than `FORMAT` is `NewerFormat`.
        root: the id of the root that the document belongs to.
    """

    max_bytes: ClassVar[int] = 64 * KiB

    format: Annotated[int, Meta(ge=1)] = FORMAT
    root: RootId


class Marker(Document, frozen=True, kw_only=True, tag="root"):
    """`wstore.json`: this place is a root. Written once.

    Attributes:
        lease_s: seconds after which a lease whose counter stands still counts as dead.
    """

    lease_s: Seconds


class ObjectRef(Struct, frozen=True, kw_only=True):
    """An object by its name relative to the root, with its size and the hash of all its bytes.

    `hash` is "" only in the synthetic manifest of a foreign directory.
    """

    name: ObjectName
    size: Size
    hash: Annotated[str, Meta(pattern=r"^([0-9a-f]{32})?\Z")] = ""


class Standing(Struct, frozen=True, kw_only=True):
    """Where the log stands after a record: enough to use the newest version without reading the rest.

    Attributes:
        epoch: number of the newest fence record; 0 before the first.
        finished: number of the newest weights, abort or fence record; an attempt of the current epoch
            that wanted a number up to this one is over.
        latest: the newest version, 0 for none.
        anchor: the newest version with whole weights, of kind "full" or with an anchor record; 0 for none.
        anchored_at: number of the record that says where those are: the version's own, or the anchor
            record; 0 for none.
        anchors: how many versions got whole weights up to here.
        floor: versions below it are gone, unless the newest floor record keeps them.
        floored_at: number of that floor record, 0 for none.
        ended: the current publisher said that no version will follow.
    """

    epoch: Number = 0
    finished: Number = 0
    latest: Number = 0
    anchor: Number = 0
    anchored_at: Number = 0
    anchors: Number = 0
    floor: Number = 0
    floored_at: Number = 0
    ended: bool = False


class RecordBase(Document, frozen=True, kw_only=True):
    """What all log records have in common.

    Attributes:
        number: the record's place in the log, from 1; equal to the number in its name.
        prev: hash of the bytes of record `number - 1`; 32 zeros in record 1.
        after: where the log stands with this record.
    """

    max_bytes: ClassVar[int] = 4 * MiB

    number: Annotated[int, Meta(ge=1, le=999_999_999_999)]
    prev: Hash
    after: Standing


class Weights(RecordBase, frozen=True, kw_only=True, tag="log.weights"):
    """A committed version. Its number is the version.

    Attributes:
        run: name of the run that made it.
        attempt: the attempt that made it.
        epoch: the session that made it.
        step: the trainer's label; may repeat or fall.
        kind: "full" (whole weights: an anchor from the start) or "delta".
        base: the version a delta applies to; 0 for a full one.
        refs: versions whose objects this version's manifest names besides its own.
        digest: the model digest, see `wstore_codecs.digest`.
        manifest: the manifest's name, size and hash.
        nbytes: bytes of all objects that the manifest lists.
    """

    run: Name
    attempt: AttemptId
    epoch: Number
    step: Step
    kind: Kind
    base: Number = 0
    refs: list[Number] = []
    digest: Digest
    manifest: ObjectRef
    nbytes: Size


class Anchor(RecordBase, frozen=True, kw_only=True, tag="log.anchor"):
    """Version `version`, a delta, can now be read whole too: it is an anchor.

    Attributes:
        version: the version whose weights they are.
        epoch: the session that wrote them.
        manifest: a manifest of kind "full" of the same run, attempt, step and digest.
        nbytes: bytes of all objects that the manifest lists.
    """

    version: Annotated[int, Meta(ge=1, le=999_999_999_999)]
    epoch: Number
    manifest: ObjectRef
    nbytes: Size


class Abort(RecordBase, frozen=True, kw_only=True, tag="log.abort"):
    """The attempt will never be a version."""

    attempt: AttemptId
    epoch: Number
    reason: Text


class Fence(RecordBase, frozen=True, kw_only=True, tag="log.fence"):
    """A new publisher took over; its epoch is this record's number.

    Attributes:
        run: the run that it publishes.
        session: random, tells apart two publishers that raced for the number.
        launch: what all ranks of this start of the job share; "" when there is one rank.
        ranks: how many ranks write each version.
    """

    run: Name
    session: Hash
    launch: Annotated[str, Meta(max_length=200)] = ""
    ranks: Ranks = 1


class Floor(RecordBase, frozen=True, kw_only=True, tag="log.floor"):
    """Versions below `floor` are going, except those in `keep` (ascending).

    `anchors`: the anchor records before record `floor` whose version is in `keep` (ascending), so that
    who begins to read at the floor finds them.
    """

    floor: Number
    keep: list[Number] = []
    anchors: list[Number] = []


class End(RecordBase, frozen=True, kw_only=True, tag="log.end"):
    """The publisher of `epoch` will not publish again."""

    epoch: Number


Record = Weights | Anchor | Abort | Fence | Floor | End


class Head(Document, frozen=True, kw_only=True, tag="head"):
    """`head.json`: a hint of the newest record, never the truth."""

    number: Annotated[int, Meta(ge=1, le=999_999_999_999)]
    hash: Hash


class Spec(Struct, frozen=True, kw_only=True):
    """A tensor's dtype (safetensors' name of it) and global shape."""

    dtype: Annotated[str, Meta(pattern=r"^[A-Z0-9_]{1,16}\Z")]
    shape: Extent


class Block(Struct, frozen=True, kw_only=True):
    """An N-d box of one tensor, and where its bytes are.

    Attributes:
        origin, extent: the box, in elements; as many axes as the tensor has.
        object: index into the `objects` of the same document; -1 where nothing is stored.
        offset, nbytes: where in the object; 0 and 0 where nothing is stored. Small tensors that share a
            frame (a group) all name that frame.
        encoding: "flat": the box's elements, row-major, little-endian; "frame": one codec frame;
            "same": as in the base version, nothing is stored (in deltas only); "replica": another rank
            stores it, this one vouches for its digest (in done markers only).
        hash: of those stored bytes; "" where nothing is stored, and in the synthetic manifest of a
            foreign directory.
        digest: of the box's elements at their place in the tensor (additive); "" only in the latter.
    """

    origin: Extent
    extent: Extent
    object: Annotated[int, Meta(ge=-1, lt=1 << 31)]
    offset: Size
    nbytes: Size
    encoding: Literal["flat", "frame", "same", "replica"] = "flat"
    hash: Annotated[str, Meta(pattern=r"^([0-9a-f]{32})?\Z")] = ""
    digest: Annotated[str, Meta(pattern=r"^([0-9a-f]{32})?\Z")] = ""


class Tensor(Spec, frozen=True, kw_only=True):
    """A tensor and its blocks. In a manifest the blocks tile it; in a done marker they are one rank's.

    `digest` is "" in a done marker and in the synthetic manifest of a foreign directory.
    """

    blocks: list[Block]
    digest: Annotated[str, Meta(pattern=r"^([0-9a-f]{32})?\Z")] = ""


class Manifest(Document, frozen=True, kw_only=True, tag="manifest"):
    """All of one version: which tensors it holds, and where each byte of them is.

    Attributes:
        objects: everything that the version needs, own and shared.
        tensors: by name.
        aliases: further names (tied weights) -> the name in `tensors` that holds the values.
        digest: the model digest.
    """

    max_bytes: ClassVar[int] = 512 * MiB

    run: Name
    attempt: AttemptId
    step: Step
    kind: Kind
    base: Number = 0
    objects: list[ObjectRef]
    tensors: dict[TensorName, Tensor]
    aliases: dict[TensorName, TensorName] = {}
    digest: Annotated[str, Meta(pattern=r"^([0-9a-f]{32})?\Z")] = ""
    metadata: dict[str, str] = {}


class Open(Document, frozen=True, kw_only=True, tag="open"):
    """`open.json`: written before any other object of an attempt.

    Attributes:
        wanted: the number that the attempt would take now; a floor may push it further.
        index: which attempt of its session, from 1.
        shares: the version whose objects the ranks may name instead of writing them again; 0 for none.
        inventory: all tensors that the version must hold; None: whatever the ranks declare together.
        anchor: the ranks write whole weights of this version from now on; it is `base`, or 0 for none.
        cuts: by tensor and dimension, positions that no block reaches across from `anchor` on.
    """

    max_bytes: ClassVar[int] = 256 * MiB

    run: Name
    attempt: AttemptId
    epoch: Number
    wanted: Number
    index: Annotated[int, Meta(ge=1)]
    step: Step
    kind: Kind
    base: Number = 0
    shares: Number = 0
    ranks: Ranks
    inventory: dict[TensorName, Spec] | None = None
    anchor: Number = 0
    cuts: dict[TensorName, list[Extent]] = {}


class Done(Document, frozen=True, kw_only=True, tag="done"):
    """`r00003.done.json`: everything that one rank contributes is written.

    `objects` may name objects of earlier versions (unchanged shards).
    """

    max_bytes: ClassVar[int] = 512 * MiB

    attempt: AttemptId
    rank: Rank
    objects: list[ObjectRef]
    tensors: dict[TensorName, Tensor]
    aliases: dict[TensorName, TensorName] = {}
    metadata: dict[str, str] = {}


class RankAbort(Document, frozen=True, kw_only=True, tag="rank-abort"):
    """`r00003.abort.json`: this rank gives the attempt up."""

    attempt: AttemptId
    rank: Rank
    reason: Text


class Session(Document, frozen=True, kw_only=True, tag="session"):
    """`sessions/<epoch>.json`: a counter that moves while the publisher lives.

    `attempt`: the directory of the attempt under way, "" for none: a hint for readers who fetch ahead.
    """

    epoch: Number
    run: Name
    counter: Annotated[int, Meta(ge=0)]
    interval_s: Seconds
    attempt: Annotated[str, Meta(max_length=1024)] = ""


class Announcement(Document, frozen=True, kw_only=True, tag="announcement"):
    """`sessions/<epoch>-<index>.json`: where the session's attempt `index` lives. Written once."""

    epoch: Number
    index: Annotated[int, Meta(ge=1)]
    directory: ObjectName


class LeaseDocument(Document, frozen=True, kw_only=True, tag="lease"):
    """`leases/<reader>-<nonce>.json`: a counter that moves while the reader lives.

    `versions` are what it needs (with all that they reference); None: everything.
    """

    reader: Name
    counter: Annotated[int, Meta(ge=0)]
    interval_s: Seconds
    versions: list[Number] | None


class Pointer(Document, frozen=True, kw_only=True, tag="pointer"):
    """`wstore-pointer.json`: the root is at another place. Rewritten with each version, a hint but for
    `data_url`.

    Attributes:
        data_url: where the root is; may be a `region://` URL.
        run: the run that publishes there.
        version: the newest version when this was written, 0 for none.
    """

    data_url: Annotated[str, Meta(min_length=1, max_length=4096)]
    run: Name
    version: Number = 0


class Layout(Document, frozen=True, kw_only=True, tag="layout"):
    """`layouts/<run>/<engine>.json`: how an engine holds the tensors.

    Attributes:
        epoch: the session that it is meant for; others do not heed it.
        tensors: by name, the boxes [origin, extent] that it holds.
    """

    max_bytes: ClassVar[int] = 256 * MiB

    run: Name
    engine: Name
    epoch: Number
    tensors: dict[TensorName, list[list[Extent]]]
