"""Batches, their metric and their random streams: what is accepted, and what the refusals say."""

from __future__ import annotations

import doctest
import importlib

import numpy as np
import pytest

from maclaurin.errors import ConfigError, DataError, ShapeError
from maclaurin.tasks import Batch, accuracy
from maclaurin.tasks.batch import check_sizes
from maclaurin.tasks.streams import SPLITS, check_generator, generator

MODULES = ["batch", "corpus", "documents", "draws", "metrics", "mqar", "streams", "token_file"]


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_run(module):
    assert doctest.testmod(importlib.import_module(f"maclaurin.tasks.{module}")).failed == 0


def arrays(shape: tuple[int, ...] = (2, 3)) -> dict[str, np.ndarray]:
    return {
        "tokens": np.zeros(shape, dtype=np.int64),
        "targets": np.zeros(shape, dtype=np.int64),
        "mask": np.ones(shape, dtype=np.bool_),
    }


def test_batch_holds_the_arrays_it_was_given():
    given = arrays()
    batch = Batch(**given)
    assert all(getattr(batch, name) is array for name, array in given.items())
    with pytest.raises(AttributeError, match="tokens"):
        batch.tokens = given["targets"]


@pytest.mark.parametrize("name", ["tokens", "targets", "mask"])
def test_batch_refuses_another_shape_and_prints_all_three(name):
    given = arrays()
    given[name] = given[name][:, 1:]
    with pytest.raises(ShapeError) as refusal:
        Batch(**given)
    for each, array in given.items():
        assert f"{each} {array.shape}" in str(refusal.value)


def test_batch_refuses_one_dimension():
    with pytest.raises(ShapeError, match=r"one shape \[B, T\].*\n.*tokens \(3,\)"):
        Batch(**arrays((3,)))


@pytest.mark.parametrize(
    ("name", "dtype", "wanted"),
    [("tokens", np.int32, "int64"), ("targets", np.float64, "int64"), ("mask", np.int64, "bool")],
)
def test_batch_refuses_another_dtype(name, dtype, wanted):
    given = arrays()
    given[name] = given[name].astype(dtype)
    with pytest.raises(DataError, match=rf"{name}=.*dtype is {np.dtype(dtype)}, not {wanted}"):
        Batch(**given)


def test_batch_refuses_a_list():
    with pytest.raises(DataError, match=r"mask=.*is a list, not a numpy array"):
        Batch(**{**arrays(), "mask": [[True] * 3] * 2})


@pytest.mark.parametrize("size", [0, -1, 2.0, True, "3", None])
def test_sizes_are_whole_numbers_of_at_least_one(size):
    with pytest.raises(ConfigError, match=r"MQAR.sample\(num_sequences=.*whole number >= 1"):
        check_sizes("MQAR.sample", num_sequences=size)
    check_sizes("MQAR.sample", num_sequences=np.int64(1))


def test_accuracy_weighs_every_sequence_the_same():
    given = arrays((3, 4))
    given["mask"] = np.array([[True] * 4, [False, False, False, True], [False] * 4])
    predicted = np.array([[0, 0, 9, 9], [9, 9, 9, 0], [9, 9, 9, 9]])
    assert accuracy(predicted, Batch(**given)) == 0.75  # (2/4 + 1/1) / 2: not 3/5, and not / 3


def test_accuracy_of_a_torch_tensor():
    torch = pytest.importorskip("torch")
    assert accuracy(torch.zeros((2, 3), dtype=torch.int64), Batch(**arrays())) == 1.0


def test_accuracy_refuses_what_it_cannot_score():
    batch = Batch(**arrays())
    with pytest.raises(ShapeError, match=r"predicted \(2, 3, 8\) .* \(2, 3\)\n.*argmax"):
        accuracy(np.zeros((2, 3, 8)), batch)
    with pytest.raises(DataError, match="dtype float64"):
        accuracy(np.zeros((2, 3)), batch)
    with pytest.raises(DataError, match="mask is False everywhere"):
        accuracy(np.zeros((2, 3), dtype=int), Batch(**{**arrays(), "mask": np.zeros((2, 3), dtype=bool)}))


def test_streams_differ_between_seeds_and_splits_and_repeat():
    first = {(seed, split): generator(seed, split).integers(2**63) for seed in range(4) for split in SPLITS}
    assert len(set(first.values())) == len(first)
    assert all(generator(*key).integers(2**63) == value for key, value in first.items())
    assert generator(np.int64(3), "test").integers(2**63) == first[3, "test"]


def test_streams_refuse():
    with pytest.raises(ConfigError, match=r"split='tets'.*did you mean 'test'"):
        generator(0, "tets")
    for seed in (-1, 1.0, True, None):
        with pytest.raises(ConfigError, match=r"seed=.*whole number >= 0"):
            generator(seed)
    with pytest.raises(ConfigError, match=r"MQAR.sample\(rng=0\): this is a int, not a numpy.random.Generator"):
        check_generator("MQAR.sample", 0)
