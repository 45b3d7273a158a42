"""A small byte-level transformer, trained as large ones are: bf16 weights, fp32 master, AdamW."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from wstore_transports.demo.corpus import load_corpus
from wstore_transports.demo.optimizer import MasterAdamW

if TYPE_CHECKING:
    from collections.abc import Mapping

WIDTH = 160
DEPTH = 4
HEADS = 4
CONTEXT = 96
BATCH = 8
HELD_OUT_ROWS = 16
FIRST_RATE, LAST_RATE = 1e-3, 1e-5
FIRST_STEPS, DECAY = 5, 0.7
"""Learning rates: the first for the first steps, then falling by `DECAY` a step to the last, where a step of
bf16 weights changes as few of them as one of reinforcement learning does."""


class Attention(nn.Module):
    """Causal self-attention with a fused query, key and value projection."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv_proj = nn.Linear(WIDTH, 3 * WIDTH)
        self.o_proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.qkv_proj(x).view(batch, length, 3, HEADS, width // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: torch.Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class Layer(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.input_norm = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp_norm = nn.LayerNorm(WIDTH)
        self.up_proj = nn.Linear(WIDTH, 4 * WIDTH)
        self.down_proj = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.input_norm(x))
        out: torch.Tensor = x + self.down_proj(functional.gelu(self.up_proj(self.mlp_norm(x))))
        return out


class LanguageModel(nn.Module):
    """Bytes in, logits over the next byte out; the head is tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(256, WIDTH)
        self.embed_positions = nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, 256, bias=False)
        for table in (self.embed_tokens, self.embed_positions):
            nn.init.normal_(table.weight, std=0.02)
        self.lm_head.weight = self.embed_tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(tokens) + self.embed_positions.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.lm_head(self.norm(x))
        return logits


def learning_rate(step: int) -> float:
    """The rate of a step, counted from 1."""
    return max(LAST_RATE, FIRST_RATE * DECAY ** max(0, step - FIRST_STEPS))


def _loss(module: LanguageModel, rows: torch.Tensor) -> torch.Tensor:
    logits = module(rows[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())


def _tokens(text: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


class ServedLanguageModel:
    """An engine's own copy: random until the first version is loaded into it.

    One thread and the same text on both sides make the held-out loss equal to the last bit exactly
    when the weights are.
    """

    def __init__(self) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(1)
        self.module = LanguageModel().to(torch.bfloat16)
        _, held_out = load_corpus()
        count = HELD_OUT_ROWS * (CONTEXT + 1)
        self._held_out = _tokens(held_out[:count]).view(HELD_OUT_ROWS, CONTEXT + 1)

    def weights(self) -> Mapping[str, torch.Tensor]:
        """The live weights by name, not copies; both names of the tied matrix."""
        state: dict[str, torch.Tensor] = self.module.state_dict()
        return state

    def loss(self) -> float:
        """Mean cross entropy, in nats a byte, on the held-out text."""
        with torch.no_grad():
            return float(_loss(self.module, self._held_out))


class TrainedLanguageModel(ServedLanguageModel):
    """The trainer's copy, with the fp32 master weights and the optimizer."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        text, _ = load_corpus()
        self._text = _tokens(text)
        self._random = torch.Generator().manual_seed(seed)
        self._optimizer = MasterAdamW(self.module.parameters())
        self._steps = 0

    def train(self) -> float:
        """Take one optimizer step; return its training loss."""
        starts = torch.randint(
            len(self._text) - CONTEXT - 1, (BATCH,), generator=self._random
        ).tolist()
        rows = torch.stack([self._text[start : start + CONTEXT + 1] for start in starts])
        loss = _loss(self.module, rows)
        loss.backward()  # type: ignore[no-untyped-call]
        self._steps += 1
        self._optimizer.step(learning_rate(self._steps))
        return float(loss.detach())
