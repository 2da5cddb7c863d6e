"""Draw the figures of the documentation from a study's store.

Run: python docs/figures.py maclaurin-runs/quickstart
"""

from __future__ import annotations

import sys
from pathlib import Path

from maclaurin.plot import order_figure, to_svg
from maclaurin.store import Store
from maclaurin.study import Study, summarize

FIGURES = Path(__file__).parent / "figures"


def main(folder: Path) -> None:
    """Write ``docs/figures/orders.svg``, on a white ground that reads in light and dark pages."""
    with Store.open_existing(folder) as store:
        study = Study.model_validate(store.study.config)
        rows, _ = summarize(study.arms(folder), store.results())
    svg = to_svg(order_figure(row for row in rows if row.section == "orders"), label="Error against Taylor order")
    ground = '<rect width="100%" height="100%" fill="white"/><g '
    white = svg.replace("currentColor", "#1a1a1a").replace("<g ", ground, 1)
    FIGURES.mkdir(exist_ok=True)
    (FIGURES / "orders.svg").write_text(white, encoding="utf-8")
    print(FIGURES / "orders.svg")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
