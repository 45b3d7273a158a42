"""Files written inside an fsspec transaction: closed now, published when the transaction ends."""

from __future__ import annotations

import io

from wstore.files import ObjectWriter


class DeferredWriter(ObjectWriter):
    """Takes its bytes as `ObjectWriter` does, but appears only when the transaction calls `commit`.

    What fits one piece waits in memory; larger objects wait as an unfinished upload.
    """

    _dropped = False

    def close(self) -> None:
        """No more bytes; nothing is published yet."""
        io.BufferedIOBase.close(self)

    def abort(self, error: BaseException | None = None) -> None:
        """Close, and publish nothing, also when the transaction commits. Idempotent."""
        self._dropped = True
        io.BufferedIOBase.close(self)
        self._stream.abort(error)

    def commit(self) -> None:
        """Publish, unless the file was aborted. Called by the transaction."""
        if not self._dropped:
            self.info = self._stream.commit()

    def discard(self) -> None:
        """Drop everything. Called by the transaction."""
        self.abort()
