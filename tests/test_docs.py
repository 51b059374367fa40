"""What the documents show is what happens: code runs, links lead somewhere, tables name real things."""

import ast
import re
import shlex
import subprocess
import sys
from functools import cache
from math import sqrt
from pathlib import Path

import pytest

import prifedsync
from prifedsync.accounting import NoisySteps, PrivacyPlan
from prifedsync.accounting.statement import up
from prifedsync.config import load
from prifedsync.run.prepare import prepare

from .test_rooms import ORDER

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "prifedsync"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def blocks(page):
    """Language and body of each piece of code on a page."""
    return re.findall(r"```(\w+)\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)


BLOCKS = blocks("README.md")
# Page → a word that is in its code. tests/rules/test_own_rule.py runs docs/rules.md, test_tables_page.py docs/tables.md,
# tests/owner/test_page.py docs/owner.md.
RUN = {
    "README.md": "guarantee",
    "docs/training.md": "audit_step",
    "docs/pitfalls.md": "fixed_size",
}


def test_every_page_with_python_is_run():
    found = {str(page.relative_to(ROOT)) for page in PAGES if "```python" in page.read_text(encoding="utf-8")}
    assert found == {*RUN, "docs/owner.md", "docs/rules.md", "docs/tables.md"}


@pytest.mark.parametrize("page", RUN)
def test_python_blocks_run(page, tmp_path):
    code = "\n".join(body for language, body in blocks(page) if language == "python")
    assert RUN[page] in code
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path, timeout=120
    )
    assert done.returncode == 0, done.stderr
    for shown in re.findall(r"#→ (.+)", code):
        assert shown in done.stdout


def test_shell_blocks_run(tmp_path):
    lines = "\n".join(body for language, body in BLOCKS if language == "sh").replace("\\\n", " ").splitlines()
    commands = [shlex.split(line, comments=True) for line in lines if line.startswith("prifedsync")]
    assert len(commands) >= 3
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", "prifedsync.cli", *command[1:]],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            timeout=120,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
    makes = {line.split()[1].split("#")[0] for line in lines if line.startswith("make ")}
    assert {"demo", "test"} <= makes
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert makes <= set(targets)


@pytest.mark.parametrize("page", ["README.md", "docs/rules.md"])
def test_configs_are_read(page, tmp_path):
    (body,) = (body for language, body in blocks(page) if language == "toml")
    (tmp_path / "shown.toml").write_text(body, encoding="utf-8")
    assert load(tmp_path / "shown.toml", ["privacy.target.mu=1"]).privacy.target.mu == 1


def test_what_rules_cost_is_what_the_accounting_says():
    page = (ROOT / "docs/rules.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:\d?)K = (\d+) \|.*\| ([\d.]+) \| ([\d.]+) \|$", page, flags=re.MULTILINE)
    assert [row[0] for row in rows] == ["38", "76", "114"]
    for steps, epsilon, noise in rows:
        costs = []
        for multiplier in (2.0, float(noise)):
            mechanism = NoisySteps(noise_multiplier=multiplier, records=600, batch=16, local_steps=int(steps))
            costs.append(PrivacyPlan(mechanism=mechanism, rounds=93).guarantee().epsilon(1e-5).upper)
        assert up(costs[0]) == epsilon
        assert 1.997 < costs[1] <= 2


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_tests_and_sources_named_in_documents_exist(page):
    for name in re.findall(r"`((?:tests|src|docs|benchmarks)/[\w/.-]+\.\w+)`", page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists(), name


# ---------------------------------------------------------------------- README.md

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_shows_what_the_demo_scores():
    """The demo is seeded, so these are the numbers of every run of it."""
    shown = dict(re.findall(r"^\| (\S+): .*? \| ([\d.]+) % \|", README, flags=re.MULTILINE))
    record = prifedsync.train().record
    assert shown.keys() == {"released", "alone", "non-private"}
    for name, percent in shown.items():
        assert percent == f"{100 * record.scores[name].pooled.mean:.1f}"
    (known,) = re.findall(r"A client alone has (\d+) % on the digits it knows", README)
    assert known == f"{100 * record.scores['alone'].own.mean:.0f}"
    (epsilon,) = re.findall(r"noise chosen for μ = 1\s\(ε ≤ ([\d.]+) at δ = 10⁻⁵\)", README)
    assert epsilon == up(record.guarantee["epsilon"]["upper"])


def test_the_picture_is_of_the_plan_beside_it():
    ((epsilon, picture),) = re.findall(r"!\[[^\]]*ε ≤ ([\d.]+) at δ = 10⁻⁵\]\((.*?)\)", README)
    steps = NoisySteps(noise_multiplier=4.0, records=600, batch=16, local_steps=38)
    plan = PrivacyPlan(mechanism=steps, rounds=93, participation=0.5)
    assert epsilon == up(plan.guarantee().epsilon(1e-5).upper)
    drawn = "curve --records 600 --batch 16 --noise-multiplier 4 --local-steps 38 --rounds 93 --participation 0.5 --out"
    assert drawn in README
    content = (ROOT / picture).read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) < 200 * 2**10


