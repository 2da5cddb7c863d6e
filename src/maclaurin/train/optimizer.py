"""The optimizer and its schedule."""

from __future__ import annotations

import math

import torch
from torch import nn

from maclaurin.train.config import TrainConfig


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only."""
    parameters = [each for each in model.parameters() if each.requires_grad]
    groups = [
        {"params": [each for each in parameters if each.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [each for each in parameters if each.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=True)


def learning_rate(step: int, config: TrainConfig) -> float:
    """The rate of step ``step`` (from 0): linear warm-up to ``learning_rate``, then a cosine to 0 at the last step.

    >>> config = TrainConfig(steps=101, batch_size=1, learning_rate=1.0, warmup_steps=1)
    >>> [round(learning_rate(step, config), 3) for step in (0, 51, 100)]
    [1.0, 0.492, 0.0]
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, config.steps - 1 - config.warmup_steps)
    return config.learning_rate * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
