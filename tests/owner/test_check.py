"""`owner check`: each thing that can be wrong is found, with its remedy; what fits is ok; nothing is changed."""

import json
import os
import subprocess
import sys

import pytest

from prifedsync.accounting import Budget
from prifedsync.local.masks import new_identity, public_identity
from prifedsync.owner import trial
from prifedsync.owner.checkup import checkup
from prifedsync.owner.keys import make_identity
from prifedsync.owner.ledger import Ledger
from prifedsync.owner.policy import example, read

ROWS = [f"0.{i % 10},0.{(3 * i) % 10},{i % 2}" for i in range(20)]
FITTING = ("source.records=20", 'users=["root"]', "replies.seconds=1000", 'limits.models=["softmax"]')


class Home:
    """An owner's folder with a policy in it."""

    def __init__(self, folder):
        self.folder = folder
        self.records(ROWS)

    def records(self, rows, head="x,y,label"):
        path = self.folder / "records.csv"
        path.write_text(head + "\n" + "".join(f"{row}\n" for row in rows))
        path.chmod(0o600)

    def policy(self, *overrides):
        path = self.folder / "policy.toml"
        path.write_text(example((*FITTING, *overrides)))
        path.chmod(0o600)
        return read(path)

    def files(self):
        """All files and what is in them, but for those that SQLite has beside a database while it reads."""
        kept = [path for path in self.folder.iterdir() if not path.name.endswith(("-shm", "-wal"))]
        return {path.name: path.read_bytes() for path in kept}

    def found(self, *overrides):
        """The findings by what they are about; one list each."""
        found = {}
        for each in checkup(self.policy(*overrides)):
            found.setdefault(each.what, []).append(each)
        return found

    def only(self, what, *overrides):
        (finding,) = self.found(*overrides)[what]
        return finding


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(trial, "STEPS", 1)
    home = Home(tmp_path)
    policy = home.policy()
    Ledger.create(policy.path("ledger"), source=policy.source.name, budget=Budget(mu=1.0), anchor=None)
    return home


def test_what_fits_is_ok(home):
    before = home.files()
    found = home.found()
    statuses = {what: [each.status for each in several] for what, several in found.items()}
    assert statuses == {
        "records": ["ok"],
        "model softmax": ["ok"],
        "time": ["ok"],
        "rule fedavg": ["ok"],
        "masks": ["ok"],
        "users": ["ok"],
        "socket": ["ok"],
        "ledger": ["ok"],
        "budget": ["ok"],
        "anchor": ["warn"],
    }
    assert "20 records of shape (2,)" in found["records"][0].said
    assert found["model softmax"][0].said.startswith("6 parameters")
    assert "100.0 % of the budget" in found["budget"][0].said
    assert all(each.remedy for several in found.values() for each in several if each.status != "ok")
    assert home.files() == before


def test_records_that_do_not_fit_are_wrong_with_their_place(home):
    home.records([*ROWS[:19], "0.1,nothing,1"])
    finding = home.only("records")
    assert (finding.status, "line 21" in finding.said) == ("wrong", True)
    home.records(ROWS[:19])
    finding = home.only("records")
    assert (finding.status, "19 records" in finding.said) == ("wrong", True)
    assert "time" not in home.found()  # nothing was trained on them


def test_records_that_others_may_read_are_wrong(home):
    (home.folder / "records.csv").chmod(0o644)
    first, second = home.found()["records"]
    assert (first.status, first.remedy) == ("wrong", f"chmod 600 {home.folder.resolve() / 'records.csv'}")
    assert second.status == "ok"


def test_notes_about_records_are_for_the_owner(home):
    home.records([f"{500 + i},0.1,{i % 2}" for i in range(20)])
    assert [each.status for each in home.found()["records"]] == ["ok", "warn"]


def test_records_held_out_for_nothing_are_a_warning(home):
    held = ("data.test_fraction=0.25", "source.records=15")
    assert [each.status for each in home.found(*held)["records"]] == ["ok", "warn"]
    found = home.found(*held, "replies.metrics=true")
    assert [each.status for each in found["records"]] == ["ok"]
    assert found["metrics"][0].status == "warn"


def test_a_model_that_does_not_fit_the_records_is_wrong(home):
    found = home.found('limits.models=["softmax", "mnist-cnn", "nowhere.nets:net"]')
    assert found["model softmax"][0].status == "ok"
    assert "needs records of shape (1, 28, 28)" in found["model mnist-cnn"][0].said
    assert found["model nowhere.nets:net"][0].status == "wrong"


def test_a_model_of_ones_own_is_inspected(home, monkeypatch):
    (home.folder / "shop_nets.py").write_text(
        "import torch\n"
        "def good(shape, outputs): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(shape[0], outputs))\n"
        "class Mixing(torch.nn.Linear):\n"
        "    def forward(self, x): return super().forward(x - x.mean(0))\n"
        "def mixes(shape, outputs): return Mixing(shape[0], outputs)\n"
    )
    monkeypatch.syspath_prepend(home.folder)
    found = home.found('limits.models=["shop_nets:good", "shop_nets:mixes"]')
    assert found["model shop_nets:good"][0].status == "ok"
    assert found["model shop_nets:mixes"][0].status == "wrong"


def test_more_parameters_than_allowed_are_wrong(home):
    assert home.only("model softmax", "limits.parameters=6").status == "ok"
    finding = home.only("model softmax", "limits.parameters=5")
    assert (finding.status, finding.remedy) == ("wrong", "raise limits.parameters to 6, or remove the model")


