"""Whole weights: plain safetensors files per rank under a versioned root, written and read."""

from wstore_transports.checkpoint.pieces import Shard, Tensors
from wstore_transports.checkpoint.reader import CheckpointReader
from wstore_transports.checkpoint.snapshot import Spec
from wstore_transports.checkpoint.weights_digest import weights_digest
from wstore_transports.checkpoint.writer import CheckpointReport, CheckpointWriter

__all__ = [
    "CheckpointReader",
    "CheckpointReport",
    "CheckpointWriter",
    "Shard",
    "Spec",
    "Tensors",
    "weights_digest",
]
