"""Notes for the owner: shown where they should be, and found in no file."""

import pytest
from typer.testing import CliRunner

import prifedsync
from prifedsync import cli
from prifedsync.config import DataConfig
from prifedsync.data import load
from prifedsync.events import ForOwner, Note
from prifedsync.terminal import View
from prifedsync.terminal.lines import screen
from prifedsync.values import BadValue


def notes(folder, table, ranges, path="", **changed):
    (folder / "north.csv").write_text("height,weight,ill\n" + table)
    config = {"source": "csv", "path": str(folder / path), "task": "binary", "label": "ill", "missing": {"*": 1.0}}
    return load(DataConfig(**(config | {"ranges": ranges} | changed)), 0).notes


def rows(heights):
    return "".join(f"{height},70,{i % 2}\n" for i, height in enumerate(heights))


RANGES = {"height": (1, 2), "weight": (0, 200)}


def sentence(below, above, values):
    """The note on heights."""
    return (
        f"column 'height': {below + above} of {values} values lie outside its public range [1, 2], {below} below it and "
        f"{above} above it, and count as its ends; check the unit of the column, or correct data.ranges.height"
    )


@pytest.mark.parametrize(
    ("heights", "said"),
    [
        ([170, 180, 190], sentence(0, 3, 3)),
        ([0.017, 0.018], sentence(2, 0, 2)),
        ([0, 170], sentence(1, 1, 2)),
        ([170, 180, 190, "", "NA"], sentence(0, 3, 3)),  # missing values do not count
        (["", ""], None),
        ([2, 2, 1], None),  # an end is inside
        ([170, 180, 1.9], None),
        ([170] * 99 + [1.7], sentence(0, 99, 100)),
        ([170] * 98 + [1.7], None),
    ],
)
def test_values_outside_their_range(tmp_path, heights, said):
    assert notes(tmp_path, rows(heights), RANGES) == ({"north": (said,)} if said else {})


def test_tables_whose_rows_repeat_may_be_equal_by_chance(tmp_path):
    """Two hospitals may have the same counts of ages and sexes. Rows that occur once are no chance: that is a copy."""
    (tmp_path / "south.csv").write_text("height,weight,ill\n" + rows([1.5, 1.6]) * 2)
    said = ("south.csv has the same rows as north.csv; if it is a copy, take one of the two files away",)
    assert notes(tmp_path, rows([1.5, 1.6]) * 2, RANGES) == {"south": said}
    (tmp_path / "south.csv").write_text("height,weight,ill\n" + rows([1.5, 1.5, 1.7, 1.8]))
    with pytest.raises(BadValue, match=r"south.csv holds the same records as north.csv"):
        notes(tmp_path, rows([1.5, 1.5, 1.7, 1.8]), RANGES)


def test_each_owner_of_a_common_file_has_notes_of_its_own(tmp_path):
    table = "".join(f"{height},{name},{i % 2}\n" for i, (height, name) in enumerate([(1.5, "a"), (170, "b"), (180, "b")]))
    found = notes(tmp_path, table, {"height": (1, 2)}, client_column="weight")
    assert list(found) == ["b"]
    assert found["b"] == (sentence(0, 2, 2),)


def test_a_file_that_is_split_has_notes_under_its_name(tmp_path):
    found = notes(tmp_path, rows([170] * 8), RANGES, path="north.csv", clients=2, partition="iid")
    assert list(found) == ["north"]


QUIET = """
rounds = 2
[data]
source = "csv"
path = "{}"
label = "ill"
task = "binary"
ranges = {{ height = [1, 2], weight = [0, 200] }}
[privacy]
noise_multiplier = 2.0
"""


def test_a_note_is_shown_to_the_owner_and_is_in_no_file(tmp_path, capsys):
    (tmp_path / "north.csv").write_text("height,weight,ill\n" + rows([170 + i for i in range(40)]))
    config = {
        "rounds": 2,
        "data": {"source": "csv", "path": str(tmp_path), "label": "ill", "task": "binary", "ranges": RANGES},
        "local": {"batch": 8},
        "privacy": {"noise_multiplier": 2.0},
        "performance": {"checkpoint_seconds": 0, "tensorboard": True},
    }
    told = []
    result = prifedsync.train(config, out=tmp_path / "run", watch=told.append, progress=True)
    shown = capsys.readouterr()
    assert "For the owner of the records alone" in shown.err
    assert f"  north: {sentence(0, 40, 40)}" in shown.err
    assert shown.out == ""
    assert [event.notes for event in told if isinstance(event, ForOwner)] == [result.notes]
    assert list(result.notes) == ["north"]
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) > 4
    for path in files:
        content = path.read_bytes()
        for words in (b"values lie", b"count as its ends", b"owner of the records", b"unit of the column"):
            assert words not in content, path
    assert "values lie" not in repr(result.record)
    assert "values lie" not in str(result)


def test_a_quiet_view_shows_no_note(capsys):
    note = ForOwner({"no[r]th": ("column 'x' :smile:",)})
    for quiet in (True, False):
        with View(quiet=quiet, console=screen(stderr=True)) as view:
            view(note)
        assert ("no[r]th: column 'x' :smile:" in capsys.readouterr().err) is not quiet
    with View(quiet=True, notes=True, console=screen(stderr=True)) as view:
        view(note)
        view(Note("nobody reads this"))
    shown = capsys.readouterr().err
    assert "no[r]th: column 'x' :smile:" in shown
    assert "nobody" not in shown


@pytest.mark.parametrize("option", ["--json", "--quiet"])
def test_quiet_commands_tell_the_owner_on_the_error_stream(tmp_path, option):
    (tmp_path / "north.csv").write_text("height,weight,ill\n" + rows([170 + i for i in range(40)]))
    file = tmp_path / "run.toml"
    file.write_text(QUIET.format(tmp_path))
    commands = [["train", file, "--out", tmp_path / "run", option]]
    commands += [["plan", file, option], ["account", file, option]] if option == "--json" else []
    for words in commands:
        done = CliRunner().invoke(cli.app, [str(word) for word in words])
        assert done.exit_code == 0, done.output
        assert f"  north: {sentence(0, 40, 40)}" in done.stderr
        assert "values lie" not in done.stdout
        assert len(done.stdout.splitlines()) == 1
