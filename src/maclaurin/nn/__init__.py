"""Networks: an attention layer and one decoder language model for every mechanism of the family."""

from maclaurin.nn.attention import AttentionLayer, LayerState, initialize
from maclaurin.nn.convolution import ShortConvolution
from maclaurin.nn.decoder import DecoderConfig, DecoderLM
from maclaurin.nn.rotary import rotate

__all__ = [
    "AttentionLayer",
    "DecoderConfig",
    "DecoderLM",
    "LayerState",
    "ShortConvolution",
    "initialize",
    "rotate",
]
