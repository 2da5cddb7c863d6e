"""How a model is trained: every number in one place, unknown keys refused."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class TrainConfig(BaseModel):
    """AdamW with warm-up and a cosine to zero.

    Args:
        steps: optimizer steps.
        batch_size: sequences per step.
        learning_rate: at its highest, after warm-up.
        weight_decay: decoupled, on matrices only (not on norms and biases).
        warmup_steps: steps of linear warm-up from 0.
        clip_norm: greatest norm of the gradient.
        betas: of AdamW.
        log_every: the training loss is recorded every so many steps.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    steps: int = Field(ge=1)
    batch_size: int = Field(ge=1)
    learning_rate: float = Field(gt=0)
    weight_decay: float = Field(default=0.1, ge=0)
    warmup_steps: int = Field(default=0, ge=0)
    clip_norm: float = Field(default=1.0, gt=0)
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.95)
    log_every: int = Field(default=10, ge=1)
