"""What attention is: similarity x normalizer x gates, every member composed. Holds no tensors, knows no algorithm."""

from maclaurin.algebra.accumulator import Accumulator
from maclaurin.algebra.catalogue import ALIASES, CATALOGUE, mechanism, recipe
from maclaurin.algebra.direction import unit
from maclaurin.algebra.feature_map import CallableMap, Cosine, Elu1, ExpMap, FeatureMap, Features, Identity, Relu
from maclaurin.algebra.function import Exp, Polynomial, Positivity, Power, Series, Taylor
from maclaurin.algebra.gate import Decay, Gates, OutputGate, ValueGate, log_decay_after, pairwise_log_decay
from maclaurin.algebra.grammar import parse, text
from maclaurin.algebra.mechanism import Mechanism
from maclaurin.algebra.monomials import monomials, num_monomials, shifted_moments, symmetric_product
from maclaurin.algebra.normalizer import (
    L2,
    RMS,
    CumulativeGate,
    Layer,
    Length,
    NormalizerInputs,
    Sum,
    Unnormalized,
)
from maclaurin.algebra.recipe import LayerOptions, Recipe
from maclaurin.algebra.similarity import SOFTMAX, Similarity
from maclaurin.algebra.window import Window

__all__ = [
    "ALIASES",
    "CATALOGUE",
    "L2",
    "RMS",
    "SOFTMAX",
    "Accumulator",
    "CallableMap",
    "Cosine",
    "CumulativeGate",
    "Decay",
    "Elu1",
    "Exp",
    "ExpMap",
    "FeatureMap",
    "Features",
    "Gates",
    "Identity",
    "Layer",
    "LayerOptions",
    "Length",
    "Mechanism",
    "NormalizerInputs",
    "OutputGate",
    "Polynomial",
    "Positivity",
    "Power",
    "Recipe",
    "Relu",
    "Series",
    "Similarity",
    "Sum",
    "Taylor",
    "Unnormalized",
    "ValueGate",
    "Window",
    "log_decay_after",
    "mechanism",
    "monomials",
    "num_monomials",
    "pairwise_log_decay",
    "parse",
    "recipe",
    "shifted_moments",
    "symmetric_product",
    "text",
    "unit",
]
