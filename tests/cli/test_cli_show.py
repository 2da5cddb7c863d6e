"""``maclaurin show``."""

from __future__ import annotations

import json
import re

import pytest

from cli.process import in_a_pipe, on_a_terminal
from maclaurin import CATALOGUE, mechanism
from maclaurin.cli import main

KINDS = {
    "name": str,
    "mechanism": str,
    "catalogue": list,
    "aliases": list,
    "summary": str,
    "formula": list,
    "terms": dict,
    "operands": list,
    "positivity": str,
    "is_finite_state": bool,
    "window": (dict, type(None)),
    "key_dim": int,
    "value_dim": int,
    "state_size": (int, type(None)),
    "state_bytes_float32": (int, type(None)),
    "num_moments": (int, type(None)),
    "break_even_length": (float, type(None)),
    "flops_per_token": (int, type(None)),
    "cache_numbers_per_token": (int, type(None)),
    "cache_bytes_per_token_16bit": (int, type(None)),
    "flops_per_token_and_cached_key": (int, type(None)),
    "methods": dict,
    "layer": dict,
    "literature": list,
}


def show(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["show", *words]) == 0
    seen = capsys.readouterr()
    assert seen.err == ""
    return seen.out


@pytest.mark.parametrize("name", [*CATALOGUE, "exp:clamp=5/length", "elu1>taylor:3@mean/sum:signed", "poly:1,0,2/rms"])
def test_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(show(capsys, name, "--json"))
    assert set(facts) == set(KINDS)
    assert all(isinstance(facts[key], kind) for key, kind in KINDS.items()), facts
    assert mechanism(facts["mechanism"]) == mechanism(name)
    of_state, of_cache = facts["state_size"] is not None, facts["cache_numbers_per_token"] is not None
    assert of_state is facts["is_finite_state"]
    assert of_cache is not facts["is_finite_state"]
    assert set(facts["methods"]) >= {"parallel", "recurrent"}
    assert all(line and "\n" not in line for line in facts["terms"].values())
    assert all(facts["formula"])


