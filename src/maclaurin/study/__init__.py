"""Declared studies: what is compared, run with resume, and summed up with statistics."""

from maclaurin.study.environment import environment
from maclaurin.study.plan import Study, built_in, load
from maclaurin.study.runner import Outcome, Progress, run
from maclaurin.study.section import Section
from maclaurin.study.statistics import student_interval, summarize, wilson_interval
from maclaurin.study.verdicts import verdicts

__all__ = [
    "Outcome",
    "Progress",
    "Section",
    "Study",
    "built_in",
    "environment",
    "load",
    "run",
    "student_interval",
    "summarize",
    "verdicts",
    "wilson_interval",
]
