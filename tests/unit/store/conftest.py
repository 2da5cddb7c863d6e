"""One study and arms of it, small enough to read."""

from __future__ import annotations

import pytest

from maclaurin.store import Arm, ArmResult, Curve, Measurement, StudyRecord


@pytest.fixture
def study():
    return StudyRecord("quickstart", 1, "0123456789abcdef", {"seeds": [0, 1], "lr": 0.01})


@pytest.fixture
def make_result():
    def make(key="k0", *, mechanism="softmax", seed=0, accuracy=0.75, section="recall"):
        return ArmResult(
            arm=Arm(key, section, mechanism, "mqar", seed, {"lr": 0.01, "widths": [16, 32]}),
            measurements=(
                Measurement("accuracy", accuracy, trials=1024),
                Measurement("loss_nats", 0.5, interval=(0.25, 0.75)),
            ),
            curves=(Curve("loss_nats", (10, 20), (1.5, 0.5)),),
            seconds=2.5,
            notes={"threads": 1, "text": "β <b>"},
        )

    return make