def test_numbers_at_a_head_size(capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(show(capsys, "taylor-2", "--key-dim", "16", "--value-dim", "8", "--json"))
    assert (facts["key_dim"], facts["value_dim"]) == (16, 8)
    assert facts["state_size"] == 153 * 9
    assert facts["state_bytes_float32"] == 4 * 153 * 9
    assert facts["break_even_length"] == pytest.approx(153 * 9 * 4 / (24 * 2))
    cached = json.loads(show(capsys, "softmax", "--key-dim", "16", "--value-dim", "8", "--json"))
    assert (cached["cache_numbers_per_token"], cached["cache_bytes_per_token_16bit"]) == (24, 48)
    assert cached["flops_per_token_and_cached_key"] == 48


def test_a_finite_state_reads_well(capsys: pytest.CaptureFixture[str]) -> None:
    text = show(capsys, "taylor-2")
    for line in (
        "taylor-2 = taylor:2/sum",
        "w = sum over n = 0..2 of x^n / n!",
        "out = N / Z",
        "positive: every visible key gets a weight above zero",
        "139,425 numbers, 544.6 KiB in float32",
        "2,179 tokens",
        "566,280 per token",
        "parallel: yes",
        "Based's feature map (Arora et al., arXiv 2402.18668)",
    ):
        assert line in text
    for word in ("identity", "taylor", "sum"):  # every part has its line
        assert re.search(rf"^{word} ", text, re.MULTILINE)


def test_a_growing_cache_reads_well(capsys: pytest.CaptureFixture[str]) -> None:
    text = show(capsys, "exp:clamp=5/l2")
    assert "grows by 128 numbers per token, 256 B in 16 bits" in text
    assert "262,144 at 1,024 keys" in text
    assert "a logit above 5 counts as 5" in text
    assert "break-even" not in text


def test_gates_read_well(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(show(capsys, "retention").split())
    for words in (
        "retention = power:1/rms+decay+outgate:after",
        "N = sum w d v, Z = sum w d, n = sum d",
        "out = N / rms(N), times g",
        "reads log_decay, output_gate, query, key, value",
        "decay Multiplies the weight of a key by exp of the log decays",
        "outgate Multiplies the output of a query",
        "4,097 numbers",
        "layer rotary positions, no convolution, log decays by fixed, one output gate per channel",
        "also retnet",
    ):
        assert words in text
    value = " ".join(show(capsys, "gated_softmax_no_norm").split())
    assert "exp-length-gates = exp:clamp=5/length+valuegate+outgate" in value
    assert "valuegate Multiplies every value" in value
    assert "one output gate per head" in value
    plain = show(capsys, "softmax")
    assert "reads       query, key, value" in plain
    for absent in ("decay", "gate", "also"):
        assert absent not in plain


def test_windows_read_well(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--key-dim", "16", "--value-dim", "16"]
    both = " ".join(show(capsys, "taylor-2-window", *words).split())
    for line in (
        "the last 16 and the first 4 keys: w = exp(x)",
        "window Exact softmax weights on the last W visible keys and the first S",
        "state 3,242 numbers",
        "reaches the bytes of the moments and the keys and values in the window",
    ):
        assert line in both
    alone = " ".join(show(capsys, "softmax-window", *words).split())
    assert "beyond the window no key is seen" in alone
    assert "state 641 numbers" in alone
    assert "40 tokens: there a 16-bit key/value cache reaches the bytes of the keys and values in the window" in alone
    facts = json.loads(show(capsys, "elu1/sum+window:4:2", *words, "--json"))
    assert facts["window"] == {"width": 4, "sinks": 2}
    assert facts["operands"] == ["far_log_weight"]
    assert (facts["num_moments"], facts["state_size"]) == (16, 16 * 17 + 1 + 6 * 32 + 1)
    assert json.loads(show(capsys, "softmax-window", "--json"))["num_moments"] == 0


def test_a_learned_denominator_reads_well(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(show(capsys, "exp-cumgate").split())
    assert "out = N / max(sum exp(u), 1), u learned per key" in text
    assert "cumgate out = N / max(sum over visible s of d_s exp(u_s), 1): a learned denominator" in text
    assert "reads denominator_logit, query, key, value" in text
    assert "also gated_softmax_cumgate, cumulative_gated_softmax" in text


def test_layer_options_are_facts(capsys: pytest.CaptureFixture[str]) -> None:
    layer = json.loads(show(capsys, "2mamba", "--json"))["layer"]
    assert layer == {"rotary": False, "convolution": 2, "decay": "minus_softplus", "vector_gate": False}


def test_a_refused_method_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(show(capsys, "taylor:8@mean/l2").split())
    assert "recurrent: no, reading order 8 from moments loses too many digits" in text
    assert "parallel: yes" in text
    assert "@mean expanded around c" in text
    facts = json.loads(show(capsys, "taylor:8@mean/l2", "--json"))
    assert facts["methods"]["parallel"] is None
    assert "order 8" in facts["methods"]["recurrent"]


def test_a_text_finds_its_names(capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(show(capsys, "exp/sum", "--json"))
    assert facts["catalogue"] == ["softmax"]
    assert facts["literature"] == list(CATALOGUE["softmax"].literature)
    assert "exp/sum = softmax" in show(capsys, "exp/sum")
    assert "no name in the catalogue" in show(capsys, "exp:clamp=7/l2")
    assert "none in the catalogue" in show(capsys, "taylor-2-window")  # a name of ours, and no paper's


def test_a_state_beyond_every_float(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["taylor:170/sum", "--key-dim", "1000000", "--value-dim", "1000000"]
    assert json.loads(show(capsys, *words, "--json"))["break_even_length"] is None
    assert re.search(r"\d\.\d\de\+\d+ numbers", show(capsys, *words))


@pytest.mark.parametrize("name", ["taylor:8@mean/l2", "exp-layer-decay", "power-2-decay"])
def test_lines_fit_in_eighty_columns(name: str) -> None:
    done = in_a_pipe("show", name)
    assert "\033" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    code, lines = on_a_terminal("show", name, NO_COLOR="1")
    assert code == 0
    assert "\n".join(lines) == done.stdout.rstrip("\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sofmax", "did you mean 'softmax'"),
        ("tailor-2", "did you mean 'taylor-2'"),
        ("taylr:2/sum", "did you mean 'taylor'?"),
        ("taylor:2/summ", "did you mean 'sum'?"),
        ("taylor:3/sum", "taylor:3/sum asks to divide by the sum of weights that may be negative"),
        ("cosine/sum", "Use sum:signed to accept that"),
        ("taylor:-1/sum:signed", "must be an integer from 0"),
        ("", "similarity/normalizer"),
    ],
)
def test_bad_input(text: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", text]) == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.startswith("error: ")
    assert message in seen.err
    assert "Traceback" not in seen.err


def test_bad_input_in_a_process() -> None:
    done = in_a_pipe("show", "sofmax", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean 'softmax'" in done.stderr
    assert "Traceback" not in done.stderr
