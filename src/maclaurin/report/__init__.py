"""From result rows to a page: one self-contained HTML file, and the same tables as Markdown and LaTeX.

- ``numbers``: numbers with the digits they carry
- ``tables``: rows as tables, each the twin of a figure
- ``export``: tables as Markdown and LaTeX
- ``sections``: what each section asks, in words, and its figures
- ``page``: the HTML file (``report.html.j2``, ``report.css``)
"""

from maclaurin.report.export import to_latex, to_markdown
from maclaurin.report.page import render, section_curves, write_report
from maclaurin.report.sections import ANSWER, QUESTION
from maclaurin.report.tables import Cell, Column, Table, section_tables

__all__ = [
    "ANSWER",
    "QUESTION",
    "Cell",
    "Column",
    "Table",
    "render",
    "section_curves",
    "section_tables",
    "to_latex",
    "to_markdown",
    "write_report",
]
