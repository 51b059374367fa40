"""The page of a report in a real browser: what it shows, answers, and refuses to do."""

import json
import re
from itertools import pairwise
from math import log10

import pytest

WAITING = "new Promise(done => requestAnimationFrame(() => setTimeout(done, 60)))"
REACHED = """(() => {
  const on = document.activeElement;
  const style = getComputedStyle(on);
  const box = on.getBoundingClientRect();
  return {
    at: window.walk.indexOf(on), name: on.outerHTML.slice(0, 90),
    outlined: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2,
    inside: box.bottom > 0 && box.top < innerHeight,
  };
})()"""
REACHABLE = """window.walk = [...document.querySelectorAll(
  'a[href], button, input, summary, textarea, [tabindex="0"]')].filter(e => !e.disabled && e.checkVisibility()
  && !(e.type === 'radio' && !e.checked)); window.walk.length"""


def squeezed(text):
    return re.sub(r"\s", "", text or "")


def test_nothing_leaves_the_file_and_nothing_is_wrong(opened, page_file):
    page = opened(page_file)
    page.js("window.scrollTo(0, document.body.scrollHeight)")
    page.js(WAITING)
    assert page.problems == []
    assert page.requests == [page_file.as_uri()]


def test_the_network_is_forbidden_even_to_scripts(shown):
    refused = "fetch('https://example.org').then(() => 'loaded', () => 'refused')"
    assert shown.js(refused) == "refused"


def test_the_verdict_comes_first_as_word_sign_and_colour(shown, report):
    assert shown.js("document.querySelector('main section').id") == "verdict"
    assert shown.text(".decision strong") == report.verdict.decision
    assert shown.text(".verdict .reason") == report.verdict.reason
    assert shown.js("!!document.querySelector('.decision svg')")
    assert shown.js("document.querySelector('.decision').getBoundingClientRect().bottom < innerHeight")


def test_every_item_has_a_row_and_open_ones_are_amber(shown, report):
    rows = shown.js("[...document.querySelectorAll('#items tbody tr')].map(r => [...r.cells].map(c => c.textContent))")
    assert [row[0] for row in rows] == [str(item.number) for item in report.items]
    assert [row[2] for row in rows] == [item.status for item in report.items]
    amber = shown.js("[...document.querySelectorAll('#items tbody .mark.open')].map(m => m.textContent)")
    assert set(amber) == {"open"}
    assert len(amber) == sum(item.status == "open" for item in report.items)


# ---------------------------------------------------------------------- figures


def test_the_curve_answers_to_the_mouse(opened, page_file, report):
    page = opened(page_file)
    page.middle('[data-chart="curve"]')
    page.click('input[value="log"]')
    page.until("document.querySelector('[data-chart=\"curve\"]').layout.xaxis.type === 'log'")
    for level in (0.01, 0.1):
        at = report.curve.alpha.index(level)
        share = 1 - report.curve.certified[at]
        x, y = page.js(
            "(() => { const c = document.querySelector('[data-chart=\"curve\"]'); c.scrollIntoView({block: 'center', "
            "behavior: 'instant'}); const b = c.getBoundingClientRect(); const f = c._fullLayout; return ["
            f"b.x + f.xaxis._offset + f.xaxis.d2p({level}), b.y + f.yaxis._offset + f.yaxis.d2p({share})"
            "]; })()"
        )
        page.move(x + 3, y + 3)
        page.move(x, y)
        said = report.curve.says[at]
        assert "an attacker who accepts" in said
        wanted = json.dumps(squeezed(said))
        page.until(f"(document.querySelector('.hoverlayer')?.textContent ?? '').replace(/\\s/g, '') === {wanted}")


def test_the_curve_is_read_with_keys_too(opened, page_file, report):
    page = opened(page_file)
    page.js("document.getElementById('reader').focus()")
    start = report.curve.alpha.index(0.01)
    page.key("ArrowRight", 3)
    said = page.text("#reader-says")
    assert said[1:-1] == report.curve.says[start + 3][1:]
    assert page.js("document.getElementById('reader').ariaValueText") == said
    page.key("Home")
    assert "0% false positives" in page.text("#reader-says")


