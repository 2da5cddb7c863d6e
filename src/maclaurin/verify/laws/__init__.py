"""The laws of attention, one file for each kind, in the order they are run."""

from maclaurin.verify.laws import (
    agreement,
    causality,
    contract,
    gates,
    gradient,
    packed,
    padding,
    precision,
    scale,
    span,
    state,
    symmetry,
)

#: Every law by its name.
LAWS = {
    law.name: law
    for part in (
        contract,
        agreement,
        causality,
        symmetry,
        scale,
        state,
        padding,
        packed,
        gates,
        gradient,
        precision,
        span,
    )
    for law in part.LAWS
}

__all__ = ["LAWS"]
