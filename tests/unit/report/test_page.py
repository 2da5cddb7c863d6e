"""The page: complete, in reading order, self-contained, and safe whatever the names are."""

from __future__ import annotations

import errno
import os
import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from maclaurin.errors import StoreError
from maclaurin.report import QUESTION, render, section_curves, write_report
from maclaurin.store import Arm, ArmResult, Curve, Missing, ResultRow, StudyRecord, Verdict

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Tags in order with their attributes, the text, and whether every tag is closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.headings, self.text, self._open = [], [], [], []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag, self.getpos()

    def handle_data(self, data):
        if re.fullmatch(r"h[1-6]", self._open[-1] if self._open else ""):
            self.headings.append((self._open[-1], data))
        self.text.append(data)


def words(text):
    return re.sub(r"[ \n]+", " ", "".join(Page(text).text))


def test_content_comes_in_reading_order(rendered):
    text = words(rendered)
    expected = [
        *("study demo, version 2", QUESTION, "It recalls 40\N{NO-BREAK SPACE}% more.", "How sure: fairly sure"),
        *("1. How many terms", "each number rests on 3 trials", "0.0123"),
        *("2. Can it look up", "Multi-query associative recall", "Softmax recalls.", "How sure: high, 2 seeds"),
        *("[0.900, 1.000]", "3. Extra", "peak logit", "What this does not show", "One seed is no seed."),
        *("the loss was not finite after step 41", "Where the numbers come from", "maclaurin study demo --out out"),
        *("digest 0123456789abcdef", "torch 2.13.0", "sha256:abc", "1 to 2 seeds", "limits:", "maclaurin study old"),
        *("Papers", "A. Author. A paper. arXiv 0000.00000."),
    ]
    place = 0
    for part in expected:
        assert part in text[place:], part
        place = text.index(part, place) + len(part)


def test_headings_go_down_one_level_at_a_time(rendered):
    levels = [int(tag[1]) for tag, _ in Page(rendered).headings]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_tables_and_figures_are_named_for_those_who_do_not_see_them(rendered):
    page = Page(rendered)
    tags = [tag for tag, _ in page.tags]
    assert tags.count("table") == tags.count("caption") >= 5
    assert tags.count("figure") == tags.count("figcaption") == tags.count("svg") == 4
    assert all("scope" in attributes for tag, attributes in page.tags if tag == "th")
    assert all(attributes["aria-label"] for tag, attributes in page.tags if tag == "svg")
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert {target.removeprefix("#") for target in targets} <= set(ids)


def test_the_page_needs_nothing_but_itself(rendered):
    text = rendered
    page = Page(text)
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "img", "iframe", "object", "form", "base"})
    (policy,) = [each["content"] for tag, each in page.tags if each.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")
    assert "script" not in policy
    for _, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes)
        for name in ("href", "src", "xlink:href"):
            assert attributes.get(name, "#").startswith(("#", "data:,"))
    assert set(re.findall(r"https?://[^\"<\s]+", text)) == {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert "@import" not in text


def test_every_text_is_escaped(rendered):
    """One payload in every text that reaches the page."""
    bad = "</style></title><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"
    rows = [
        ResultRow(bad, bad, bad, metric, 0.5, 2, (0.4, 0.6), 1.0, (0.4, 0.6), (0, 1)) for metric in ("accuracy", bad)
    ]
    parts = {
        "study": StudyRecord(bad, 1, bad, {bad: bad, "limits": [bad]}),
        "rows": rows,
        "missing": [Missing(bad, bad, bad, bad, bad)],
        "verdicts": [Verdict(bad, bad, bad), Verdict("answer", bad, bad)],
        "curves": {bad: {bad: [Curve(bad, (1, 2), (1.0, 2.0))]}},
        "environment": [{"time": bad, "command": bad, bad: {bad: bad}}],
        "references": [bad],
    }
    text = render(**parts)
    allowed = {tag for tag, _ in Page(rendered).tags}
    assert {tag for tag, _ in Page(text).tags} <= allowed
    assert "<script" not in text
    assert "<img" not in text
    assert text.count("</style>") == text.count("</title>") == 1


def test_without_an_answer_the_verdicts_stand_in_for_it(report_parts):
    verdicts = [Verdict("recall", "Softmax recalls.", "high")]
    text = words(render(**{**report_parts, "verdicts": verdicts}))
    assert text.index("Softmax recalls.") < text.index("1. How many terms")


def test_without_any_verdict_the_page_says_so(report_parts):
    assert "This study has no verdict yet" in words(
        render(**{**report_parts, "rows": [], "verdicts": [], "curves": {}})
    )


def test_a_study_without_anything_still_makes_a_page(report_parts):
    empty = {"rows": [], "missing": [], "verdicts": [], "curves": {}, "environment": [], "references": []}
    text = words(render(study=report_parts["study"], **empty))
    assert "No number that was planned is missing." in text
    assert "maclaurin study demo" in text
    assert "Papers" not in text


def test_one_input_gives_one_text(report_parts, rendered):
    assert render(**report_parts) == rendered


def test_curves_are_collected_by_section_and_mechanism():
    curve = Curve("loss_nats", (1,), (2.0,))
    results = [ArmResult(Arm(f"k{seed}", "recall", "softmax", "mqar", seed, {}), (), (curve,)) for seed in range(2)] + [
        ArmResult(Arm("k", "orders", "taylor:2/sum", "logits-sd-1", 0, {}), ())
    ]
    assert section_curves(results) == {"recall": {"softmax": [curve, curve]}}


def test_the_file_is_written_whole_or_not_at_all(tmp_path, report_parts, rendered, monkeypatch):
    path = write_report(tmp_path / "out" / "report.html", **report_parts)
    assert path.is_absolute()
    assert path.read_text(encoding="utf-8") == rendered

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="disk is full"):
        write_report(path, **{**report_parts, "rows": [], "curves": {}, "references": []})
    assert "A. Author" in path.read_text(encoding="utf-8")
    assert [each.name for each in path.parent.iterdir()] == ["report.html"]
