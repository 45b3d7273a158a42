"""AdamW that keeps fp32 master weights beside bf16 live ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable


class MasterAdamW:
    """AdamW (Loshchilov and Hutter, decoupled weight decay) on fp32 masters of low-precision weights.

    `torch.optim` would do, but building one of its optimizers imports torch's compiler, which takes
    longer than this whole demo trains.
    """

    def __init__(
        self,
        live: Iterable[torch.Tensor],
        *,
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.01,
    ) -> None:
        self._live = list(live)
        self._master = [weight.detach().float() for weight in self._live]
        self._mean = [torch.zeros_like(weight) for weight in self._master]
        self._square = [torch.zeros_like(weight) for weight in self._master]
        self._betas = betas
        self._weight_decay = weight_decay
        self._steps = 0

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Apply the gradients of the live weights to the masters at a learning rate, round to the live, clear
        the gradients."""
        self._steps += 1
        first, second = self._betas
        for live, master, mean, square in zip(
            self._live, self._master, self._mean, self._square, strict=True
        ):
            if live.grad is None:
                continue
            gradient = live.grad.float()
            mean.lerp_(gradient, 1 - first)
            square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
            scale = (square / (1 - second**self._steps)).sqrt_().add_(1e-8)
            master.mul_(1 - rate * self._weight_decay)
            master.addcdiv_(mean, scale, value=-rate / (1 - first**self._steps))
            live.copy_(master)
            live.grad = None
