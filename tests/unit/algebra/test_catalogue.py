"""The catalogue: names for compositions, and nothing more.

Run: pytest tests/unit/algebra/test_catalogue.py -q
"""

from __future__ import annotations

from dataclasses import replace

import pytest

import maclaurin
from maclaurin import CATALOGUE, Recipe
from maclaurin.algebra import LayerOptions, parse
from maclaurin.errors import ConfigError, GrammarError

PROMISED = {
    "softmax": "exp/sum",
    "exp-l2": "exp/l2",
    "exp-rms": "exp/rms:weight",
    "exp-layer": "exp/layer:weight:bias",
    "exp-length": "exp/length",
    "linear-elu": "elu1/sum",
    "linear-relu": "relu/sum",
    "linear-cosine": "cosine/length:learned",
    "taylor-1": "taylor:1/sum:signed",
    "taylor-2": "taylor:2/sum",
    "taylor-4": "taylor:4/sum",
    "taylor-2-centered": "taylor:2@mean/sum",
    "taylor-4-centered": "taylor:4@mean/sum",
    "power-2": "power:2/sum",
    "elu-taylor-2": "elu1>taylor:2/sum",
}


@pytest.mark.parametrize("name", PROMISED)
def test_promised_members(name: str) -> None:
    assert str(maclaurin.mechanism(name)) == PROMISED[name]
    assert maclaurin.recipe(name) is CATALOGUE[name]


def test_every_entry_is_complete_and_under_its_own_name() -> None:
    for name, recipe in CATALOGUE.items():
        assert recipe.name == name
        assert recipe.summary
        assert "/" not in name  # a name is told from a text by it
        assert parse(str(recipe.mechanism)) == recipe.mechanism


def test_no_two_names_for_one_recipe() -> None:
    assert len({(each.mechanism, each.layer) for each in CATALOGUE.values()}) == len(CATALOGUE)


def test_a_text_makes_a_recipe_of_its_own() -> None:
    recipe = maclaurin.recipe("taylor:6@mean/l2")
    assert recipe == Recipe("taylor:6@mean/l2", parse("taylor:6@mean/l2"))
    assert recipe.layer == LayerOptions(rotary=True, convolution=0)


def test_a_name_is_only_ever_a_name() -> None:
    renamed = replace(CATALOGUE["softmax"], name="anything")
    assert renamed.mechanism == CATALOGUE["softmax"].mechanism


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sofmax", r"'sofmax' asks for a mechanism that is not in the catalogue: did you mean 'softmax'"),
        ("taylor2", r"did you mean 'taylor-2' or 'taylor-4' or 'taylor-1'\?|did you mean 'taylor-2'"),
        ("zzz", r"legal: softmax, exp-l2"),
        ("exp", r"A text of the grammar has the form similarity/normalizer, for instance exp/sum"),
    ],
)
def test_unknown_names_get_the_nearest(name: str, message: str) -> None:
    for look_up in (maclaurin.recipe, maclaurin.mechanism):
        with pytest.raises(GrammarError, match=message):
            look_up(name)


def test_layer_options_replace_by_name() -> None:
    recipe = CATALOGUE["softmax"].with_layer(rotary=False, convolution=3)
    assert recipe.layer == LayerOptions(rotary=False, convolution=3)
    assert CATALOGUE["softmax"].layer == LayerOptions()
    with pytest.raises(TypeError, match="kernel"):
        recipe.with_layer(kernel=3)


@pytest.mark.parametrize("width", [-1, 1.5, True, "3", None])
def test_a_convolution_has_a_whole_width(width: object) -> None:
    with pytest.raises(ConfigError, match=r"convolution=.*\n  Give a whole number >= 1, or 0 for none"):
        LayerOptions(convolution=width)
