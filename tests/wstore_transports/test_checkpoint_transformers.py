"""A downloaded version is what transformers loads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from wstore.path import StoragePath
from wstore_transports.checkpoint import CheckpointReader, CheckpointWriter, weights_digest

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import LlamaForCausalLM

# Importing parts of transformers and torch warns about their own deprecations.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def tiny_llama(*, tied: bool) -> LlamaForCausalLM:
    """A real architecture, randomly initialised."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=100,
        tie_word_embeddings=tied,
    )
    model: LlamaForCausalLM = LlamaForCausalLM(config)
    torch.nn.Module.to(model, torch.bfloat16)
    return model


@pytest.mark.long  # importing transformers alone takes many seconds
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("max_file_bytes", [20_000, 4 << 30])
def test_from_pretrained_loads_a_download(tmp_path: Path, tied: bool, max_file_bytes: int) -> None:
    model = tiny_llama(tied=tied)
    place = StoragePath(f"memory://transformers/{tmp_path.name}")
    with CheckpointWriter(place) as writer:
        writer.write(
            1, model.state_dict(), files={"config.json": model.config.to_json_string().encode()}
        )
    reader = CheckpointReader(place)
    assert reader.latest().manifest().aliases == (
        {"lm_head.weight": "model.embed_tokens.weight"} if tied else {}
    )
    local = reader.download(None, tmp_path / "model", max_file_bytes=max_file_bytes)
    both: Any = type(model).from_pretrained(local, dtype=torch.bfloat16, output_loading_info=True)
    loaded, info = both
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert weights_digest(loaded.state_dict()) == weights_digest(model.state_dict())
    model.save_pretrained(tmp_path / "reference")
    reference = type(model).from_pretrained(tmp_path / "reference", dtype=torch.bfloat16)
    tokens = torch.arange(10)[None]
    with torch.no_grad():
        assert torch.equal(loaded(tokens).logits, reference(tokens).logits)
