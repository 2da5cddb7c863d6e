"""The catalogue: names for compositions, and nothing more.

Run: pytest tests/unit/algebra/test_catalogue.py -q
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import maclaurin
from maclaurin import CATALOGUE, Recipe
from maclaurin.algebra import ALIASES, LayerOptions, parse
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
    "forgetting": "exp/sum+decay",
    "retention": "power:1/rms+decay+outgate:after",
    "power-2-decay": "power:2/sum+decay",
    "softmax-window": "exp/sum+window:16:4",
    "taylor-2-window": "taylor:2/sum+window:16:4",
    "softmax-clamp": "exp:clamp=5/sum:clamp=1",
    "softmax-detached": "exp:clamp=5/sum:clamp=1:detach",
    "softmax-gated": "exp:clamp=5/sum:eps=1e-4:detach+outgate",
    "exp-outgate": "exp:clamp=5/none+outgate",
    "exp-cumgate": "exp:clamp=5/cumgate",
    "exp-length-clamp": "exp:clamp=5/length",
    "exp-length-ingate": "exp:clamp=5/length+valuegate",
    "exp-length-gate": "exp:clamp=5/length+outgate",
    "exp-length-gates": "exp:clamp=5/length+valuegate+outgate",
    "exp-l2-clamp": "exp:clamp=5/l2",
    "exp-l2-gain": "exp:clamp=5/l2:gain=64",
    "exp-l2-outgate": "exp/l2+outgate:after",
    "exp-l2-dead": "exp/l2+outgate",
    "exp-rms-clamp": "exp:clamp=5/rms:weight",
    "exp-layer-clamp": "exp:clamp=5/layer:weight:bias",
    "exp-layer-ingate": "exp:clamp=5/layer:weight:bias+valuegate",
    "exp-layer-dead": "exp:clamp=5/layer:weight:bias+outgate",
    "exp-layer-gates": "exp:clamp=5/layer:weight:bias+valuegate+outgate",
    "exp-layer-decay": "exp:clamp=5/layer:weight:bias+valuegate+decay+outgate",
    "relu-l2": "relu/l2",
    "relu-outgate": "relu>power:1:clamp=5/length+outgate",
}


#: The option table of the first paper's code -> the catalogue's name; without the rows that need another layer
#: (a convolution with SiLU, Mamba blocks) and softmax_taylor_80terms, whose odd order 79 has no safe denominator.
OFFICIAL = {
    "softmax": "softmax",
    "softmax_clamp_denom": "softmax-clamp",
    "softmax_detach_denom": "softmax-detached",
    "softmax_divs": "exp-length-clamp",
    "softmax_detach_denom_gate": "softmax-gated",
    "softmax_gate": "exp-outgate",
    "softmax_divS_gate": "exp-length-gate",
    "softmax_divS_gatev2": "exp-length-gate",
    "softmax_divS_norm": "exp-rms-clamp",
    "gated_softmax": "exp-layer-gates",
    "gated_softmax_no_norm": "exp-length-gates",
    "gated_softmax_no_in_gate": "exp-layer-dead",
    "gated_softmax_no_out_gate": "exp-layer-ingate",
    "gated_softmax_no_out_gate_no_norm": "exp-length-ingate",
    "gated_softmax_no_in_gate_no_norm": "exp-length-gate",
    "gated_relu_no_in_gate_no_norm": "relu-outgate",
    "gated_softmax_no_gate": "exp-layer-clamp",
    "gated_softmax_no_gate_rmsnorm": "exp-rms-clamp",
    "gated_softmax_no_gate_rmsnorm_nodivS": "exp-rms-clamp",
    "gated_softmax_no_gate_L2norm_nodivS": "exp-l2-clamp",
    "gated_softmax_no_gate_L2norm_nodivS_noclamp": "exp-l2",
    "gated_ReLU_no_gate_L2norm_nodivS_noclamp": "relu-l2",
    "gated_softmax_out_gate_L2norm_nodivS_noclamp": "exp-l2-dead",
    "gated_softmax_post_out_gate_L2norm_nodivS_noclamp": "exp-l2-outgate",
    "gated_softmax_no_gate_no_norm": "exp-length-clamp",
    "gated_softmax_no_gate_customnorm": "exp-l2-gain",
    "gated_softmax_cumgate": "exp-cumgate",
    "cumulative_gated_softmax": "exp-cumgate",
    "gated_softmax_decay": "exp-layer-decay",
    "linear_elu": "linear-elu",
    "linear_relu": "linear-relu",
    "linear_cosine": "linear-cosine",
}


@pytest.mark.parametrize("name", PROMISED)
def test_promised_members(name: str) -> None:
    assert str(maclaurin.mechanism(name)) == PROMISED[name]
    assert maclaurin.recipe(name) is CATALOGUE[name]


def test_the_catalogue_is_what_is_promised() -> None:
    assert list(CATALOGUE) == list(PROMISED)


@pytest.mark.parametrize("option", OFFICIAL)
def test_the_first_papers_options_are_names_too(option: str) -> None:
    found = maclaurin.recipe(option)
    assert found is CATALOGUE[OFFICIAL[option]]
    assert maclaurin.mechanism(option) == found.mechanism
    told = [line for line in found.literature if re.match(rf"{option}\b", line)]
    assert len(told) == 1
    assert told[0].endswith("(Mongaras & Larson, arXiv 2507.23632)")


def test_other_aliases() -> None:
    assert {alias for alias in ALIASES if alias not in OFFICIAL} == {
        "fox",
        "retnet",
        "2mamba",
        "squared__sm_norm__A_mask_type_neg_softplus__in_conv_k_2",
    }
    assert maclaurin.recipe("retnet") is CATALOGUE["retention"]


def test_a_name_means_one_thing() -> None:
    names = [name for each in CATALOGUE.values() for name in (each.name, *each.aliases)]
    assert len(set(names)) == len(names)
    assert not any("/" in name for name in names)
    assert not any("_" in name for name in CATALOGUE)


def test_layers_of_the_members_that_fade() -> None:
    """Positions are in the decay for all but retention, which rotates as well."""
    found = {name: each.layer for name, each in CATALOGUE.items() if each.layer != LayerOptions()}
    assert found == {
        "forgetting": LayerOptions(rotary=False),
        "retention": LayerOptions(decay="fixed", vector_gate=True),
        "power-2-decay": LayerOptions(rotary=False, convolution=2, decay="minus_softplus"),
        "exp-layer-decay": LayerOptions(rotary=False),
    }


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
        ("gated_softmax_cumgat", r"did you mean 'gated_softmax_cumgate'"),
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


@pytest.mark.parametrize("decay", ["", None, 3])
def test_a_decay_is_a_name(decay: object) -> None:
    with pytest.raises(ConfigError, match=r"decay=.*is not a name\.\n  Give one of maclaurin\.nn\.gates\.DECAYS"):
        LayerOptions(decay=decay)


@pytest.mark.parametrize("vector_gate", [1, "yes", None])
def test_a_vector_gate_is_a_bool(vector_gate: object) -> None:
    with pytest.raises(ConfigError, match=r"vector_gate=.*is not a bool\.\n  Give True for an output gate per channel"):
        LayerOptions(vector_gate=vector_gate)
