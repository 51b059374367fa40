"""The pictures of the paper's evaluation: they show what they were given, and nothing lies over anything else."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.image import imread
from scipy.stats import norm

from prifedsync.fdp import fixed_size, gaussian
from prifedsync.report.curve import ACCENT, WARN
from prifedsync.report.paper import (
    Accuracy,
    accuracy_figure,
    amplification_figure,
    amplified,
    leak_figure,
)
from prifedsync.values import BadValue

ROUNDS = list(range(1, 41))
PROMISED = [1 - (1 - 0.05**2) ** r for r in ROUNDS]
EXACT = [0.5 * (r / 40) ** 1.5 for r in ROUNDS]
MEASURED = [(p + 0.01, 0.011) for p in EXACT]
CERTIFIED = [1 - 0.95**r for r in ROUNDS]


def rising(rounds, top=0.93, rate=40):
    return [0.1 + (top - 0.1) * (1 - np.exp(-r / rate)) for r in range(1, rounds + 1)]


def personal_and_global():
    return [
        Accuracy("personal, σ = 0.75", [rising(120), rising(133, 0.94)], "personal", 0),
        Accuracy("global, σ = 0.75", [rising(120, 0.88), rising(133, 0.89)], "global", 0),
        Accuracy("personal, σ = 1", [rising(190, rate=60)], "personal", 1),
        Accuracy("global, σ = 1", [rising(190, 0.86, 60)], "global", 1),
    ]


def nine_lines():
    kinds = {"personal": 0.53, "global": 0.48, "non-private": 0.65}
    return [
        Accuracy(f"{kind}, σ = {sigma}", [rising(80, top, 30)], kind, group, every=5)
        for group, sigma in enumerate((0.5, 0.75, 1))
        for kind, top in kinds.items()
    ]


def convex_hull_below(x, y):
    """The lower convex hull of points, by Andrew's chain."""
    hull = []
    for point in sorted(zip(x, y, strict=True)):
        while len(hull) > 1 and _turn(hull[-2], hull[-1], point) <= 0:
            hull.pop()
        hull.append(point)
    return np.array(hull).T


def _turn(a, b, c):
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def test_amplified_curve_is_the_double_conjugate_of_the_minimum():
    identity, curve, sampled, _ = amplified()
    assert (identity.beta == 1 - identity.alpha).all()
    alpha = np.concatenate((np.geomspace(1e-9, 0.1, 20_000), np.linspace(0.1, 1, 10_001)[1:]))
    f_p = 0.35 * norm.cdf(norm.isf(alpha) - 1.8) + 0.65 * (1 - alpha)
    assert sampled.beta == pytest.approx(
        0.35 * norm.cdf(norm.isf(sampled.alpha) - 1.8) + 0.65 * (1 - sampled.alpha), abs=1e-12
    )
    hull = convex_hull_below(np.concatenate((alpha, f_p)), np.concatenate((f_p, alpha)))
    assert curve.beta[1:] == pytest.approx(np.interp(curve.alpha[1:], *hull), abs=2e-7)
    assert curve.beta[0] == pytest.approx(1, abs=1e-12)
    smaller = np.minimum(f_p, np.interp(alpha, f_p[::-1], alpha[::-1]))
    assert np.max(smaller - np.interp(alpha, *hull)) > 0.03  # the minimum alone is not convex


def test_amplified_curve_is_under_both_it_is_made_of():
    _, curve, sampled, inverse = amplified()
    assert (curve.beta <= sampled.beta + 1e-12).all()
    assert (fixed_size(gaussian(1.8), 0.35)(inverse.alpha) <= inverse.beta + 1e-12).all()
    assert list(zip(inverse.alpha, inverse.beta, strict=True))[::-1] == list(zip(sampled.beta, sampled.alpha, strict=True))


