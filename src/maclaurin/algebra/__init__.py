"""What attention is: similarity x normalizer, every member a composition. Holds no tensors, knows no algorithm."""

from maclaurin.algebra.accumulator import Accumulator
from maclaurin.algebra.catalogue import CATALOGUE, LayerOptions, Recipe, mechanism, recipe
from maclaurin.algebra.direction import unit
from maclaurin.algebra.feature_map import CallableMap, Cosine, Elu1, ExpMap, Features, Identity, Relu
from maclaurin.algebra.function import Exp, Polynomial, Positivity, Power, Series, Taylor
from maclaurin.algebra.grammar import parse, text
from maclaurin.algebra.mechanism import Mechanism
from maclaurin.algebra.monomials import monomials, num_monomials, shifted_moments, symmetric_product
from maclaurin.algebra.normalizer import L2, RMS, Layer, Length, NormalizerInputs, Sum, Unnormalized
from maclaurin.algebra.similarity import Similarity

__all__ = [
    "CATALOGUE",
    "L2",
    "RMS",
    "Accumulator",
    "CallableMap",
    "Cosine",
    "Elu1",
    "Exp",
    "ExpMap",
    "Features",
    "Identity",
    "Layer",
    "LayerOptions",
    "Length",
    "Mechanism",
    "NormalizerInputs",
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
    "mechanism",
    "monomials",
    "num_monomials",
    "parse",
    "recipe",
    "shifted_moments",
    "symmetric_product",
    "text",
    "unit",
]