def test_all_lines_of_the_curve_are_named(shown):
    names = shown.js("[...document.querySelectorAll('#curve .legend li')].map(e => e.textContent)")
    drawn = shown.js("document.querySelector('[data-chart=\"curve\"]').data.filter(t => t.name).length")
    assert len(names) == drawn
    said = " ".join(names)
    for needed in ("certified", "guessing", "G_μ", "audit"):
        assert needed in said
    assert all("not a guarantee" in name for name in names if "CLT" in name)


def test_axes_change_with_keys(opened, page_file):
    page = opened(page_file)
    page.js("document.querySelector('input[value=\"linear\"]').focus()")
    page.key("ArrowRight")
    page.until("document.querySelector('[data-chart=\"curve\"]').layout.xaxis.type === 'log'")
    assert page.js("document.querySelector('[data-chart=\"curve\"]')._fullLayout.yaxis.type") == "log"


POWERS = """[...document.querySelectorAll('[data-chart="curve"] :is(.xtick, .ytick) text')].map(
  t => t.textContent.replaceAll('\u200b', ''))"""


def test_logarithmic_axes_have_powers_of_ten_and_show_what_is_found(opened, page_file, report):
    page = opened(page_file)
    chart = "document.querySelector('[data-chart=\"curve\"]')"
    before = page.js(f"{chart}.data[{chart}.layout.meta.certified].y")
    page.click('input[value="log"]')
    page.until(f"{chart}.layout.yaxis.type === 'log'")
    assert set(page.js(POWERS)) == {"10−6", "10−5", "10−4", "10−3", "10−2", "10−1", "1"}
    found = page.js(f"{chart}.data[{chart}.layout.meta.certified].y")
    assert all(share >= 1 - beta for share, beta in zip(found, report.curve.certified, strict=True))
    assert "1 − β" in page.js(f"{chart}.layout.yaxis.title.text")
    assert "above" in page.js("document.querySelector('#curve p').innerText")
    assert "below" not in page.js("document.querySelector('#curve p').innerText")
    assert page.js("document.querySelector('#figure-curve figcaption').innerText").startswith("Share of")
    page.click('input[value="linear"]')
    page.until(f"{chart}.layout.yaxis.type === 'linear'")
    assert page.js(f"{chart}.data[{chart}.layout.meta.certified].y") == before
    assert "below" in page.js("document.querySelector('#curve p').innerText")
    assert page.problems == []


def test_each_figure_has_words_and_a_table(shown):
    found = shown.js(
        "[...document.querySelectorAll('figure')].map(f => [f.querySelector('[role=img]').ariaLabel, "
        "f.querySelector('.alt').textContent, !!f.querySelector('table')])"
    )
    assert len(found) >= 4
    for label, said, tabled in found:
        assert label == said
        assert len(said) > 20
        assert tabled


def test_epsilon_at_any_delta_is_on_the_safe_side(opened, page_file, run_folder, report):
    from prifedsync.record import RunRecord
    from prifedsync.report.plans import Plans

    plans = Plans.of(RunRecord.read(run_folder / "record.json").clients)
    page = opened(page_file)
    page.js("document.getElementById('delta').focus()")
    page.key("Home")
    seen = []
    deltas = [row.delta for row in report.deltas.rows]
    for _ in range(round(10 * log10(max(deltas) / min(deltas))) + 1):
        said = page.text("#delta-says")
        epsilon, delta = re.match(r"ε ≤ ([\d.]+) at δ = ([\d.e-]+)\.", said).groups()
        seen.append((float(delta), float(epsilon)))
        page.key("ArrowRight")
    assert seen[0][0] == min(deltas)
    assert seen[-1][0] == max(deltas)
    assert sorted(epsilon for _, epsilon in seen) == [epsilon for _, epsilon in reversed(seen)]
    for delta, epsilon in seen[::7]:
        assert plans.epsilon(delta) <= epsilon
    assert page.js("document.getElementById('delta').ariaValueText") == page.text("#delta-says")


# ---------------------------------------------------------------------- the table of clients