def test_a_reply_that_leaves_too_early_is_a_warning(home, monkeypatch):
    clock = iter(range(0, 10**6, 2))  # every round takes 2 seconds
    monkeypatch.setattr(trial.time, "perf_counter", lambda: next(clock))
    assert home.only("time", "limits.local_steps=5", "replies.seconds=30").status == "ok"
    finding = home.only("time", "limits.local_steps=5", "replies.seconds=29")
    assert finding.status == "warn"
    assert "a round of 5 steps on all records takes about 10 s" in finding.said
    assert "at least 30" in finding.remedy


def test_the_time_of_all_records_follows_from_a_part_of_them(home, monkeypatch):
    monkeypatch.setattr(trial, "MOST_UNITS", 5)
    clock = iter(range(0, 10**6, 2))
    monkeypatch.setattr(trial.time, "perf_counter", lambda: next(clock))
    assert "takes about 8 s" in home.only("time", "limits.local_steps=1").said
    monkeypatch.setattr(trial, "STEPS", 4)  # in the same 2 seconds, so one step takes a quarter of them
    assert "takes about 2 s" in home.only("time", "limits.local_steps=1").said


def test_persons_are_tried_with_all_their_records(home, monkeypatch):
    monkeypatch.setattr(trial, "MOST_UNITS", 3)
    home.records([f"p{i % 5},0.{i % 10},{i % 2}" for i in range(20)], head="who,x,label")
    found = home.found("source.unit=person", "data.person=who", "source.records=5")
    assert "5 persons" in found["records"][0].said
    assert found["model softmax"][0].status == "ok"


def test_a_rule_that_sends_nothing_or_does_not_exist_is_wrong(home):
    found = home.found('limits.rules=["fedavg", "alone", "nope", "nowhere:Rule"]')
    assert found["rule fedavg"][0].status == "ok"
    assert [found[f"rule {name}"][0].status for name in ("alone", "nope", "nowhere:Rule")] == ["wrong"] * 3


def test_keys(home):
    identity = "masks.identity=own.key"
    assert home.only("masks", identity).status == "wrong"  # there is no such file
    own = make_identity(home.policy(identity))
    assert home.only("masks", identity).status == "warn"  # nobody to share a sum with
    assert home.only("masks", identity, "masks.required=true").status == "wrong"
    assert home.only("masks", identity, f'masks.peers.b="{own.hex()}"').status == "wrong"
    other = public_identity(new_identity())
    assert home.only("masks", identity, f'masks.peers.b="{other.hex()}"', "masks.required=true").status == "ok"


def test_users(home):
    assert home.only("users", "users=[]").status == "warn"
    finding = home.only("users", 'users=["root", "nobody-of-this-name"]')
    assert (finding.status, "nobody-of-this-name" in finding.said) == ("wrong", True)


def test_a_socket_must_have_a_short_name_in_a_folder_that_exists(home):
    at_most = 107 - len(os.fsencode(home.folder.resolve())) - 1
    assert home.only("socket", f"files.socket={'s' * at_most}").status == "ok"
    assert home.only("socket", f"files.socket={'s' * (at_most + 1)}").status == "wrong"
    assert home.only("socket", "files.socket=nowhere/s").status == "wrong"


def test_ledgers(home):
    assert home.only("ledger", "source.name=another").status == "wrong"
    assert home.only("ledger", "files.ledger=none.db").status == "wrong"
    path = home.folder / "ledger.db"
    content = bytearray(path.read_bytes())
    content[100:] = bytes(len(content) - 100)
    path.write_bytes(content)
    found = home.found()
    assert found["ledger"][0].status == "wrong"
    assert "budget" not in found


def test_an_empty_budget_is_a_warning(home):
    path = home.folder / "spent.db"
    Ledger.create(path, source=home.policy().source.name, budget=Budget(mu=1.0), anchor=None, spent=1.0)
    assert home.only("budget", "files.ledger=spent.db").status == "warn"


def test_an_anchor_on_the_same_disk_is_a_warning(home):
    assert home.only("anchor", "files.anchor=nowhere/anchor").status == "wrong"
    inside = home.only("anchor", "files.anchor=anchor")
    assert (inside.status, "on the disk of the ledger" in inside.said) == ("warn", True)


def test_a_delta_for_whole_records_is_a_warning(home):
    assert "delta" not in home.found("budget.epsilon=1.0", "budget.delta=0.04")
    assert home.only("delta", "budget.epsilon=1.0", "budget.delta=0.05").status == "warn"


def test_the_command_says_it_all_and_its_exit_status_says_whether_something_is_wrong(home):
    home.policy()

    def call(*words):
        return subprocess.run(
            [sys.executable, "-m", "prifedsync.cli", "owner", "check", "policy.toml", *words],
            capture_output=True, text=True, cwd=home.folder, check=False, timeout=120,
        )  # fmt: skip

    done = call("--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["passed"] is True
    assert {each["status"] for each in said["findings"]} == {"ok", "warn"}
    assert done.stderr == ""
    (home.folder / "ledger.db").unlink()
    done = call()
    assert done.returncode == 1
    assert "ledger: run `prifedsync ledger new POLICY`" in done.stdout
    assert done.stdout.splitlines()[-1] == "the daemon would not serve with this policy"
