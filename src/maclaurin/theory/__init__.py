r"""The theory room: claims as functions that return numbers, never prose.

``expansion``   which orders of exp's series carry the weight of given logits
``certificate`` how wrong a Taylor attention row can be, from its logits; the order that a tolerance needs
``unit``        softmax, identity-linear and power units of a score row, one formula each
``separation``  two constructed data sets that a softmax network tells apart and its linear twin does not
``regression``  the same at the level of a single row of logits
``prediction``  what the separation must show, in closed form, before it is measured
``noise``       the part of the separation that survives a trained readout: signal against noise

The constructions are after Deng et al. 2023 (arXiv:2310.11685), reconstructed; every number is ours. NumPy and SciPy
only; ``import maclaurin`` does not load this room.
"""

from maclaurin.theory.certificate import certificate, log_remainder_bound, order_for, remainder_bound
from maclaurin.theory.expansion import dominant_order, log_term, taylor_terms
from maclaurin.theory.noise import NoiseModel, NoisyStatistic, auc_interval, noisy_statistic, predicted_dprime
from maclaurin.theory.prediction import (
    DetectionRates,
    detection_spike,
    firing_pattern_rate,
    flat_silent_rate,
    least_features,
    least_width,
    predicted_rates,
    spike_share,
    threshold_degree,
    threshold_spike,
)
from maclaurin.theory.regression import RegressionProblem
from maclaurin.theory.separation import (
    DetectionCounts,
    Problem,
    SelfAttentionProblem,
    attention_full,
    build,
    detection_counts,
    features_full,
    network,
    spike_shares,
)
from maclaurin.theory.unit import IDENTITY_LINEAR, SOFTMAX, Unit, power

__all__ = [
    "IDENTITY_LINEAR",
    "SOFTMAX",
    "DetectionCounts",
    "DetectionRates",
    "NoiseModel",
    "NoisyStatistic",
    "Problem",
    "RegressionProblem",
    "SelfAttentionProblem",
    "Unit",
    "attention_full",
    "auc_interval",
    "build",
    "certificate",
    "detection_counts",
    "detection_spike",
    "dominant_order",
    "features_full",
    "firing_pattern_rate",
    "flat_silent_rate",
    "least_features",
    "least_width",
    "log_remainder_bound",
    "log_term",
    "network",
    "noisy_statistic",
    "order_for",
    "power",
    "predicted_dprime",
    "predicted_rates",
    "remainder_bound",
    "spike_share",
    "spike_shares",
    "taylor_terms",
    "threshold_degree",
    "threshold_spike",
]