def column(page, at):
    return page.js(f"[...document.querySelectorAll('#clients-table tbody tr')].map(r => r.cells[{at}].textContent)")


def test_the_table_sorts_by_mouse_and_by_key(opened, page_file, report):
    page = opened(page_file)
    counts = [str(row.records) for row in report.clients.rows]
    head = "#clients-table th:nth-child(2)"
    page.click(f"{head} button")
    assert column(page, 1) == sorted(counts, key=int)
    assert page.js(f"document.querySelector('{head}').ariaSort") == "ascending"
    page.js(f"document.querySelector('{head} button').focus()")
    page.key("Enter")
    assert column(page, 1) == sorted(counts, key=int, reverse=True)
    assert page.js(f"document.querySelector('{head}').ariaSort") == "descending"
    page.js("document.querySelector('#clients-table th button').focus()")
    page.key(" ")
    assert column(page, 0) == ["<script>", "a", "c"]
    assert (
        page.js("[...document.querySelectorAll('#clients-table [aria-sort]')].filter(h => h.ariaSort !== 'none').length")
        == 1
    )


def test_names_that_are_traps_are_text(opened, hostile_file):
    from .conftest import HOSTILE

    page = opened(hostile_file)
    for chart in ("curve", "clients-scores"):
        page.middle(f'[data-chart="{chart}"]')
    page.js(
        "document.querySelectorAll('[data-chart]').forEach(c => Plotly.Fx.hover(c, [{curveNumber: 0, pointNumber: 0}]))"
    )
    page.js("document.getElementById('reader').focus()")
    page.key("ArrowRight", 2)
    page.js(WAITING)
    assert page.js("window.hacked") is None
    assert column(page, 0) == list(HOSTILE)
    assert (
        page.js("document.querySelectorAll('main img, main b, main [onmouseover], main a[href^=javascript]').length") == 0
    )
    assert page.js("document.querySelectorAll('.chart a').length") == 0
    assert page.problems == []
    assert page.requests == [hostile_file.as_uri()]


# ---------------------------------------------------------------------- colours, sizes, keys


def back(page):
    return page.js("getComputedStyle(document.querySelector('section')).backgroundColor")


def test_dark_where_the_system_is_dark_and_where_it_is_asked_for(opened, page_file):
    page = opened(page_file)
    light = back(page)
    page.media("dark")
    dark = back(page)
    assert dark != light
    page.click("#theme")
    assert page.text("#theme") == "Theme: light"
    assert back(page) == light
    page.click("#theme")
    assert back(page) == dark
    page.media("light")
    assert back(page) == dark
    page.media("dark", "print")
    assert back(page) == light
    page.media("dark", "screen")
    page.click("#theme")
    assert page.text("#theme") == "Theme: system"


@pytest.mark.parametrize("file", ["page_file", "hostile_file", "comparison_file"])
def test_a_phone_scrolls_in_one_direction(file, opened, request):
    page = opened(request.getfixturevalue(file), width=390, height=844)
    assert page.js("document.documentElement.scrollWidth") == 390
    wide = page.js(
        "[...document.querySelectorAll('main *, header *')].filter(e => !e.closest('.scroll, svg, pre, textarea') && "
        "e.checkVisibility() && e.getBoundingClientRect().right > 391).map(e => e.outerHTML.slice(0, 80))"
    )
    assert wide == []
    assert page.js("[...document.querySelectorAll('.scroll')].every(e => e.tabIndex === 0 && e.ariaLabel)")


def test_a_phone_shows_sentences_in_blocks_under_their_heads(opened, page_file):
    page = opened(page_file, width=390, height=844)
    tables = page.js("[...document.querySelectorAll('table')].filter(t => t.querySelector('td.long, th.long')).length")
    blocks = "[...document.querySelectorAll('table.stacked')]"
    assert page.js(f"{blocks}.length") == tables
    assert page.js(f"{blocks}.every(t => getComputedStyle(t).display === 'block')")
    cells = "[...document.querySelectorAll('table.stacked td')]"
    assert page.js(f"{cells}.every(c => c.dataset.head)")
    assert page.js(f"{cells}.filter(c => c.checkVisibility()).every(c => c.textContent.trim() !== '–')")


