"""`prifedsync partition`: who has what, in a table, as JSON and as a picture."""

import json
import struct
import subprocess
import sys
from itertools import pairwise

import matplotlib.colors
import pytest

from prifedsync.report.partition import COLOURS, GREY, OTHERS, Bar, draw, figure, shown_labels, spaced
from prifedsync.values import BadValue
from tests.test_cli import call

SPLIT = ["--set", "data.partition=dirichlet", "--set", "data.records_per_client=100", "--set", "data.clients=30",
         "--set", "data.overlap=true"]  # fmt: skip


def said(*words, **environment):
    done = call("partition", *words, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def own_data(folder, task="classes", rows=40):
    """A CSV file of two owners, and a config that reads it."""
    path = folder / "all.csv"
    lines = [
        f"{i},{'north' if i % 4 else 'so[u]th'},{('no', 'yes')[i % 2] if task != 'regression' else i}" for i in range(rows)
    ]
    path.write_text("x,who,label\n" + "\n".join(lines), encoding="utf-8")
    text = f'[data]\nsource = "csv"\npath = "{path}"\nclient_column = "who"\ntest_fraction = 0.0\ntask = "{task}"\n'
    text += "ranges = { x = [0, 100] }\n"
    text += 'label_values = ["no", "yes"]\n' if task != "regression" else ""
    config = folder / "own.toml"
    config.write_text(f"{text}[privacy]\nnoise_multiplier = 1\n", encoding="utf-8")
    return str(config)


def test_json_is_one_object_that_adds_up():
    found = json.loads(said(*SPLIT, "--json"))
    assert [client["name"] for client in found["clients"]] == [f"client-{i:02}" for i in range(30)]
    for client in found["clients"]:
        assert set(client) == {"name", "train", "test", "labels", "persons"}
        assert (client["train"], client["test"]) == (80, 20)
        assert sum(client["labels"].values()) == 80
        assert list(client["labels"]) == [str(label) for label in range(10)]
    assert found["records"] == 30 * 80
    assert found["copies"] > 1


def test_the_table_shows_twenty_clients_and_the_rest_in_words():
    text = said(*SPLIT, COLUMNS="100")
    found = json.loads(said(*SPLIT, "--json"))
    first = [str(count) if count else "·" for count in found["clients"][0]["labels"].values()]
    rows = [line.split() for line in text.splitlines() if line.strip().startswith("client-")]
    assert len(rows) == 20
    assert rows[0] == ["client-00", "80", "20", *first]
    assert "… and 10 more" in text
    assert "30 clients with 2,400 training records: least 80, median 80, most 80" in text
    seen = sum(count > 0 for client in found["clients"] for count in client["labels"].values()) / 30
    assert f"a client has {seen:.1f} of 10 labels on average" in text
    assert f"up to {found['copies']} clients hold one and the same record; a record held by c clients leaks" in text
    assert "add --out partition.png" in text
    assert "no guarantee" not in text


def test_a_narrow_terminal_gets_words_instead_of_columns():
    text = said("--set", "data.clients=3", COLUMNS="50")
    assert max(len(line) for line in text.splitlines() if "client-" in line) <= 50
    assert "most frequent" in text
    found = json.loads(said("--set", "data.clients=3", "--json"))
    labels = found["clients"][0]["labels"]
    most = max(labels.values())
    (row,) = (line.split() for line in text.splitlines() if "client-00" in line)
    assert row[3] == str(sum(count > 0 for count in labels.values()))
    assert row[5] == f"({most}),"


def test_without_copies_nothing_is_said_of_them():
    text = said("--set", "data.partition=quantity")
    assert "one and the same" not in text
    assert "10 clients with 1,437 training records" in text


def test_your_own_records_are_counted_with_a_warning(tmp_path):
    text = said(own_data(tmp_path))
    assert "these are exact counts of your records, without noise: no guarantee covers them" in text
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip().startswith(("north", "so"))}
    assert rows == {"north": ["30", "0", "10", "20"], "so[u]th": ["10", "0", "10", "·"]}
    found = json.loads(said(own_data(tmp_path), "--json"))
    labels = {"no": 10, "yes": 20}
    assert found["clients"][0] == {"name": "north", "train": 30, "test": 0, "labels": labels, "persons": None}


def test_numbers_to_predict_have_no_labels(tmp_path):
    text = said(own_data(tmp_path, "regression"), "--out", str(tmp_path / "sizes.png"))
    assert "labels" not in text
    assert "2 clients with 40 training records: least 10, median 20, most 30" in text
    assert (tmp_path / "sizes.png").is_file()
    found = json.loads(said(own_data(tmp_path, "regression"), "--json"))
    assert [client["labels"] for client in found["clients"]] == [{}, {}]


