"""Figures of result rows and training curves, for notebooks and for reports.

Each ``*_figure`` returns a matplotlib ``Figure`` made without pyplot; :func:`to_svg` turns it into text that
lies in a page: transparent, drawn in the page's own text color, legible on light and dark, the same for the
same data. A mechanism has one color and one marker in every figure; no meaning rests on color alone.
"""

from maclaurin.plot.orders import order_figure
from maclaurin.plot.separation import separation_figure
from maclaurin.plot.style import look
from maclaurin.plot.svg import to_svg
from maclaurin.plot.training import curves_figure, dots_figure

__all__ = ["curves_figure", "dots_figure", "look", "order_figure", "separation_figure", "to_svg"]