@pytest.mark.parametrize("width", [1280, 390, 320])
@pytest.mark.parametrize("file", ["page_file", "pinned_file"])
def test_the_scale_keeps_its_words_and_pins_inside(file, width, opened, request):
    page = opened(request.getfixturevalue(file), width=width)
    inside = "(e => { const b = e.getBoundingClientRect(); const s = e.closest('.scale').getBoundingClientRect();"
    inside += " return b.left >= s.left - 1 && b.right <= s.right + 1 && b.top >= s.top - 1 && b.bottom <= s.bottom + 1; })"
    assert page.js(f"[...document.querySelectorAll('.pin span')].every({inside})")
    assert page.js("[...document.querySelectorAll('.part')].every(p => p.scrollWidth <= p.clientWidth)")


def test_the_table_of_clients_scrolls_under_its_caption_and_says_so(opened, page_file):
    page = opened(page_file, width=900)
    box = "document.querySelector('#clients .scroll')"
    page.until(f"{box}.classList.contains('wider')")
    assert "Scroll" in page.js(f"getComputedStyle({box}.querySelector('caption span'), '::after').content")
    left = f"{box}.querySelector('caption span').getBoundingClientRect().left"
    before = page.js(left)
    page.js(f"{box}.scrollLeft = 10000")
    page.js(WAITING)
    assert page.js(left) == pytest.approx(before, abs=1)
    assert page.js(f"getComputedStyle({box}.querySelector('table')).borderCollapse") == "separate"


WIDER = """[...document.querySelectorAll('.scroll')].filter(
  e => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1).map(e => e.ariaLabel)"""


@pytest.mark.parametrize("width", [1280, 1024, 768, 660])
@pytest.mark.parametrize("file", ["page_file", "long_file"])
def test_no_table_is_wider_than_its_window_but_that_of_clients(file, width, opened, request):
    page = opened(request.getfixturevalue(file), width=width)
    assert [each for each in page.js(WIDER) if not each.startswith("Clients, ")] == []


@pytest.mark.parametrize("medium", ["", "print"])
def test_a_hash_stands_in_one_line_however_long_the_names_of_files_are(medium, opened, long_file):
    page = opened(long_file)
    if medium:
        page.size(688, 994)
        page.media("light", medium)
    heights = page.js("[...document.querySelectorAll('#signatures td code')].map(c => c.getClientRects().length)")
    assert len(heights) > 5
    assert set(heights) == {1}


def test_without_scripts_everything_is_said_and_nothing_is_offered(opened, page_file, report):
    page = opened(page_file, scripts=False)
    assert page.text(".decision strong") == report.verdict.decision
    for control in ("#theme", "#reader", "#delta", 'input[name="axes"]', "#curve .legend"):
        assert not page.js(f"document.querySelector({json.dumps(control)}).checkVisibility()")
    assert page.js("[...document.querySelectorAll('.sort')].every(b => getComputedStyle(b).display === 'contents')")
    assert page.js("document.querySelectorAll('#clients-table tbody tr').length") == len(report.clients.rows)
    tables = "[...document.querySelectorAll('figure')].every(f => f.querySelector('details table'))"
    assert page.js(tables)


def test_a_print_without_scripts_has_tables_where_pictures_would_be(opened, page_file):
    shown = "[...document.querySelectorAll('figure')].map(f => f.querySelector('details').checkVisibility())"
    for scripts in (True, False):
        page = opened(page_file, scripts=scripts)
        page.media("light", "print")
        assert set(page.js(shown)) == {not scripts}


@pytest.mark.parametrize("width", [1280, 390])
def test_text_may_be_twice_as_large(width, opened, pinned_file):
    page = opened(pinned_file, width=width)
    page.js("document.documentElement.style.fontSize = '200%'")
    page.js(WAITING)
    assert page.js("document.documentElement.scrollWidth") == width


