"""Numbers as a reader wants them: as many digits as they carry, the same way in every table."""

from __future__ import annotations

from maclaurin.store import Metric

NOTHING = "–"


def number(value: float, decimals: int | None = None, *, digits: int = 3) -> str:
    """``value`` with ``decimals`` digits after the point, or with ``digits`` significant ones (at least two).

    A value too small for its decimals, but not zero, is written with an exponent.

    >>> number(0.99847, 3), number(12345.6, 0), number(0.00002, 3)
    ('0.998', '12,346', '2.0e-5')
    >>> number(0.5), number(1234.5), number(3.2e-8), number(0.0)
    ('0.500', '1,234', '3.20e-8', '0')
    """
    if value == 0:
        return "0" if decimals is None else f"{0:.{decimals}f}"
    if decimals is not None:
        return f"{value:,.{decimals}f}" if abs(value) >= 0.5 * 10**-decimals else _exponent(value, 1)
    if 1e-3 <= abs(value) < 999.5:
        return f"{value:.0f}" if abs(value) >= 99.5 else f"{value:#.{digits}g}".rstrip(".")
    if 999.5 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    return _exponent(value, digits - 1)


def measured(value: float, metric: Metric) -> str:
    """``value`` as the metric is printed."""
    return number(value, metric.decimals)


def interval(bounds: tuple[float, float] | None, metric: Metric) -> str:
    """A 95 % interval as the metric is printed, or a dash where there is none.

    >>> interval((0.72, 1.149), Metric("accuracy", decimals=3)), interval((0.0712, 3.14e-7), Metric("error"))
    ('[0.720, 1.149]', '[0.071, 3.1e-7]')
    """
    if bounds is None:
        return NOTHING
    low, high = (number(bound, metric.decimals, digits=2) for bound in bounds)
    return f"[{low}, {high}]"


def size(num_bytes: float) -> str:
    """Bytes for people, in powers of 1,000.

    >>> size(272), size(65892), size(2068679340)
    ('272 B', '65.9 kB', '2.07 GB')
    """
    units = ["B", "kB", "MB", "GB", "TB", "PB"]
    while num_bytes >= 999.5 and len(units) > 1:
        num_bytes /= 1000
        units.pop(0)
    return f"{num_bytes:.3g} {units[0]}"


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(0.42), duration(42), duration(100), duration(7300)
    ('0.4 s', '42 s', '1 min 40 s', '2 h 1 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{rest} s"
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _exponent(value: float, digits: int) -> str:
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    return f"{mantissa}e{int(exponent)}"
