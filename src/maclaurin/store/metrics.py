"""What each metric is called, its unit, and which way is better: one table for every reader."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """How to name and print a metric.

    Args:
        label: the name in words, without the unit.
        unit: what one means; empty for pure numbers.
        better: ``higher``, ``lower``, or empty where neither is better.
        decimals: digits after the point; None prints three significant digits.
        low: smallest possible value, if there is one.
        high: largest possible value, if there is one.
        exact: computed, not measured: the same for every seed, so that it has no spread to show.
    """

    label: str
    unit: str = ""
    better: str = ""
    decimals: int | None = None
    low: float | None = None
    high: float | None = None
    exact: bool = False

    @property
    def axis(self) -> str:
        """Label, unit and direction, as an axis of a figure says it.

        >>> metric("bits_per_byte").axis
        'bits per byte of held-out text (lower is better)'
        """
        unit = f" [{self.unit}]" if self.unit else ""
        better = f" ({self.better} is better)" if self.better else ""
        return f"{self.label}{unit}{better}"


def _share(label: str, better: str = "") -> Metric:
    return Metric(label, better=better, decimals=3, low=0.0, high=1.0)


METRICS: dict[str, Metric] = {
    "accuracy": _share("share of answers that are right", "higher"),
    "auc": _share("area under the ROC curve", "higher"),
    "bits_per_byte": Metric("bits per byte of held-out text", better="lower", decimals=3, low=0.0),
    "break_even_tokens": Metric("cache of equal size", "tokens", decimals=0, exact=True),
    "certificate": Metric("certified bound of the relative output error", better="lower", low=0.0),
    "d_prime": Metric("separation d′, measured", "standard deviations", "higher", decimals=2),
    "d_prime_predicted": Metric("separation d′, predicted", "standard deviations", "higher", decimals=2, exact=True),
    "detection_rate": _share("share of spikes found", "higher"),
    "detection_rate_predicted": Metric("share of spikes found, predicted", decimals=3, low=0.0, high=1.0, exact=True),
    "false_alarm_rate": _share("share of false alarms", "lower"),
    "loss_nats": Metric("loss", "nats per token", "lower", decimals=3, low=0.0),
    "negative_share": _share("share of rows with a negative denominator", "lower"),
    "parameters": Metric("parameters", decimals=0, exact=True),
    "relative_error": Metric("relative output error, median over rows", better="lower", low=0.0),
    "state_bytes": Metric("state per head", "bytes", "lower", decimals=0, exact=True),
    "tokens_per_second": Metric("speed", "tokens per second", "higher", decimals=0),
}


def metric(name: str) -> Metric:
    """The metric called ``name``; an unknown one is printed under its own name.

    >>> metric("accuracy").better
    'higher'
    >>> metric("peak_logit").label
    'peak logit'
    """
    return METRICS.get(name) or Metric(name.replace("_", " "))
