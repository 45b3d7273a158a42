"""Imported by the process from which those of crash runs are forked: loads compiled code once for all of
them, so that kills meet the rest."""

from __future__ import annotations

from tests.wstore_transports.delta.crash_model import weights_of
from tests.wstore_transports.delta.crash_processes import CODECS
from wstore_transports.checkpoint import weights_digest
from wstore_transports.delta import Publisher, Subscriber

for _index, _codec in enumerate(CODECS):
    _url = f"memory://preload-{_index}"
    with (
        Publisher(_url, codec=_codec, anchor_every=1, threads=1) as _publisher,
        Subscriber(_url, threads=1) as _engine,
    ):
        _publisher.publish(0, weights_of(0))
        _publisher.flush()
        _state = _engine.load()
        for _step in range(1, 3):
            _publisher.publish(_step, weights_of(_step))
            _publisher.flush()
            _engine.apply(_engine.prefetch(state=_state), _state)
        assert weights_digest(_state) == _engine.latest().digest
