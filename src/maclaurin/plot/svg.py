"""A figure as an element of a page."""

from __future__ import annotations

import io
import re
import zlib
from typing import TYPE_CHECKING

from maclaurin.plot.style import INK, PAPER, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def to_svg(figure: Figure, *, label: str) -> str:
    """The figure as an ``<svg>`` element for a page, or as a file of its own.

    Text stays text in the reader's font; ink takes the page's text color (``currentColor``), hollow markers
    its ``--paper``. Equal figures give equal text.

    Args:
        figure: made by a function of this module.
        label: what the figure shows, in a sentence, for readers who do not see it.

    Example:
        >>> from maclaurin.plot import dots_figure
        >>> from maclaurin.store import ResultRow
        >>> rows = [ResultRow("recall", "softmax", "mqar", "accuracy", 0.99, 1, None, 3.0)]
        >>> to_svg(dots_figure(rows, "accuracy"), label="Accuracy of softmax.").startswith("<svg")
        True
    """
    buffer = io.StringIO()
    with style():
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"\s*<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(r"font-family: [^;\"]*", "font-family: system-ui, sans-serif", text)
    text = re.sub(r"font: ([^;'\"]*?px) [^;\"]*", r"font: \1 system-ui, sans-serif", text)
    text = text.replace(INK, "currentColor").replace(PAPER, "var(--paper, #ffffff)")
    prefix = f"f{zlib.crc32((label + text).encode()):08x}-"
    text = re.sub(r"\b(id=\"|xlink:href=\"#|url\(#)", rf"\1{prefix}", text)
    quoted = label.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    start = f'<svg role="img" aria-label="{quoted}" stroke-linejoin="round" fill="currentColor"'
    return text.replace("<svg", start, 1).strip() + "\n"
