"""A short causal convolution over time, each channel by itself, with the inputs it needs to continue."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ShortConvolution(nn.Module):
    """Depthwise causal convolution: y_t = bias + sum_j weight_j * x_{t - width + 1 + j}.

    Written as a sum of shifted products: for a few taps as fast as a general convolution, without its transposes.

    Args:
        channels: number of channels.
        width: number of taps, >= 1.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        bound = width**-0.5  # 1 / sqrt(fan_in)
        self.weight = nn.Parameter(torch.empty(width, channels).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound))

    @property
    def width(self) -> int:
        """Number of taps; each output reads as many inputs."""
        return self.weight.shape[0]

    def forward(self, x_BTD: Tensor, past: Tensor | None = None, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Convolve, continuing after ``past``.

        Args:
            x_BTD: ``[B, T, channels]``, zero on padding.
            past: the last ``width - 1`` inputs ``[B, width - 1, channels]``, or None for zeros.
            mask: bool ``[B, T]``, False on padding, which the new past then leaves out.

        Returns:
            ``(y [B, T, channels], the new past)``.
        """
        keep, length = self.width - 1, x_BTD.shape[1]
        if past is None:
            past = x_BTD.new_zeros(x_BTD.shape[0], keep, x_BTD.shape[2])
        whole = torch.cat([past, x_BTD], dim=1)
        out = self.bias
        for tap in range(self.width):
            out = torch.addcmul(out, whole[:, tap : tap + length], self.weight[tap])
        if mask is not None:  # padding first, tokens last, each in their order
            kept = torch.cat([mask.new_ones(len(mask), keep), mask], dim=1)
            order = kept.to(torch.int8).argsort(dim=1, stable=True)
            whole = whole.gather(1, order[..., None].expand_as(whole))
        return out, whole[:, whole.shape[1] - keep :]