def test_amplified_curve_is_convex_and_symmetric():
    curve = amplified()[1]
    slopes = np.diff(curve.beta) / np.diff(curve.alpha)
    assert (np.diff(slopes) > -1e-8).all()
    inside = (curve.alpha > 1e-5) & (curve.alpha < 1 - 1e-3)
    assert fixed_size(gaussian(1.8), 0.35)(curve.beta[inside]) == pytest.approx(curve.alpha[inside], abs=1e-9)


def test_amplification_shows_its_four_curves_and_where_the_middle_is_straight():
    axes = amplification_figure().axes[0]
    *drawn, dots = axes.lines
    for line, given in zip(drawn, amplified(), strict=True):
        assert (line.get_xdata() == given.alpha).all()
        assert (line.get_ydata() == given.beta).all()
    (left, right), (up, down) = dots.get_xdata(), dots.get_ydata()
    assert (left, up) == (down, right)
    curve = amplified()[1]
    inside = np.linspace(left, right, 50)
    assert np.interp(inside, curve.alpha, curve.beta) == pytest.approx(left + right - inside, abs=1e-5)
    for outside in (left - 0.03, right + 0.03):
        assert np.interp(outside, curve.alpha, curve.beta) > left + right - outside + 1e-4


def test_accuracies_are_drawn_in_percent_over_rounds():
    single = Accuracy("B = 8", [[0.2, 0.5, 0.9]], every=5)
    axes = accuracy_figure("title", [single], 0.9, "note").axes[0]
    curve, target = axes.lines
    assert curve.get_xdata().tolist() == [5, 10, 15]
    assert curve.get_ydata() == pytest.approx([20, 50, 90])
    assert target.get_ydata() == [90, 90]
    assert "target\n90 %" in [text.get_text() for text in axes.texts]


def test_seeds_are_thin_and_their_mean_goes_as_far_as_all_do():
    both = Accuracy("p = 1", [[0.2, 0.4, 0.6], [0.4, 0.6]])
    *seeds, mean, _ = accuracy_figure("title", [both], 0.9, "note").axes[0].lines
    assert [line.get_ydata().tolist() for line in seeds] == [pytest.approx([20, 40, 60]), pytest.approx([40, 60])]
    assert mean.get_ydata() == pytest.approx([30, 50])
    assert all(line.get_linewidth() < mean.get_linewidth() for line in seeds)
    assert [line.get_label() for line in (*seeds, mean)][-1] == "p = 1"
    assert all(line.get_label().startswith("_") for line in seeds)  # not in the legend


def test_groups_have_one_colour_and_kinds_one_dash():
    axes = accuracy_figure("title", personal_and_global(), 0.9, "note").axes[0]
    looks = {line.get_label(): (to_hex(line.get_color()), line.get_linestyle()) for line in axes.lines}
    assert looks["personal, σ = 0.75"] == (ACCENT, "-")
    assert looks["global, σ = 0.75"] == (ACCENT, "--")
    assert looks["personal, σ = 1"] == (WARN, "-")
    assert looks["global, σ = 1"] == (WARN, "--")
    nine = accuracy_figure("title", nine_lines(), 0.52, "note").axes[0].lines[:9]
    assert len({(to_hex(line.get_color()), line.get_linestyle()) for line in nine}) == 9


def test_leak_shows_the_claimed_bound_and_the_true_leakage():
    figure = leak_figure(ROUNDS, PROMISED, EXACT, MEASURED, "m = 100, p = 0.05", CERTIFIED)
    axes = figure.axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    for name, values in (("claimed", PROMISED), ("exact", EXACT), ("certified", CERTIFIED)):
        assert list(lines[name].get_xdata()) == ROUNDS
        assert list(lines[name].get_ydata()) == values
    (bars,) = axes.containers
    dots, _, (sticks,) = bars.lines
    assert dots.get_ydata() == pytest.approx([share for share, _ in MEASURED])
    lengths = [stick[1, 1] - stick[0, 1] for stick in sticks.get_segments()]
    assert lengths == pytest.approx([4 * error for _, error in MEASURED])
    said = " ".join(text.get_text() for text in axes.texts)
    assert "After 40 rounds: claimed 0.095, true 0.500; m = 100, p = 0.05" in said


