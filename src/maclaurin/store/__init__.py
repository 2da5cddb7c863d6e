"""What was run, with what, and what came out: one SQLite file per output folder.

- ``records``: the nouns (:class:`Arm`, :class:`Measurement`, :class:`ResultRow`, ...)
- ``metrics``: what each metric is called, its unit, and which way is better
- ``schema``: the layout of the file
- ``opening``: how the file comes into being, is recognized, and is opened
- ``database``: :class:`Store`, which resumes, writes and reads it
- ``encoding``: Python values as JSON and numbers
- ``lock``: one process per folder
- ``files``: atomic writing, and storage failures said in one line
"""

from maclaurin.store.database import DATABASE_NAME, Store
from maclaurin.store.files import make_folder, write_atomically
from maclaurin.store.metrics import Metric, metric
from maclaurin.store.records import (
    Arm,
    ArmResult,
    Curve,
    Measurement,
    Missing,
    ResultRow,
    StudyRecord,
    Verdict,
)

__all__ = [
    "DATABASE_NAME",
    "Arm",
    "ArmResult",
    "Curve",
    "Measurement",
    "Metric",
    "Missing",
    "ResultRow",
    "Store",
    "StudyRecord",
    "Verdict",
    "make_folder",
    "metric",
    "write_atomically",
]
