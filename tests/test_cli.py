"""The command line: shapes, exit codes, one-line refusals, and numbers on their safe side."""

import json
import os
import subprocess
import sys
from dataclasses import fields
from itertools import groupby
from pathlib import Path

import pytest
import torch

from prifedsync.cli.rules import about
from prifedsync.config import ClientConfig, load
from prifedsync.planning import rule_of
from prifedsync.rules import RULES, Numbers
from prifedsync.rules.fields import fields_read
from prifedsync.terminal import print_rules

ROW = ["--records", "600", "--batch", "16", "--local-steps", "38", "--rounds", "93"]


def call(*words, cwd=None, **environment):
    return subprocess.run(
        [sys.executable, "-m", "prifedsync.cli", *words], capture_output=True, text=True, timeout=120, cwd=cwd, check=False,
        env=os.environ | environment,
    )  # fmt: skip


def answered(*words):
    done = call(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_version_and_help():
    done = call("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("prifedsync 0.")
    for command in ("account", "plan", "curve", "rules"):
        assert command in call("--help").stdout


def test_account_says_the_right_number_about_the_papers_first_row():
    said = answered("account", *ROW, "--noise-multiplier", "2", "--sampling", "fixed", "--clients", "100")
    assert 13.877 <= said["epsilon"]["lower"] <= said["epsilon"]["upper"] <= 13.878
    assert said["paper"]["mu_weak"] == pytest.approx(2.711, abs=5e-4)
    assert said["paper"]["mu_strong"] == pytest.approx(26.97, abs=5e-3)
    assert said["paper"]["kind"] == "asymptotic"
    assert said["mu"]["alpha_min"] == 1e-5
    assert said["worst_case_participation"]["epsilon"] == said["epsilon"]
    assert [0.001, pytest.approx(0.70, abs=0.05)] in said["curve"]
    assert all(0 <= beta <= 1 - alpha + 1e-12 for alpha, beta in said["curve"])


def test_account_defaults_to_poisson_and_replace():
    said = answered("account", *ROW, "--noise-multiplier", "2", "--participation", "0.5")
    assert said["neighbours"] == "replace"
    assert said["paper"]["mu_strong"] is None
    assert said["epsilon"]["upper"] < said["worst_case_participation"]["epsilon"]["lower"]
    assert said["worst_case_participation"]["epsilon"]["upper"] == pytest.approx(7.5476, abs=1e-4)


def test_account_in_words_rounds_to_the_safe_side():
    done = call("account", *ROW, "--noise-multiplier", "2", "--sampling", "fixed")
    assert done.returncode == 0
    assert "≤ 13.878" in done.stdout  # 13.87725 upwards
    assert "≥ 13.877" in done.stdout
    words = " ".join(done.stdout.split())
    assert "knows every other record" in words
    assert "not a guarantee" in words


def test_a_large_delta_is_warned_about():
    said = answered("account", "--records", "50", "--batch", "5", "--local-steps", "1", "--rounds", "1",
                    "--noise-multiplier", "2", "--delta", "0.1")  # fmt: skip
    assert "1/records" in said["warnings"][0]
    assert answered("account", *ROW, "--noise-multiplier", "2")["warnings"] == []


REFUSED = {
    "batch over records": (["account", "--records", "10", "--batch", "16", "--local-steps", "1", "--rounds", "1",
                            "--noise-multiplier", "2"], "batch = 16"),
    "no participation": (["account", *ROW, "--noise-multiplier", "2", "--participation", "0"], "participation = 0.0"),
    "negative noise": (["account", *ROW, "--noise-multiplier", "-1"], "noise_multiplier = -1.0"),
    "no noise": (["account", *ROW, "--noise-multiplier", "0"], "noise_multiplier = 0.0"),
    "fixed with add-remove": (["account", *ROW, "--noise-multiplier", "2", "--sampling", "fixed", "--neighbours",
                               "add-remove"], "neighbours = add-remove"),
    "text for a number": (["account", *ROW, "--noise-multiplier", "much"], "--noise-multiplier"),
    "batch of no number": (["account", "--records", "10", "--batch", "some", "--local-steps", "1", "--rounds", "1",
                            "--noise-multiplier", "2"], "batch = some"),
    "batch of an odd digit": (["account", "--records", "10", "--batch", "²", "--local-steps", "1", "--rounds", "1",
                               "--noise-multiplier", "2"], "batch = ²"),
    "too many steps": (["account", "--records", "60", "--batch", "2", "--local-steps", "1000000000000", "--rounds", "1",
                        "--noise-multiplier", "2"], "local_steps = 1000000000000"),
    "missing option": (["account", "--records", "10"], "--batch"),
    "unknown sampling": (["account", *ROW, "--noise-multiplier", "2", "--sampling", "shuffled"], "shuffled"),
    "delta of one": (["account", *ROW, "--noise-multiplier", "2", "--delta", "1"], "delta = 1.0"),
    "one client colluding": (["account", *ROW, "--noise-multiplier", "2", "--clients", "1"], "clients = 1"),
    "no target": (["plan", *ROW], "target is missing; give exactly one of --target-epsilon"),
    "two targets": (["plan", *ROW, "--target-mu", "1", "--target-epsilon", "1"],
                    "target_epsilon = 1.0 cannot be combined with target_mu = 1.0; give exactly one"),
    "negative target": (["plan", *ROW, "--target-mu", "-1"], "target_mu = -1.0"),
    "no rounds": (["plan", "--records", "600", "--batch", "16", "--target-mu", "1"],
                  "rounds must be given where --solve is noise; add --rounds"),
    "noise needed": (["plan", *ROW, "--target-mu", "1", "--solve", "batch"],
                     "noise_multiplier must be given where --solve is batch; add --noise-multiplier"),
    "no such file": (["plan", "--sizes", "none.csv", "--batch", "4", "--rounds", "3", "--target-mu", "1"], "sizes = none"),
    "records and sizes": (["plan", *ROW, "--sizes", "nowhere.csv", "--target-mu", "1"],
                          "records = 600 cannot be combined with sizes = nowhere.csv; give only one of the two"),
    "neither records nor sizes": (["plan", "--batch", "2", "--rounds", "3", "--target-mu", "1"],
                                  "records is missing; give --records for one client, or --sizes for several"),
    "picture of no kind": (["curve", *ROW, "--noise-multiplier", "2", "--out", "curve.bmp"], "out = curve.bmp"),
    "picture nowhere": (["curve", *ROW, "--noise-multiplier", "2", "--out", "no/where.png"], "out = no/where.png"),
    "unknown command": (["acount"], "acount"),
    "unknown option": (["rules", "--jsn"], "--jsn"),
    "a rule by its name": (["rules", "ditto"], "ditto"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_one_line_and_exit_status_2(name, tmp_path):
    words, says = REFUSED[name]
    done = call(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert says in done.stderr


def test_plan_meets_its_target():
    said = answered("plan", *ROW, "--target-epsilon", "2", "--delta", "1e-5")
    assert 1.998 <= said["epsilon"]["upper"] <= 2.0
    again = answered("account", *ROW, "--noise-multiplier", str(said["noise_multiplier"]))
    assert again["epsilon"]["upper"] == said["epsilon"]["upper"]


def test_plan_per_client_says_who_cannot(tmp_path):
    sizes = tmp_path / "sizes.csv"
    sizes.write_text("client,records\nnorth,600\n7,30\nsouth,600\n", encoding="utf-8")
    said = answered("plan", "--sizes", str(sizes), "--noise-multiplier", "3", "--local-steps", "38", "--rounds", "100",
                    "--target-epsilon", "1", "--solve", "batch")  # fmt: skip
    by_name = {one["client"]: one for one in said["clients"]}
    assert by_name["north"]["batch"] == by_name["south"]["batch"] == 3
    assert not by_name["7"]["meets_target"]
    assert by_name["7"]["reason"].startswith("client 7 with 30 records cannot meet ε = 1 at δ = 1e-05 in 100 rounds")
    assert said["noise_multiplier"] is None  # no plan suits everybody
    people = call("plan", "--sizes", str(sizes), "--noise-multiplier", "3", "--local-steps", "38", "--rounds", "100",
                  "--target-epsilon", "1", "--solve", "batch")  # fmt: skip
    assert people.returncode == 0
    assert "client 7 with 30 records cannot meet" in people.stdout


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("name,records\na,5\n", "columns"),
        ("client,records\na,many\n", "records = many in line 2"),
        ("client,records\na,0\n", "records = 0 in line 2"),
        ("client,records\na,5\na,6\n", "twice"),
        ("client,records\n", "no clients"),
    ],
)
def test_bad_sizes_files(tmp_path, content, says):
    sizes = tmp_path / "sizes.csv"
    sizes.write_text(content, encoding="utf-8")
    done = call("plan", "--sizes", str(sizes), "--batch", "2", "--rounds", "3", "--target-mu", "1")
    assert done.returncode == 2
    assert says in done.stderr


@pytest.mark.parametrize("name", ["curve.png", "curve.html"])
def test_curve_draws(tmp_path, name):
    done = call("curve", *ROW, "--noise-multiplier", "2", "--participation", "0.5", "--out", str(tmp_path / name))
    assert done.returncode == 0, done.stderr
    content = (tmp_path / name).read_bytes()
    assert content.startswith(b"\x89PNG") if name.endswith("png") else b"certified" in content
    assert len(content) > 10_000


def rows_of(table):
    """The cells of a printed table, each as one line of text; rows are parted by lines."""
    lines = [line for line in table.splitlines() if line[:1] in ("│", "├", "└")]
    rows = []
    for is_row, some in groupby(lines, key=lambda line: line.startswith("│")):
        if is_row:
            cells = zip(*(line.strip("│").split("│") for line in some), strict=True)
            rows.append([" ".join(" ".join(cell).split()) for cell in cells])
    return rows


def test_the_table_of_rules_from_a_shell():
    done = call("rules", COLUMNS="80")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert [row[0] for row in rows_of(done.stdout)] == list(RULES)
    text = " ".join(done.stdout.split())
    assert "noisy gradient has a batch of its own and is counted" in text
    assert (
        "pfedme: rule.inner_steps = 3: noisy gradients before each move of the local model (L) (a whole number in" in text
    )


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_table_of_rules_is_whole_at_every_width(width, monkeypatch, capsys):
    """Between words where there is room; a narrow window folds words, and loses no letter."""
    monkeypatch.setenv("COLUMNS", str(width))
    print_rules([about(kind) for kind in RULES.values()])
    printed = capsys.readouterr().out
    expected = [[rule.name, rule.server_sends, rule.client_does, rule.leaves, rule.cost] for rule in RULES.values()]
    found = rows_of(printed)
    if width < 80:
        expected, found = ([["".join(cell.split()) for cell in row] for row in rows] for rows in (expected, found))
    assert found == expected
    table = printed.partition("└")[0].splitlines()
    assert all(len(line) <= width + line.count("\u0303") for line in table)  # the tilde takes no room


def test_rules_for_programs():
    rows = answered("rules")["rules"]
    assert [row["name"] for row in rows] == list(RULES)
    shared = {"mixing", "strength", "delivery"}
    for row in rows:
        kind = RULES[row["name"]]
        assert set(row) == {"name", "server_sends", "client_does", "leaves", "cost", "needs_sum_alone", "about", "fields",
                            "own_fields"}  # fmt: skip
        assert row["cost"] == kind.cost
        assert len(row["about"]) > 50
        own = [field["name"] for field in row["own_fields"]]
        assert [name for name in row["fields"] if name not in shared] == own
        assert all(field["about"] and field["allowed"] for field in row["own_fields"])
        assert (
            rule_of(load("digits").with_rule(kind.name, **{f["name"]: f["default"] for f in row["own_fields"]})) == kind()
        )
    read = {row["name"]: row["fields"] for row in rows}
    assert read["fedavg"] == ["delivery"]
    assert read["attentive"] == ["mixing", "strength", "bandwidth", "delivery"]
    assert read["alone"] == ["publish"]
    assert {"mixing", "strength"} <= {field.name for field in fields(ClientConfig)}
    assert shared <= {field for row in rows for field in row["fields"]}  # each is read by somebody
    (inner, _) = rows[list(RULES).index("pfedme")]["own_fields"]
    assert inner["default"] == 3
    assert inner["allowed"] == "a whole number in [1, 1e+09]"


def test_the_numbers_a_rule_declares_are_those_that_change_something():
    draw = torch.Generator().manual_seed(0)
    weights, own, squared = (torch.rand(shape, generator=draw) for shape in ((6,), (3, 6), (3, 3)))

    def does(rule, **changed):
        """All that a rule does with public numbers."""
        numbers = Numbers(*(torch.full((3, 1), value) for value in ({"mixing": 0.3, "strength": 0.3} | changed).values()),
                          reach=torch.ones(3, 1))  # fmt: skip
        pulls = [part.pull(own, weights.expand(3, 6), numbers.strength) for part in (rule.steps, rule.kept) if part]
        found = [rule.helper(weights, own, numbers), rule.attention(squared, torch.eye(3) > 0, numbers), *pulls]
        return torch.cat([each.flatten().double() for each in found if each is not None])

    for kind in RULES.values():
        for number in ("mixing", "strength"):
            changes = not torch.equal(does(kind()), does(kind(), **{number: 0.6}))
            assert changes == (number in kind.numbers), f"{kind.name} and {number}"
            assert changes == (number in fields_read(kind))


@pytest.mark.parametrize("module", ["prifedsync.fdp", "prifedsync.accounting", "prifedsync.report.curve"])
def test_these_rooms_never_import_torch(module):
    script = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize("clients", ["", " --clients 4 --masks"])
def test_account_never_imports_torch(clients):
    script = (
        "import sys; from prifedsync import cli\n"
        f"words = 'account --records 60 --batch 6 --local-steps 1 --rounds 3 --noise-multiplier 2 --json{clients}'\n"
        "sys.argv = ['prifedsync', *words.split()]\n"
        "try:\n    cli.main()\nexcept SystemExit as stop:\n    assert not stop.code\n"
        "heavy = {'torch', 'matplotlib', 'plotly', 'sklearn', 'scipy.stats', 'scipy.optimize'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    )
    assert done.returncode == 0, done.stderr