def test_the_readme_is_short():
    assert len(README.splitlines()) < 170


# ---------------------------------------------------------------------- docs/threat-model.md

THREATS = (ROOT / "docs/threat-model.md").read_text(encoding="utf-8")


def views(before):
    """Rows of the table of views that follows this text: how many noises protect, μ, ε."""
    table = THREATS.split(before)[1].split("\n\n")[1]
    return re.findall(r"^\| .*? \| .*?\(h = (\d+)\) \| ([\d.]+) \| ([\d.]+) \|$", table, flags=re.MULTILINE)


def test_the_views_of_the_default_are_what_the_accounting_says():
    """With the noise of the plan times √h, where all clients are alike."""
    plan = prepare(load("digits")).jobs[0].plan
    rows = views("The default (`prifedsync train`:")
    assert [int(honest) for honest, _, _ in rows] == [10, 9, 5, 1, 1]
    for honest, mu, epsilon in rows:
        seen = plan.changed(noise_multiplier=plan.mechanism.noise_multiplier * sqrt(int(honest))).guarantee()
        assert (mu, epsilon) == (up(seen.mu().upper), up(seen.epsilon(1e-5).upper))
    assert float(rows[0][1]) <= 0.3162


def test_the_views_of_a_masked_run_are_what_the_accounting_says():
    rows = views("A masked run: 100 clients with full batches, 30 rounds and 3 spare attempts")
    assert [int(honest) for honest, _, _ in rows] == [97, 97, 87, 47, 2, 1]
    (noise,) = map(float, re.findall(r"The noise multiplier is ([\d.]+), which", THREATS))
    assert noise - 0.01 < 2 * sqrt(30 + 3) / (0.1 * sqrt(100 - 3 - 50)) <= noise
    for honest, mu, epsilon in rows:
        steps = NoisySteps(noise_multiplier=noise * sqrt(int(honest)), records=600, batch="full", local_steps=1)
        seen = PrivacyPlan(mechanism=steps, rounds=30 + 3).guarantee()
        assert (mu, epsilon) == (up(seen.mu().upper), up(seen.epsilon(1e-5).upper))


# ---------------------------------------------------------------------- names of things in the code

OLD = {"CHANGELOG.md"}  # it also speaks of what is gone
NAMED = [page for page in PAGES if page.name not in OLD and "results" not in page.parts]


@pytest.mark.parametrize("page", NAMED, ids=lambda p: p.name)
def test_files_of_the_package_named_in_documents_exist(page):
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir()}
    for name in re.findall(r"`([\w/-]+\.(?:py|toml))`", page.read_text(encoding="utf-8")):
        if name.split("/")[0] in rooms:
            assert (SOURCE / name).exists(), name