def test_what_was_spent_is_in_sight(opened, page_file):
    page = opened(page_file)
    right = "document.querySelector('#clients .scroll').getBoundingClientRect().right"
    cells = "[...document.querySelector('#clients-table tbody tr').cells].slice(0, 8)"
    assert page.js(f"{cells}.every(c => c.getBoundingClientRect().right <= {right})")


@pytest.mark.parametrize("file", ["page_file", "comparison_file"])
def test_keys_reach_everything_in_order_and_show_where_they_are(file, opened, request):
    page = opened(request.getfixturevalue(file))
    page.media("light", motion="reduce")
    count = page.js(REACHABLE)
    assert count > 10
    for at in range(count):
        page.key("Tab")
        found = page.js(REACHED)
        assert found["at"] == at, found
        assert found["outlined"], found
        assert found["inside"], found


def test_nothing_moves_where_that_is_not_wanted(opened, page_file):
    page = opened(page_file)
    page.media("light", motion="reduce")
    assert page.js("getComputedStyle(document.documentElement).scrollBehavior") == "auto"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("file", ["page_file", "comparison_file"])
def test_axe_finds_nothing_serious(file, dark, opened, request, axe):
    page = opened(request.getfixturevalue(file), dark=dark)
    page.js("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.js(f"{axe}; 0")
    found = page.js(
        "axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.map(v => "
        "[v.impact, v.id, v.nodes.length, v.nodes[0].html.slice(0, 200), v.nodes[0].failureSummary]))"
    )
    assert [each for each in found if each[0] in ("serious", "critical")] == []


def test_headings_are_in_order_and_the_contents_lead_to_all_sections(shown):
    levels = shown.js("[...document.querySelectorAll('main :is(h1, h2, h3, h4)')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    links = shown.js("[...document.querySelectorAll('.contents a')].map(a => a.hash.slice(1))")
    assert links == shown.js("[...document.querySelectorAll('main section')].map(s => s.id)")


def marked(page):
    return page.js("[...document.querySelectorAll('.contents [aria-current]')].map(a => a.hash.slice(1))")


def test_the_contents_mark_the_section_that_is_read(opened, page_file):
    page = opened(page_file)
    page.media("light", motion="reduce")
    assert marked(page) == ["verdict"]
    for name in ("curve", "audits", "utility"):
        page.js(f"document.querySelector('.contents a[href=\"#{name}\"]').click()")
        page.until(f"document.querySelector('.contents a[href=\"#{name}\"]').ariaCurrent === 'true'")
        assert marked(page) == [name]
    page.js("window.scrollTo(0, document.body.scrollHeight)")
    page.js(WAITING)
    assert marked(page) == ["signatures"]
    page.js("document.querySelector('.contents a[href=\"#warnings\"]').click()")
    page.until("document.querySelector('.contents a[href=\"#warnings\"]').ariaCurrent === 'true'")


# ---------------------------------------------------------------------- large runs, and paper


def test_a_large_run_is_made_soon_and_is_no_larger_than_it_may(large):
    path, seconds = large
    assert seconds < 5
    assert path.stat().st_size < 6_500_000


def test_a_box_is_drawn_for_each_kind_of_model_where_no_client_is_a_point(opened, large):
    page = opened(large[0])
    page.middle('[data-chart="clients-scores"]')
    drawn = "document.querySelector('[data-chart=\"clients-scores\"]')"
    page.until(f"{drawn}.querySelectorAll('path.box').length > 0")
    boxes = f"[...{drawn}.querySelectorAll('path.box')]"
    assert page.js(f"{boxes}.length") == page.js(f"{drawn}.data.length")
    assert page.js(f"{boxes}.every(box => box.getBoundingClientRect().width > 100)")
    assert page.js(f"{drawn}.querySelectorAll('path.point').length") == 0
    assert page.problems == []


def test_a_large_run_scrolls_smoothly(opened, large):
    """The gap between two frames, while all rows are passed."""
    page = opened(large[0])
    assert page.js("document.querySelectorAll('#clients-table tbody tr').length") == 1000
    assert page.js("[...document.querySelectorAll('#clients-table tbody tr')].filter(r => !r.hidden).length") == 100
    page.click("#clients-pages button:last-of-type")
    page.middle("#clients .scroll")
    gaps = page.js("""new Promise(done => {
      const box = document.querySelector('#clients .scroll');
      const gaps = [];
      let last = performance.now();
      const step = now => {
        gaps.push(now - last);
        last = now;
        box.scrollTop += 400;
        if (box.scrollTop + box.clientHeight < box.scrollHeight - 1) requestAnimationFrame(step);
        else done(gaps.slice(1).sort((a, b) => a - b));
      };
      requestAnimationFrame(step);
    })""")
    assert len(gaps) > 30
    assert gaps[len(gaps) // 2] < 50, gaps
    assert gaps[int(len(gaps) * 0.9)] < 120, gaps


def test_pages_of_rows_turn(opened, large):
    page = opened(large[0])
    visible = (
        "[...document.querySelectorAll('#clients-table tbody tr')].filter(r => !r.hidden).map(r => r.cells[0].textContent)"
    )
    assert page.js(visible)[0] == "hospital-0000"
    page.click("#clients-pages button:nth-of-type(2)")
    assert page.js(visible)[0] == "hospital-0100"
    page.click("#clients-table th button")
    page.click("#clients-table th button")
    assert page.js(visible)[0] == "hospital-0999"


def sheets(pdf):
    """Width and height of each page of a PDF."""
    boxes = re.findall(rb"/Type /Page\b.*?/MediaBox \[([\d. ]+)\]", pdf, flags=re.DOTALL)
    return [tuple(round(float(each)) for each in box.split()[2:]) for box in boxes]


def test_a_print_has_whole_rows_on_upright_and_wide_sheets(opened, page_file):
    page = opened(page_file)
    found = sheets(page.pdf())
    upright, wide = (595, 842), (842, 595)
    assert {(min(each), max(each)) for each in found} == {upright}
    assert found.count(wide) == 1
    assert 8 <= len(found) <= 20
    page.size(688, 994)
    page.media("light", "print")
    rows = page.js(
        "[...document.querySelectorAll('tr')].map(r => [r.getBoundingClientRect().height, getComputedStyle(r).breakInside])"
    )
    assert all(height < 900 for height, _ in rows)
    assert {rule for _, rule in rows} == {"avoid"}
    assert page.js("[...document.querySelectorAll('.chart')].every(c => c.getBoundingClientRect().right <= 689)")
    assert page.js("[...document.querySelectorAll('.scroll')].every(c => c.closest('#clients') || c.scrollWidth <= 690)")


def test_a_print_has_all_columns_of_clients_on_a_wide_sheet(opened, wide_file):
    page = opened(wide_file, width=1017)
    page.media("light", "print")
    page.size(1017, 688)
    assert page.js("document.querySelectorAll('#clients-table thead th').length") >= 21
    assert page.js("document.querySelector('#clients-table').getBoundingClientRect().right") <= 1017


def test_a_print_has_every_client(opened, page_file, large):
    few, many = (sheets(opened(path).pdf()) for path in (page_file, large[0]))
    assert (many.count((842, 595)) - few.count((842, 595))) >= 1000 // 60


def test_a_print_begins_a_sheet_with_the_signatures_and_leaves_out_the_config(opened, page_file):
    page = opened(page_file)
    page.media("light", "print")
    assert page.js("getComputedStyle(document.querySelector('#signatures')).breakBefore") == "page"
    assert not page.js("document.querySelector('.config').checkVisibility()")
    assert page.js("getComputedStyle(document.querySelector('#clients caption span'), '::after').content") == "none"


def test_a_print_shows_the_whole_of_what_may_be_copied(opened, comparison_file):
    page = opened(comparison_file)
    page.media("light", "print")
    page.size(700, 1000)
    areas = page.js(
        "[...document.querySelectorAll('textarea')].map(a => [a.scrollWidth - a.clientWidth, "
        "a.scrollHeight - a.clientHeight, getComputedStyle(a).whiteSpace])"
    )
    assert len(areas) == 2
    for across, down, wraps in areas:
        assert across <= 0
        assert down <= 0
        assert wraps == "pre-wrap"
