"""One version, opened for reading: its manifest, and where its objects are."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wstore.errors import InvalidArgument, NotFound
from wstore_codecs import dtypes
from wstore_transports.versions.copies import OneCopy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from wstore.path import StoragePath
    from wstore_codecs.block import Shape
    from wstore_transports.versions import Version
    from wstore_transports.versions.copies import Copies
    from wstore_transports.versions.documents import Manifest, Tensor
    from wstore_transports.versions.mirrors import Mirrors


@dataclass(frozen=True, slots=True)
class Spec:
    """What a tensor is, without its values.

    Attributes:
        dtype: safetensors' name of it, such as "BF16".
        shape: the whole tensor's dimensions.
        nbytes: of its elements.
        digest: 32 hex digits; "" where nobody recorded one.
        tied_to: the name that it shares its values with, "" for none.
    """

    dtype: str
    shape: Shape
    nbytes: int
    digest: str
    tied_to: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One version's content.

    Attributes:
        manifest: validated.
        place: what object names are relative to.
        version: the committed version; None for a foreign directory.
        mirrors: the other places that may have its objects, if any.
    """

    manifest: Manifest
    place: StoragePath
    version: Version | None
    mirrors: Mirrors | None = None

    def names(self) -> Mapping[str, str]:
        """Every name that resolves -> the name its values are stored under."""
        return {**{name: name for name in self.manifest.tensors}, **self.manifest.aliases}

    def tensor(self, name: str) -> Tensor:
        """The entry of a stored or tied name. Raises InvalidArgument."""
        found = self.manifest.tensors.get(self.manifest.aliases.get(name, name))
        if found is None:
            raise InvalidArgument(f"tensor {name!r} is not in the version", url=self.place.url)
        return found

    def specs(self) -> dict[str, Spec]:
        """What each tensor is, tied names too, in the manifest's order."""
        return {
            name: Spec(
                entry.dtype,
                tuple(entry.shape),
                math.prod(entry.shape) * dtypes.dtype(entry.dtype).itemsize,
                entry.digest,
                "" if stored == name else stored,
            )
            for name, stored in self.names().items()
            for entry in (self.manifest.tensors[stored],)
        }

    def object(self, name: str) -> StoragePath:
        """Where an object of the manifest is."""
        return self.place / name if self.version is None else self.version.object(name)

    def copies(self, name: str) -> Copies:
        """Where an object of the manifest can be read."""
        if self.mirrors is None or self.version is None:
            return OneCopy(self.object(name))
        return self.mirrors.copies(self.version, name)

    def objects(self) -> list[Copies]:
        """Where the manifest's objects can be read, in its order."""
        return [self.copies(ref.name) for ref in self.manifest.objects]

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turns a vanished object into what it means: `VersionGone`, or damage (`IntegrityError`)."""
        try:
            yield
        except NotFound as error:
            if self.version is None or self.mirrors is not None:
                raise  # from a mirror it comes explained
            raise self.version.missing(error) from error
