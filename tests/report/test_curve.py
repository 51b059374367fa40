"""The picture of a trade-off curve: each line is the guarantee that its label names."""

import pytest
from typer.testing import CliRunner

from prifedsync import cli
from prifedsync.accounting import PrivacyPlan
from prifedsync.fdp import gaussian
from prifedsync.report import curve
from prifedsync.report.curve import CERTIFIED, GUESSING, PAPER, WORST_CASE, figure, lines, page
from prifedsync.values import BadValue

from ..accounting import wide

PLAN = ("--records", "50", "--batch", "5", "--noise-multiplier", "2", "--local-steps", "2", "--rounds", "6")


def by_label(drawn):
    return {line.label: line for line in drawn}


def test_each_line_is_what_its_label_says():
    drawn = by_label(lines(wide.HONEST, wide.WORST_CASE, 1.5))
    assert set(drawn) == {GUESSING, CERTIFIED, WORST_CASE, f"{PAPER}: μ = 1.50"}
    alpha = drawn[CERTIFIED].alpha
    assert (drawn[CERTIFIED].beta == wide.HONEST(alpha)).all()
    assert (drawn[WORST_CASE].beta == wide.WORST_CASE(alpha)).all()
    assert (drawn[GUESSING].beta == 1 - alpha).all()
    assert (drawn[f"{PAPER}: μ = 1.50"].beta == gaussian(1.5)(alpha)).all()


@pytest.mark.parametrize("mu", [None, float("inf")])
def test_lines_that_say_nothing_are_left_out(mu):
    assert set(by_label(lines(wide.HONEST, wide.HONEST, mu))) == {GUESSING, CERTIFIED}


def test_axes_and_legend_have_the_names_of_the_field():
    drawn = lines(wide.HONEST, wide.WORST_CASE, None)
    (axes,) = figure(drawn, "a note").axes
    assert axes.get_xlabel() == "false positive rate α"
    assert axes.get_ylabel() == "false negative rate β"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [GUESSING, WORST_CASE, CERTIFIED]
    layout = page(drawn, "a note").layout
    assert layout.xaxis.title.text == "false positive rate α"
    assert layout.yaxis.title.text == "false negative rate β"


def test_both_kinds_of_picture_draw_the_lines_they_are_given():
    given = by_label(lines(wide.HONEST, wide.WORST_CASE, 1.5))
    (axes,) = figure(tuple(given.values()), "a note").axes
    as_png = {line.get_label(): (line.get_xdata(), line.get_ydata()) for line in axes.lines}
    as_html = {trace.name: (trace.x, trace.y) for trace in page(tuple(given.values()), "a note").data}
    for drawn in (as_png, as_html):
        assert set(drawn) == set(given)
        for label, (alpha, beta) in drawn.items():
            assert (alpha == given[label].alpha).all()
            assert (beta == given[label].beta).all()


def test_only_the_certified_lines_are_called_bounds():
    traces = page(lines(wide.HONEST, wide.WORST_CASE, 1.5), "a note").data
    bounds = {trace.name for trace in traces if "β ≥" in trace.hovertemplate}
    assert bounds == {CERTIFIED, WORST_CASE}


@pytest.mark.parametrize("participation", ["0.5", "1"])
def test_the_command_draws_both_guarantees_of_the_plan(participation, monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(PrivacyPlan, "guarantee", wide.guarantee)
    monkeypatch.setattr(curve, "draw", lambda curves, note, path: seen.append((by_label(curves), note)))
    words = ["curve", *PLAN, "--participation", participation, "--out", str(tmp_path / "curve.png")]
    done = CliRunner().invoke(cli.app, words)
    assert done.exit_code == 0, done.output
    ((drawn, note),) = seen
    assert (drawn[CERTIFIED].beta == wide.HONEST(drawn[CERTIFIED].alpha)).all()
    assert (WORST_CASE in drawn) == (participation == "0.5")
    if participation == "0.5":
        assert (drawn[WORST_CASE].beta == wide.WORST_CASE(drawn[WORST_CASE].alpha)).all()
    assert "ε ≤ 4.250 at" in note


def test_the_file_name_chooses_the_kind(tmp_path):
    with pytest.raises(BadValue, match=r"must end in \.png or \.html"):
        curve.draw(lines(wide.HONEST, wide.HONEST, None), "a note", tmp_path / "curve.bmp")


def test_a_long_note_is_not_cut_off():
    drawn = figure(lines(wide.HONEST, wide.WORST_CASE, 1.5), "many words about the plan, " * 12)
    drawn.draw_without_rendering()
    (axes,) = drawn.axes
    boxes = [text.get_window_extent() for text in (*axes.texts, axes._left_title, axes.xaxis.label, axes.yaxis.label)]
    assert all(box.x0 >= 0 and box.y0 >= 0 and box.x1 <= drawn.bbox.x1 and box.y1 <= drawn.bbox.y1 for box in boxes)
