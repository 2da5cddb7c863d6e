"""The probes: what a model is asked to do, as batches of tokens, targets and a mask.

``MQAR`` draws sequences that ask for the value of a key seen before; ``Corpus`` cuts windows from any text,
byte by byte. Both yield ``Batch``, numpy arrays of [B, T], and ``accuracy`` scores one. All that is random
comes from a seed or a ``numpy.random.Generator`` that the caller gives; no global generator is read. This
room knows neither models nor torch.

Files: ``batch`` · ``metrics`` · ``streams`` (random generators per seed and split) · ``mqar`` · ``draws``
(what its randomness is made of) · ``corpus`` · ``documents`` (find and check the files of a corpus) ·
``token_file`` (its split, cache and memory map).
"""

from maclaurin.tasks.batch import Batch
from maclaurin.tasks.corpus import Corpus
from maclaurin.tasks.metrics import accuracy
from maclaurin.tasks.mqar import MQAR

__all__ = ["MQAR", "Batch", "Corpus", "accuracy"]
