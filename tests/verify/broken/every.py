"""The list of all broken functions."""

from __future__ import annotations

from verify.broken.blocks import BLOCKS
from verify.broken.carried import CARRIED
from verify.broken.case import Broken
from verify.broken.decay import DECAY
from verify.broken.linear import LINEAR
from verify.broken.packed import PACKED
from verify.broken.softmax import SOFTMAX
from verify.broken.taylor import TAYLOR

BROKEN: list[Broken] = [*SOFTMAX, *BLOCKS, *LINEAR, *TAYLOR, *CARRIED, *DECAY, *PACKED]
