"""The page that compares runs, in a real browser."""

from itertools import combinations

import pytest

NAMED = """[...document.querySelectorAll('.textpoint text')].filter(t => t.textContent.trim()).map(t => {
  const b = t.getBoundingClientRect(); return [b.left, b.right, b.top, b.bottom]; })"""
BETWEEN = 4  # pixels of a line that are between its letters and those of the next


def test_nothing_leaves_the_file_and_nothing_is_wrong(opened, comparison_file):
    page = opened(comparison_file)
    assert page.problems == []
    assert page.requests == [comparison_file.as_uri()]


def test_runs_are_shown_as_text_and_as_points(opened, comparison_file):
    page = opened(comparison_file)
    names = page.js("[...document.querySelectorAll('#runs tbody th')].map(c => c.firstChild.textContent)")
    assert names == ["run", "other_run & <b>"]
    points = page.js("document.querySelector('[data-chart]').data[0]")
    assert points["x"][1] == 9.0
    assert all(below > 0 for below in points["error_y"]["arrayminus"])


@pytest.mark.parametrize(("kind", "start"), [("markdown", "| run |"), ("latex", "\\begin{tabular}")])
def test_tables_are_copied(kind, start, opened, comparison_file):
    page = opened(comparison_file)
    page.js("document.addEventListener('copy', () => { window.copied = String(getSelection()); })")
    page.js("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.click(f'[data-copy="{kind}"]')
    page.until("[...document.querySelectorAll('.copied')].some(e => e.textContent === 'Copied.')")
    text = page.js(f"document.getElementById('{kind}').value")
    assert text.startswith(start)
    assert page.js("window.copied") == text


def test_what_cannot_be_copied_is_selected(opened, comparison_file):
    page = opened(comparison_file)
    page.js("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.js("document.execCommand = () => false")
    page.js("document.querySelector('[data-copy=latex]').focus()")
    page.key("Enter")
    page.until("[...document.querySelectorAll('.copied')].some(e => e.textContent.startsWith('Selected'))")
    selected = "(a => a.value.slice(a.selectionStart, a.selectionEnd) === a.value)(document.activeElement)"
    assert page.js(selected)


@pytest.mark.parametrize("width", [1280, 820])
def test_the_table_of_runs_is_no_wider_than_its_window(width, opened, comparison_file):
    page = opened(comparison_file, width=width)
    table = "document.querySelector('#runs .scroll')"
    assert page.js(f"{table}.scrollWidth <= {table}.clientWidth + 1")


def test_no_name_lies_over_another(opened, crowded_file):
    boxes = opened(crowded_file).js(NAMED)
    assert len(boxes) >= 5
    for (left, right, top, bottom), (left_too, right_too, top_too, bottom_too) in combinations(boxes, 2):
        beside = right <= left_too or right_too <= left
        assert beside or min(bottom, bottom_too) - max(top, top_too) < BETWEEN


def test_a_narrow_figure_has_points_without_names(opened, crowded_file):
    page = opened(crowded_file, width=390, height=844)
    assert page.js(NAMED) == []
    assert page.js("document.querySelectorAll('.points path.point').length") == 7
