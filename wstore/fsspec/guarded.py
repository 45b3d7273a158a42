"""Files that fsspec's callers close: also after an exception, and without a word of it."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from wstore.files import ObjectWriter

if TYPE_CHECKING:
    from wstore.stores.base import Store
    from wstore.upload import WriteOptions

_log = logging.getLogger(__name__)


class GuardedWriter(ObjectWriter):
    """Publishes nothing when it is closed because of an exception.

    `fsspec.open`, pandas and others close their file alike whether the block inside ended or raised. An
    exception that is being handled at the close, and was not when the file was opened, came from inside.
    """

    def __init__(self, store: Store, key: str, options: WriteOptions) -> None:
        super().__init__(store, key, options)
        self._handled_before = sys.exception()

    def close(self) -> None:
        """Publish, or with such an exception warn and drop what was written."""
        before, self._handled_before = self._handled_before, None
        error = sys.exception()
        if not self.closed and error is not None and error is not before:
            _log.warning("%s is not published: %s was raised", self.name, type(error).__name__)
            self.abort(error)
        super().close()