def test_leak_without_the_certified_bound():
    axes = leak_figure(ROUNDS, PROMISED, EXACT, MEASURED, "note").axes[0]
    assert "certified" not in {line.get_label() for line in axes.lines}
    assert axes.get_ylim()[1] < 0.6


LONG = "a note that says so much about the run that one line is far too short for all of it, and so it goes on and on"
FIGURES = {
    "amplification": amplification_figure,
    "personal": lambda: accuracy_figure("Personal against global", personal_and_global(), 0.9, "p = 0.5"),
    "nine": lambda: accuracy_figure("CIFAR-10", nine_lines(), 0.52, LONG),
    "one": lambda: accuracy_figure("One", [Accuracy("only", [rising(50)])], 0.9, "note"),
    "long labels": lambda: accuracy_figure(
        "T", [Accuracy("personal models, σ = 0.75, p = 0.5, B = 16", [rising(9)], group=g) for g in range(3)], 0.5, ""
    ),
    "leak": lambda: leak_figure(ROUNDS, PROMISED, EXACT, MEASURED, "m = 100, p = 0.05", CERTIFIED),
    "leak, ends together": lambda: leak_figure([1, 2], [0.1, 0.2], [0.1, 0.21], [(0.1, 0.01)] * 2, LONG, [0.2, 0.22]),
}


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_is_cut_off_and_no_text_lies_over_another(name):
    figure = FIGURES[name]()
    figure.draw_without_rendering()
    (axes,) = figure.axes
    texts = [text for text in (*axes.texts, axes._left_title, axes.xaxis.label, axes.yaxis.label) if text.get_text()]
    boxes = [text.get_window_extent() for text in texts] + [legend.get_window_extent() for legend in figure.legends]
    for box in boxes:
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.bbox.y1
    for one, two in itertools.combinations(boxes, 2):
        assert not one.overlaps(two)
    for legend in figure.legends:  # outside the plot
        assert not legend.get_window_extent().overlaps(axes.bbox)


def test_the_legend_of_the_amplification_hides_no_curve():
    figure = amplification_figure()
    figure.draw_without_rendering()
    (axes,) = figure.axes
    corner = axes.transData.inverted().transform(axes.get_legend().get_window_extent().get_points())[0]
    assert corner.sum() > 1.1  # above the identity, under which all curves are


@pytest.mark.parametrize(
    "drawn",
    [
        amplification_figure,
        lambda: accuracy_figure("Title", personal_and_global(), 0.9, "note"),
        lambda: leak_figure(ROUNDS, PROMISED, EXACT, MEASURED, "note", CERTIFIED),
    ],
    ids=["amplification", "accuracy", "leak"],
)
def test_a_png_is_written(drawn, tmp_path):
    drawn().savefig(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    height, width, _ = imread(tmp_path / "picture.png").shape
    assert 1000 < width < 1600
    assert 700 < height < 1300
    assert 10_000 < (tmp_path / "picture.png").stat().st_size < 500_000


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"runs": []}, "runs"),
        ({"runs": [[]]}, "runs"),
        ({"runs": [[0.5, 90.0]]}, "give 0.9 for 90 %"),
        ({"runs": [[float("nan")]]}, "accuracy = nan"),
        ({"group": 4}, "group = 4"),
        ({"kind": "secret"}, "kind = secret"),
        ({"every": 0}, "every = 0"),
    ],
)
def test_bad_lines_are_refused(given, says):
    with pytest.raises(BadValue, match=says):
        Accuracy(**{"label": "line", "runs": [[0.5]], **given})


def test_a_target_in_percent_is_refused():
    with pytest.raises(BadValue, match=r"give 0.9 for 90 %"):
        accuracy_figure("title", personal_and_global(), 90, "note")


def test_pictures_never_import_torch():
    script = "import sys, prifedsync.report.paper; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
