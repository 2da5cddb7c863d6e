"""The laws of attention as a battery that anyone can run, on our mechanisms or on any function ``fn(q, k, v)``."""

from maclaurin.verify.battery import verify
from maclaurin.verify.laws import LAWS
from maclaurin.verify.report import Report, Row
from maclaurin.verify.target import Target

__all__ = ["LAWS", "Report", "Row", "Target", "verify"]
