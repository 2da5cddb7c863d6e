"""The report in a real browser, from a file: silent, alone, laid out, and deaf to markup in names."""

from __future__ import annotations

import os
import shutil

import pytest

from maclaurin.report import QUESTION, write_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="not run: no Chromium on PATH"),
]
HOSTILE_NAME = "<script>alert(1)</script>"  # a mechanism's name in the input
ARGUMENTS = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update", "--disable-sync"]


@pytest.fixture(scope="module")
def report(report_input, tmp_path_factory):
    return write_report(tmp_path_factory.mktemp("report") / "report.html", **report_input)


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="not run: playwright is not installed")
    as_root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*ARGUMENTS, *as_root])
        yield browser
        browser.close()


@pytest.fixture(params=["light", "dark"])
def opened(request, browser, report):
    """The page in one theme, and everything it said, asked for, or popped up while it was loaded and printed."""
    page = browser.new_page(viewport={"width": 1100, "height": 900}, color_scheme=request.param)
    page.set_default_timeout(5000)
    heard = []
    page.on("console", lambda message: heard.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: heard.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (heard.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda asked: heard.append(f"request: {asked.url}"))
    page.goto(report.as_uri())
    page.emulate_media(media="print")
    page.emulate_media(media="screen")
    yield page, heard
    page.close()


def test_the_page_is_silent_and_asks_for_nothing(opened, report):
    """The only request is the file itself; a name with markup pops up no dialog."""
    page, heard = opened
    page.wait_for_timeout(100)
    assert heard == [f"request: {report.as_uri()}"]
    assert page.locator("script").count() == 0
    links = page.eval_on_selector_all("[href]", "all => all.map(each => each.getAttribute('href'))")
    assert links
    assert all(link.startswith(("#", "data:,")) for link in links)
    assert page.locator("[src]").count() == 0
    assert HOSTILE_NAME in page.locator("main").inner_text()


def test_headings_answer_the_question_in_order(opened):
    page, _ = opened
    assert page.title().startswith(QUESTION)
    assert page.locator("h1").all_inner_texts() == [QUESTION]
    assert page.locator("h2").all_inner_texts() == [
        "1. How many terms of the series are needed?",
        "2. Is there something that softmax sees and linear attention cannot?",
        "3. Can it look up what it has read?",
        "4. Does it matter for predicting text?",
        "What this does not show",
        "Where the numbers come from",
        "Papers",
    ]


def test_figures_have_a_size_and_no_text_is_cut(opened):
    page, _ = opened
    boxes = [each.bounding_box() for each in page.locator("svg").all()]
    assert len(boxes) == 6
    assert all(box["width"] > 700 and box["height"] > 100 for box in boxes)
    outside = page.evaluate(
        """() => [...document.querySelectorAll("svg")].flatMap(svg => {
            const frame = svg.getBoundingClientRect();
            return [...svg.querySelectorAll("text")].filter(text => {
                const box = text.getBoundingClientRect();
                return box.left < frame.left - 1 || box.right > frame.right + 1
                    || box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
            }).map(text => text.textContent);
        })"""
    )
    assert outside == []


def test_text_stands_out_from_the_page(opened):
    """At least 4.5:1 (WCAG AA) for body text, captions, links and the figures' text, in both themes."""
    page, _ = opened
    contrast = """selector => {
        const channels = color => color.match(/[\\d.]+/g).slice(0, 3).map(c => {
            c /= 255;
            return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
        });
        const light = color => { const [r, g, b] = channels(color); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
        const element = document.querySelector(selector);
        const style = getComputedStyle(element);
        const ink = light(element.namespaceURI.endsWith("svg") ? style.fill : style.color);
        const paper = light(getComputedStyle(document.body).backgroundColor);
        return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    }"""
    for selector in ("p", "figcaption", "nav a", "thead th", "summary", "svg text", ".verdict .quiet"):
        assert page.evaluate(contrast, selector) >= 4.5, selector


def test_the_page_never_scrolls_sideways(opened):
    page, _ = opened
    for width in (1100, 360):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_tables_open_by_keyboard_and_all_are_printed(opened):
    page, _ = opened
    closed = page.locator("details:not([open]) table").first
    assert not closed.is_visible()
    assert "relative output error" in str(closed.locator("caption").text_content())  # 13 orders: a long one
    page.locator("details:not([open]) > summary").first.press("Enter")
    assert page.locator("details table").first.is_visible()
    page.emulate_media(media="print")
    assert all(each.bounding_box()["height"] > 20 for each in page.locator("details > :not(summary)").all())


def test_a_printed_page_cuts_nothing_off(opened):
    """A4 less its margins is 178 mm wide, 673 CSS pixels."""
    page, _ = opened
    page.set_viewport_size({"width": 673, "height": 950})
    page.emulate_media(media="print")
    wide = (
        "all => all.filter(each => each.getBoundingClientRect().right > 674).map(each => each.textContent.slice(0, 80))"
    )
    assert page.eval_on_selector_all("table, svg, pre", wide) == []
