"""A short causal convolution over time, each channel by itself, with the inputs it needs to continue."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ShortConvolution(nn.Conv1d):
    """Depthwise causal convolution: y_t = bias + sum_j weight_j x_{t - width + 1 + j}.

    Args:
        channels: number of channels.
        width: number of taps, >= 1.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__(channels, channels, width, groups=channels)

    def forward(self, x_BTD: Tensor, past: Tensor | None = None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Convolve, continuing after ``past``.

        Args:
            x_BTD: ``[B, T, channels]``.
            past: the last ``width - 1`` inputs ``[B, width - 1, channels]``, or None for zeros.

        Returns:
            ``(y [B, T, channels], the new past)``.
        """
        keep = self.kernel_size[0] - 1
        if past is None:
            past = x_BTD.new_zeros(x_BTD.shape[0], keep, x_BTD.shape[2])
        whole = torch.cat([past, x_BTD], dim=1)
        return super().forward(whole.transpose(1, 2)).transpose(1, 2), whole[:, whole.shape[1] - keep :]
