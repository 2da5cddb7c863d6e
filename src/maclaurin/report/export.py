"""Tables as text for other documents: Markdown and LaTeX, every character of a name escaped."""

from __future__ import annotations

import re

from maclaurin.report.tables import Table

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "[": "{[}",
    "]": "{]}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "′": r"$'$",
    "–": "--",
    "…": r"\ldots{}",
    "·": r"\textperiodcentered{}",
}


def to_markdown(table: Table) -> str:
    r"""The table in GitHub's Markdown, its caption as a bold line above.

    >>> from maclaurin.report.tables import Cell, Column
    >>> print(to_markdown(Table("A|B", (Column("name", is_number=False), Column("n")), ((Cell("a|b"), Cell("3")),))))
    **A\|B**
    <BLANKLINE>
    | name | n |
    | :--- | ---: |
    | a\|b | 3 |
    <BLANKLINE>
    """
    heads = [f"{column.group}: {column.label}" if column.group else column.label for column in table.columns]
    ruler = [":---" if not column.is_number else "---:" for column in table.columns]
    body = [[_markdown(str(cell)) for cell in row] for row in table.rows]
    lines = [[_markdown(head) for head in heads], ruler, *body]
    return f"**{_markdown(table.caption)}**\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def to_latex(table: Table) -> str:
    r"""The table as a LaTeX ``table`` with ``booktabs`` rules.

    >>> from maclaurin.report.tables import Cell, Column
    >>> print(to_latex(Table("5 %", (Column("name", is_number=False), Column("n")), ((Cell("a_b"), Cell("3")),))))
    % needs \usepackage{booktabs}
    \begin{table}
      \caption{5 \%}
      \begin{tabular}{lr}
        \toprule
        name & n \\
        \midrule
        a\_b & 3 \\
        \bottomrule
      \end{tabular}
    \end{table}
    <BLANKLINE>
    """
    spec = "".join("r" if column.is_number else "l" for column in table.columns)
    lines = []
    if table.groups:
        spans = [rf"\multicolumn{{{count}}}{{c}}{{{_latex(group)}}}" for group, count in table.groups]
        lines.append([""] * table.num_headers + spans)
    lines.append([_latex(column.label) for column in table.columns])
    head = "".join(f"    {' & '.join(line)} \\\\\n" for line in lines)
    body = "".join(f"    {' & '.join(_latex(str(cell)) for cell in row)} \\\\\n" for row in table.rows)
    return (
        "% needs \\usepackage{booktabs}\n\\begin{table}\n"
        f"  \\caption{{{_latex(table.caption)}}}\n"
        f"  \\begin{{tabular}}{{{spec}}}\n    \\toprule\n{head}    \\midrule\n{body}    \\bottomrule\n"
        "  \\end{tabular}\n\\end{table}\n"
    )


def _markdown(text: str) -> str:
    one_line = " ".join(text.split())
    escaped = re.sub(r"([\\`*_\[\]{}#|~$!])", r"\\\1", one_line)
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _latex(text: str) -> str:
    return "".join(_LATEX.get(each, each) for each in " ".join(text.split()))