@cache
def members():
    """Class → the names in its body, those that its methods set on self, and its bases."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                names = found.setdefault(node.name, (set(), set()))
                names[1].update(ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases)
                for part in ast.walk(node):
                    if isinstance(part, (ast.FunctionDef, ast.ClassDef)):
                        names[0].add(part.name)
                    elif isinstance(part, ast.AnnAssign | ast.Assign):
                        targets = [part.target] if isinstance(part, ast.AnnAssign) else part.targets
                        names[0].update(ast.unparse(target).removeprefix("self.") for target in targets)
    return found


def has(kind, name):
    own, bases = members()[kind]
    return name in own or any(base in members() and has(base, name) for base in bases)


def unknown(text):
    """What a text calls Class.member, of a class of the package, and the class does not have."""
    pairs = set(re.findall(r"`([A-Z]\w+)\.(\w+)", text))
    return {f"{kind}.{name}" for kind, name in pairs if kind in members() and not has(kind, name)}


@pytest.mark.parametrize("page", NAMED, ids=lambda p: p.name)
def test_members_named_in_documents_exist(page):
    assert not unknown(page.read_text(encoding="utf-8"))


def test_a_member_that_is_gone_is_seen():
    assert unknown("`Cohort.train`, `Vectorised.place`, `Uploads.rows`, `Aggregator.start`, `Nobody.knows`") == set()
    assert unknown("`Cohort.draws_of`, `Uploads.sealed(x)`, `Bound.upper`") == {"Cohort.draws_of", "Uploads.sealed"}


# ---------------------------------------------------------------------- docs/design.md

DESIGN = (ROOT / "docs/design.md").read_text(encoding="utf-8")


def test_rooms_stand_in_the_order_that_is_tested():
    table = DESIGN.split("| room | what it holds |")[1].split("\n\n")[0]
    rows = [re.findall(r"`(\w+)(?:/|\.py)`", row.split("|")[1]) for row in table.splitlines()[2:]]
    there = {path.stem for path in SOURCE.iterdir()}
    assert rows == [[room for room in line if room in there] for line in ORDER]


def test_every_file_of_the_rooms_that_are_listed_is_listed():
    listed = DESIGN.split("```\nfdp/\n")[1].split("```")[0]
    parts = re.split(r"^(\w+)/$", f"fdp/\n{listed}", flags=re.MULTILINE)[1:]
    for room, text in zip(parts[::2], parts[1::2], strict=True):
        there = {path.name for path in (SOURCE / room).rglob("*.py")} - {"__init__.py"}
        assert set(re.findall(r"\w+\.py", text)) == there, room


def test_one_records_way(tmp_path, monkeypatch):
    """The calls of docs/design.md are made by a real run, and for the first time in that order; each room comes once."""
    rows = re.findall(r"^\| (?:`(\w+)`)? ?\| `([\w/]+\.py)` \| `([\w.]+)` \| .* \|$", DESIGN, flags=re.MULTILINE)
    rooms = [room for room, _, _ in rows if room]
    assert len(rows) > 15
    assert len(set(rooms)) == len(rooms) > 5
    ages = {"north": range(20, 60), "south": range(30, 70)}
    (tmp_path / "tables").mkdir()
    for name, each in ages.items():
        table = "age,ill\n" + "\n".join(f"{age},{('no', 'yes')[age % 2]}" for age in each)
        (tmp_path / "tables" / f"{name}.csv").write_text(table, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    data = {"source": "csv", "path": "tables", "label": "ill", "task": "binary", "label_values": ["no", "yes"],
            "ranges": {"age": [0, 100]}}  # fmt: skip
    config = {"rounds": 1, "data": data, "local": {"batch": 8}, "privacy": {"noise_multiplier": 2.0}}
    calls = first_calls(lambda: prifedsync.train(config, out="run"))
    order = [calls.index((file, call)) for _, file, call in rows]
    assert order == sorted(order)
    here = ""
    for room, file, _ in rows:
        here = room or here
        assert file.split("/")[0].removesuffix(".py") == here


def first_calls(work):
    """(file, function) of every function of the package that is called, in the order of first calls."""
    calls = {}
    inside = f"{Path(prifedsync.__file__).parent}/"

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(inside):
            calls.setdefault((code.co_filename.removeprefix(inside), code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return list(calls)
