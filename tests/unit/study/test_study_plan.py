"""A study's file: what is read, what is refused and in which words, before anything runs.

Run: pytest tests/unit/study/test_study_plan.py
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from maclaurin.errors import ConfigError, DataError
from maclaurin.study import Study, built_in, load
from tiny.launch import TINY, prepare


def changed(folder: Path, place: str, value: Any) -> str:
    """The tiny study with one setting changed, as a file."""
    values = yaml.safe_load(TINY.read_text("utf-8"))
    *path, last = place.split(".")
    inner = values
    for part in path:
        inner = inner[part]
    inner[last] = value
    file = folder / "changed.yaml"
    file.write_text(yaml.safe_dump(values), "utf-8")
    return str(file)


def refusal(name: str, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(name, **options)
    message = str(caught.value)
    assert repr(name) in message  # what was asked
    assert "Value error" not in message  # pydantic's own words
    assert "errors.pydantic.dev" not in message
    return message


def test_the_built_in_study_is_complete() -> None:
    assert built_in() == ["quickstart"]
    study = load("quickstart")
    assert [section.name for section in study.sections] == ["orders", "separation", "recall", "language"]
    assert (study.name, study.seed) == ("quickstart", 0)
    assert study.recall.mechanisms == ("softmax", "exp-l2", "taylor-4", "taylor-2", "linear-elu")


def test_a_seed_given_replaces_the_studys_own_and_makes_another_study(tmp_path: Path) -> None:
    assert load("quickstart", seed=7).seed == 7
    assert load(changed(tmp_path, "seed", 3), seed=0).seed == 0
    assert load("quickstart", seed=0).record() == load("quickstart").record()
    assert load("quickstart", seed=7).record().digest != load("quickstart").record().digest


def test_a_section_that_is_left_out_is_not_run(tmp_path: Path) -> None:
    study = load(changed(tmp_path, "language", None))
    assert [section.name for section in study.sections] == ["orders", "separation", "recall"]


# -- refusals: the file ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "hint"), [("quickstat", "did you mean 'quickstart'?"), ("zzz", "legal: quickstart")])
def test_an_unknown_study_is_refused_with_the_nearest(name: str, hint: str) -> None:
    assert hint in refusal(name)
    assert "a file that ends in .yaml" in refusal(name)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "No such file" in refusal(str(tmp_path / "none.yaml"))


def test_a_folder_in_the_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    assert "directory" in refusal(str(tmp_path / "folder.yaml"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"name: [1, 2", "this is not YAML"),
        (b"name: a\n\tversion: 1", "this is not YAML"),
        (b"a: 1\n---\nb: 2", "this is not YAML"),
        (b"!!python/object/apply:os.getcwd []", "this is not YAML"),
        (b"\x01", "this is not YAML"),
        (b"- name\n- version", "a mapping of keys, this is a list"),
        (b"quickstart", "a mapping of keys, this is a str"),
        (b"", "a mapping of keys, this is a NoneType"),
        (b"# nothing but a comment", "a mapping of keys"),
    ],
)
def test_a_file_that_is_no_study(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "bad.yaml").write_bytes(content)
    assert words in refusal(str(tmp_path / "bad.yaml"))


@pytest.mark.parametrize("place", ["1", "recall.1", "recall.task.1", "recall.training.1"])
def test_a_key_that_is_no_word(tmp_path: Path, place: str) -> None:
    text = changed(tmp_path, place, 3)
    Path(text).write_text(Path(text).read_text("utf-8").replace("'1': 3", "1: 3"), "utf-8")
    assert f"{place} is no key; YAML reads it as int" in refusal(text)


# -- refusals: keys ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "nearest"),
    [
        ("languge", "did you mean 'language'?"),
        ("orders.logit_scale", "did you mean 'logit_scales'"),
        ("separation.spike", "did you mean 'spikes'"),
        ("recall.num_seed", "did you mean 'num_seeds'"),
        ("recall.training.learning_rates", "did you mean 'learning_rate'"),
        ("recall.task.lenth", "did you mean 'length'"),
        ("language.training.warmup_step", "did you mean 'warmup_steps'"),
        ("language.zzzzz", "legal: mechanisms, corpus"),
    ],
)
def test_an_unknown_key_is_refused_with_its_place_and_the_nearest(tmp_path: Path, place: str, nearest: str) -> None:
    message = refusal(changed(tmp_path, place, 3))
    assert nearest in message
    *above, last = place.split(".")
    assert ".".join(above) in message
    assert last in message


# -- refusals: values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("name", "Two Words"),
        ("name", "../escape"),
        ("name", "tiny\n"),
        ("version", 0),
        ("seed", -1),
        ("seed", 2**63),
        ("seed", 0.5),
        ("orders", [1]),
        ("orders.max_order", -1),
        ("orders.max_order", 41),
        ("orders.logit_scales", []),
        ("orders.logit_scales", [0.0]),
        ("orders.logit_scales", [-1.0]),
        ("orders.logit_scales", [math.inf]),
        ("orders.num_seeds", 0),
        ("separation.spikes", []),
        ("separation.spikes", [0.01]),
        ("separation.spikes", [math.nan]),
        ("separation.num_tokens", 401),
        ("separation.block_weight", 1.5),
        ("separation.width", 0),
        ("separation.num_draws", 0),
        ("separation.noisy_lengths", [10]),
        ("separation.noisy_draws", 1),
        ("recall.mechanisms", []),
        ("recall.mechanisms", "softmax"),
        ("recall.model_dim", 0),
        ("recall.num_heads", 3),
        ("recall.convolution", -1),
        ("recall.num_seeds", 0),
        ("recall.num_test", 0),
        ("recall.test_seed", -1),
        ("recall.task", None),
        ("recall.training.steps", 0),
        ("recall.training.learning_rate", math.nan),
        ("recall.training.betas", [0.9, 1.0]),
        ("language.length", 1),
        ("language.mlp_dim", 0),
        ("language.model_dim", 6),
        ("language.num_windows", 0),
    ],
)
def test_an_illegal_value_is_refused_with_its_place(tmp_path: Path, place: str, value: Any) -> None:
    message = refusal(changed(tmp_path, place, value))
    section, _, setting = place.partition(".")
    assert section in message
    assert setting in message
    if isinstance(value, int) and place not in ("recall.num_heads", "language.model_dim"):
        assert str(value) in message


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("num_pairs", 4, "4 * num_pairs <= length does not hold: 4 * 4 = 16 > 12"),
        ("vocab_size", 12, "length < vocab_size does not hold: 12 >= 12"),
        ("length", 13, "length % 2 == 0 does not hold"),
        ("power_a", 0.0, "power_a > 0 does not hold"),
        ("power_a", math.nan, "power_a"),
        ("num_pairs", "two", "num_pairs='two'"),
    ],
)
def test_a_task_that_is_none_is_refused_in_its_own_words(tmp_path: Path, setting: str, value: Any, words: str) -> None:
    message = refusal(changed(tmp_path, f"recall.task.{setting}", value))
    assert "recall.task" in message
    assert words in message


@pytest.mark.parametrize("section", ["recall", "language"])
@pytest.mark.parametrize(
    ("mechanism", "words"),
    [
        ("taylor:3/sum", "may be negative"),
        ("cosine/sum", "may be negative"),
        ("taylr-2", "did you mean 'taylor-2'"),
        ("softmaks", "did you mean 'softmax'"),
        ("", "catalogue"),
        ("exp/sm", "did you mean 'sum'"),
    ],
)
def test_a_mechanism_that_cannot_be_is_refused_before_anything_runs(
    tmp_path: Path, section: str, mechanism: str, words: str
) -> None:
    message = refusal(changed(tmp_path, f"{section}.mechanisms", ["softmax", mechanism]))
    assert f"{section}.mechanisms.1: " in message
    assert words in message


def test_what_would_share_a_label_is_refused(tmp_path: Path) -> None:
    """Two arms of one label would be averaged as if they were two seeds."""
    for place, value in [
        ("recall.mechanisms", ["softmax", "linear-elu", "softmax"]),
        ("orders.logit_scales", [0.5, 0.5]),
        ("separation.noisy_lengths", [100, 100]),
    ]:
        study = load(changed(tmp_path, place, value))
        section = place.partition(".")[0]
        with pytest.raises(ConfigError, match=rf"'tiny': {section} has 2 arms called .*, seed 0"):
            study.model_copy(update={"language": None}).arms(tmp_path)


# -- arms --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """The tiny study, in a folder with its text."""
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    return load("tiny.yaml")


def test_arms_are_the_declared_grid_and_nothing_else(study: Study, tmp_path: Path) -> None:
    found = [(arm.section, arm.mechanism, arm.task, arm.seed) for arm in study.arms(tmp_path / "out")]
    expected = [
        ("orders", f"taylor:{order}{center}/sum{':signed' * (order % 2)}", "logits-sd-0.5", seed)
        for center in ("", "@mean")
        for order in (0, 1)
        for seed in (0, 1)
    ]
    expected += [
        ("separation", unit, f"self-attention a={spike}", 0)
        for spike in ("0.40", "0.70")
        for unit in ("softmax", "linear")
    ]
    expected += [("separation", unit, "noisy n=100", 0) for unit in ("softmax", "linear")]
    expected += [("recall", name, "mqar", seed) for name in ("softmax", "linear-elu") for seed in (0, 1)]
    expected += [("language", name, "bytes", 0) for name in ("softmax", "taylor-2")]
    assert found == expected


def test_quickstart_asks_for_as_many_arms_as_it_declares() -> None:
    study = load("quickstart")
    without_text = study.model_copy(update={"language": None}).arms(Path("unused"))
    assert len(without_text) == 3 * 2 * 13 * 3 + 2 * 7 + 2 * 5 + 5 * 3
    assert len({arm.key for arm in without_text}) == len(without_text)


def test_keys_are_the_same_in_another_process(study: Study, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from maclaurin.study import load\n"
        "study = load('tiny.yaml')\n"
        "print(study.record().digest, *(arm.key for arm in study.arms(Path('other'))))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120
    )
    assert ran.stdout.split() == [study.record().digest, *(arm.key for arm in study.arms(tmp_path / "out"))]


def test_an_arm_holds_its_settings_as_json(study: Study, tmp_path: Path) -> None:
    for arm in study.arms(tmp_path / "out"):
        assert json.loads(json.dumps(arm.config, allow_nan=False)) == json.loads(json.dumps(arm.config))
        assert (arm.config["seed"], arm.config["mechanism"]) == (arm.seed, arm.mechanism)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("orders.logit_scales", [0.25]),
        ("orders.length", 9),
        ("orders.num_heads", 2),
        ("orders.head_dim", 5),
        ("separation.num_features", 52),
        ("separation.block_weight", 0.4),
        ("separation.background_spike", 0.06),
        ("separation.width", 31),
        ("separation.num_draws", 21),
        ("separation.noisy_draws", 201),
        ("recall.task.power_a", 0.5),
        ("recall.task.random_non_queries", True),
        ("recall.model_dim", 16),
        ("recall.num_layers", 1),
        ("recall.num_heads", 2),
        ("recall.convolution", 2),
        ("recall.num_test", 33),
        ("recall.test_seed", 1),
        ("recall.training.steps", 31),
        ("recall.training.batch_size", 9),
        ("recall.training.learning_rate", 0.02),
        ("recall.training.weight_decay", 0.2),
        ("recall.training.warmup_steps", 1),
        ("recall.training.clip_norm", 2.0),
        ("recall.training.betas", [0.9, 0.999]),
        ("recall.training.log_every", 5),
        ("language.model_dim", 32),
        ("language.num_layers", 2),
        ("language.num_heads", 4),
        ("language.mlp_dim", 24),
        ("language.length", 33),
        ("language.num_windows", 5),
        ("language.training.steps", 6),
        ("seed", 2),
    ],
)
def test_every_setting_that_decides_a_result_is_in_the_key(
    study: Study, tmp_path: Path, place: str, value: Any
) -> None:
    before = {arm.key: arm.section for arm in study.arms(tmp_path / "out")}
    after = {arm.key: arm.section for arm in load(changed(tmp_path, place, value)).arms(tmp_path / "out")}
    section = place.partition(".")[0]
    kept = {before[key] for key in before.keys() & after.keys()}
    assert section not in kept or section == "separation"
    if section == "separation":  # its two kinds of arms share no setting but the seed
        assert any(each == section for key, each in after.items() if key not in before)
    if section == "seed":
        assert kept == set()
    else:
        assert kept | {section} == {"orders", "separation", "recall", "language"}


def test_another_text_makes_other_language_arms_only(study: Study, tmp_path: Path) -> None:
    before = {arm.key for arm in study.arms(tmp_path / "out")}
    with (tmp_path / "text.txt").open("a", encoding="utf-8") as file:
        file.write("One line more.\n")
    after = study.arms(tmp_path / "out")
    assert {arm.section for arm in after if arm.key not in before} == {"language"}
    assert not [arm for arm in after if arm.section == "language" and arm.key in before]


def test_a_text_shorter_than_a_window_is_refused_before_anything_runs(tmp_path: Path, study: Study) -> None:
    with pytest.raises(DataError, match=r"length=600.*a window needs 601 bytes"):
        load(changed(tmp_path, "language.length", 600)).arms(tmp_path / "out")


def test_a_seed_shifts_all_seeds(study: Study, tmp_path: Path) -> None:
    shifted = load("tiny.yaml", seed=5).arms(tmp_path / "out")
    assert [arm.seed for arm in shifted] == [arm.seed + 5 for arm in study.arms(tmp_path / "out")]
    assert Study.model_validate(study.model_dump(mode="json")) == study
