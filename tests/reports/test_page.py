"""The page in a real browser: no errors, figures equal to Python's, filters, keys, a point that opens, themes, narrow screens.

Needs the Python package playwright and Chromium (`CHROMIUM` names it, or it is found on the path); skipped without them.
"""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest

from relucert.records.record import Record, Verdict, ball_fields
from relucert.records.store import RecordStore
from relucert.reports.intervals import subjects, summary
from relucert.reports.page import ShownData, ShownSlice, ShownSubject, page

POINTS = 60


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    random = np.random.default_rng(0)
    inputs = {index: random.random((1, 8, 8)).astype(np.float32) for index in range(POINTS)}
    stores, shown = [], []
    for name in ("first", "second"):
        witnesses = {}
        with RecordStore(folder / f"{name}.jsonl", writable=True) as store:
            for index in range(POINTS):
                lower, label = float(random.uniform(0.01, 0.2)), index % 10
                upper = lower * float(random.choice([1.0, 1.5, np.inf]))
                wrong = index % 20 == 7
                facts = {"lower": 0.0, "upper": 0.0} if wrong else {"lower": lower, "upper": upper}
                store.append(
                    Record(
                        model=name, data="digits", split="test", index=index, ball=ball_fields(np.inf, np.inf, (0, 1)),
                        method="radius by crown and fab", label=label, prediction=9 - label if wrong else label,
                        verdict=Verdict.MISCLASSIFIED if wrong else None, seconds=0.01, **facts,
                    )
                )  # fmt: skip
                if not wrong and np.isfinite(upper):
                    witnesses[index] = inputs[index] + random.uniform(-0.1, 0.1, (1, 8, 8)).astype(np.float32)
        stores.append((name, RecordStore(folder / f"{name}.jsonl")))
        cells = random.integers(0, 3, (12, 12))
        view = ShownSlice(classes=cells, regions=cells, proved=cells > 1, witness=(0.7, 0.5))
        logits = {index: random.normal(size=10) for index in inputs}
        shown.append(ShownSubject(witnesses=witnesses, logits=logits, witness_logits={}, slices={0: view}))
    found = subjects(stores, eps=0.1)
    digits = ShownData(title="Digits </script>", class_names=list("0123456789"), shape=(1, 8, 8), inputs=inputs)
    path = folder / "page.html"
    path.write_text(page("A <b>title</b>", found, {"digits": digits}, shown))
    return path, found


@pytest.fixture(scope="module")
def browser():
    driver = pytest.importorskip("playwright.sync_api", reason="the browser tests need the Python package playwright")
    names = (os.environ.get("CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    program = next((path for name in names if name and (path := shutil.which(name))), None)
    if program is None:
        pytest.skip("the browser tests need Chromium on the path, or CHROMIUM=/path/to/chromium")
    with driver.sync_playwright() as play:
        opened = play.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def tab(browser, made):
    context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    opened, errors = context.new_page(), []
    opened.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("request", lambda request: errors.append(request.url) if request.url.startswith("http") else None)
    opened.goto(made[0].as_uri())
    opened.wait_for_selector("html[data-ready=yes]", state="attached")
    yield opened
    assert errors == []
    context.close()


def test_text_cannot_become_markup(made):
    text = made[0].read_text()
    assert "<b>title</b>" not in text
    assert "Digits </script>" not in text
    assert text.count("</script>") == 2


def test_figures_of_the_page_are_those_of_python(tab, made):
    for eps in (0.1, 0.05):
        tab.fill("#eps-number", str(eps))
        tab.press("#eps-number", "Enter")
        rows = tab.locator("#models tbody tr")
        for i, subject in enumerate(made[1]):
            figures = summary(subject, eps)
            cells = rows.nth(i).locator("td").all_inner_texts()
            assert cells[1] == f"{100 * figures.test_error:.1f} %"
            ends = dict.fromkeys(f"{100 * error:.1f} %" for error in (figures.least_error, figures.most_error))
            assert cells[2] == " to ".join(ends)


def test_filters_and_sorting(tab, made):
    subject = made[1][0]
    wanted = [point.index for point in subject.points if point.verdict(0.1) is Verdict.VULNERABLE]
    for verdict in ("robust", "unknown", "misclassified"):
        tab.uncheck(f"input[value={verdict}]")
    indices = "nodes => nodes.map(node => Number(node.dataset.index))"
    assert tab.eval_on_selector_all("#grid .thumb", indices) == wanted
    tab.select_option("select[name=label]", "4")
    assert tab.eval_on_selector_all("#grid .thumb", indices) == [i for i in wanted if i % 10 == 4]
    tab.select_option("select[name=label]", "")
    tab.select_option("select[name=sort]", "upper")
    uppers = {point.index: point.upper for point in subject.points}
    assert tab.eval_on_selector_all("#grid .thumb", indices) == sorted(wanted, key=uppers.__getitem__)
    tab.select_option("select[name=subject]", "1")
    assert tab.locator("#grid .thumb").count() == POINTS
    tab.click("#models th:nth-child(4) button")
    assert tab.get_attribute("#models th:nth-child(4)", "aria-sort") == "ascending"


def test_no_point_that_fits_is_said_and_all_come_back(tab):
    assert tab.is_hidden("#all")
    for verdict in ("robust", "unknown", "vulnerable", "misclassified"):
        tab.uncheck(f"input[value={verdict}]")
    assert tab.inner_text("#count") == f"No point fits these filters: 0 of {POINTS} points"
    assert tab.locator("#grid .thumb").count() == 0
    tab.click("#all")
    assert tab.locator("#grid .thumb").count() == POINTS
    assert tab.is_hidden("#all")


def test_keys_open_a_point_go_on_and_come_back(tab):
    tab.focus("#grid .thumb[tabindex='0']")
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowLeft")
    tab.keyboard.press("Enter")
    assert tab.inner_text("#detail-title").startswith("Test point 0: 0")
    assert tab.locator("#detail canvas").count() >= 2
    assert tab.locator("#detail .slice").count() == 1
    tab.keyboard.press("ArrowRight")
    assert tab.inner_text("#detail-title").startswith("Test point 1: 1")
    tab.keyboard.press("Escape")
    tab.wait_for_function("document.activeElement.dataset.index === '1'", timeout=5000)


def test_themes_narrow_screens_and_print(tab):
    colours = set()
    for _ in range(3):
        colours.add(tab.evaluate("getComputedStyle(document.body).backgroundColor"))
        tab.click("#theme")
    assert len(colours) == 2
    tab.set_viewport_size({"width": 390, "height": 800})
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    tab.emulate_media(media="print")
    assert tab.is_hidden("#filters")
    assert tab.is_visible("#models")


def test_thumbnails_share_one_picture(tab):
    """A copy of the picture's address in each of a thousand thumbnails would take a second to draw."""
    styles = tab.eval_on_selector_all("#grid .thumb", "nodes => nodes.map(node => node.getAttribute('style'))")
    assert len(styles) == POINTS
    assert not any("data:" in style or "var(" in style for style in styles)
    drawn = tab.eval_on_selector("#grid .thumb", "node => getComputedStyle(node).backgroundImage")
    assert drawn.startswith('url("data:image/png')


def test_every_control_has_a_name(tab):
    script = """() => [...document.querySelectorAll('button, input, select, [role=img]')].filter(node => !(
        node.getAttribute('aria-label') || node.innerText || node.labels?.length)).map(node => node.outerHTML)"""
    assert tab.evaluate(script) == []