REFUSED = {
    "no such preset": (["digitz"], "did you mean digits"),
    "no such field": (["--set", "data.partitions=iid"], "data.partition"),
    "no such partition": (["--set", "data.partition=dirichle"], "did you mean dirichlet?"),
    "too many records": (["--set", "data.partition=dirichlet"], "data.clients × data.records_per_client = 5000"),
    "no such file": (["--set", "data.source=csv", "--set", "data.classes=2", "--data", "none.csv"], "data.path = none.csv"),
    "picture of no kind": (["--out", "partition.pdf"], "out = partition.pdf"),
    "picture nowhere": (["--out", "no/where.png"], "out = no/where.png"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_one_line_and_exit_status_2(name, tmp_path):
    words, says = REFUSED[name]
    done = call("partition", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert says in done.stderr


def test_dirichlet_of_numbers_is_refused_with_a_remedy(tmp_path):
    (tmp_path / "all.csv").write_text("x,label\n" + "".join(f"{i},{i}\n" for i in range(30)), encoding="utf-8")
    words = [
        "--set",
        "data.source=csv",
        "--set",
        "data.task=regression",
        "--set",
        "data.ranges.x=0,30",
        "--data",
        "all.csv",
        "--set",
        "data.partition=dirichlet",
    ]
    done = call("partition", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert "data.partition = dirichlet needs classes, but data.task is regression; use" in done.stderr


# ---------------------------------------------------------------------- the picture


def bars(clients, labels=3, records=100):
    """Clients with 1, 2, 3, … parts of each label."""
    whole = sum(range(1, labels + 1))
    counts = {f"l{i}": records * whole * (i + 1) // whole for i in range(labels)}
    return [Bar(f"c{i}", sum(counts.values()), counts) for i in range(clients)]


def pieces(axes):
    """Each bar as (left end, width, colour), by its place from the top."""
    found = {}
    for patch in axes.patches:
        place = round(patch.get_y() + patch.get_height() / 2)
        colour = matplotlib.colors.to_hex(patch.get_facecolor()).upper()
        found.setdefault(place, []).append((patch.get_x(), patch.get_width(), colour))
    return found


def test_the_command_writes_a_png(tmp_path):
    path = tmp_path / "partition.png"
    assert f"picture: {path}" in said(*SPLIT, "--out", str(path))
    raw = path.read_bytes()
    assert raw[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", raw[16:24])
    assert 1000 < width < 3000
    assert 600 < height < 3000
    assert len(raw) > 10_000


def test_bars_are_shares_of_labels_one_after_another():
    some = [Bar("a", 100, {"x": 25, "y": 75, "z": 0}), Bar("b", 8, {"x": 0, "y": 4, "z": 4})]
    (axes,) = figure(some, "note").axes
    x, y, z = (colour.upper() for colour in COLOURS[:3])
    assert pieces(axes) == {0: [(0, 0.25, x), (0.25, 0.75, y)], 1: [(0, 0.5, y), (0.5, 0.5, z)]}
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["a", "b"]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first on top
    written = [text.get_text() for text in axes.texts]
    assert written == ["x", "y", "100", "y", "z", "8"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["x", "y", "z"]


def test_ten_of_many_clients_evenly_spaced():
    many = bars(100)
    names = [bar.name for bar in spaced(many)]
    assert names[0] == "c0"
    assert names[-1] == "c99"
    assert {int(b[1:]) - int(a[1:]) for a, b in pairwise(names)} == {11}
    drawn = figure(many, "")
    assert drawn._suptitle.get_text() == "Labels of 10 of 100 clients"
    assert len(pieces(drawn.axes[0])) == 10
    assert len(spaced(bars(10))) == 10
    for count in (11, 12, 19):
        assert len({bar.name for bar in spaced(bars(count))}) == 10


def test_rare_labels_share_a_colour():
    many = bars(2, labels=14)
    labels = shown_labels(many)
    assert labels == [*(f"l{i}" for i in range(5, 14)), OTHERS]
    (axes,) = figure(many, "").axes
    *_, (left, width, colour) = pieces(axes)[0]
    assert colour == GREY
    assert left + width == pytest.approx(1)
    assert width == pytest.approx(sum(range(1, 6)) / sum(range(1, 15)))
    assert shown_labels(bars(2, labels=10)) == [f"l{i}" for i in range(10)]


def test_without_labels_bars_are_sizes():
    (axes,) = figure([Bar("a", 30, {}), Bar("b", 10, {})], "").axes
    assert {place: width for place, [(_, width, _)] in pieces(axes).items()} == {0: 30, 1: 10}
    assert axes.get_legend() is None


def test_names_are_no_formulas(tmp_path):
    draw([Bar("a$b$ \\frac", 4, {"$x^$": 4}), Bar("n" * 200, 4, {"$x^$": 4})], "", tmp_path / "odd.png")
    assert (tmp_path / "odd.png").stat().st_size > 1000


def test_only_png(tmp_path):
    with pytest.raises(BadValue, match="must end in"):
        draw(bars(1), "", tmp_path / "a.svg")


def test_the_picture_needs_no_torch():
    script = "import sys, prifedsync.report.partition; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
