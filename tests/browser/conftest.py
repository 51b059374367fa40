"""Tests in a real browser run where it was asked for: `make test-browser` installs what they need."""

import dataclasses
import json
import os
from pathlib import Path
from urllib.parse import quote

import pytest

collect_ignore_glob = [] if os.environ.get("PRIFEDSYNC_BROWSER") else ["test_*.py"]
AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
AUDIT = {  # as a file that `prifedsync report --audit` reads
    "mu": {"lower": 0.2},
    "confidence": 0.95,
    "band": [[0.01, 0.93, 0.99], [0.1, 0.78, 0.9], [0.5, 0.35, 0.5], [0.9, 0.03, 0.1]],
}
LONG = "a department of a hospital in the north-western region of the country, outpatients only, 2020 to 2024"
HOSTILE = (
    "<script>window.hacked = 1</script>",
    "</script><script>window.hacked = 2</script>",
    "<img src=x onerror=window.hacked=3>",
    '"><b onmouseover=window.hacked=4>',
    "%{x} <a href='javascript:window.hacked=5'>a</a> $a$",
)


@pytest.fixture(scope="session")
def chromium():
    from .chromium import Chromium

    made = Chromium()
    yield made
    made.close()


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    """A run with batches, coins and scores."""
    from ..report.runs import TESTED, trained

    changes = {"local__batch": 8, "local__local_steps": 3, "participation": 0.5, "rounds": 12, "compare": ["alone"]}
    folder = tmp_path_factory.mktemp("run") / "run"
    return trained(folder, TESTED, privacy__noise_multiplier=2.0, privacy__randomness="system", **changes)


@pytest.fixture(scope="session")
def report(run_folder):
    from prifedsync.report.contents import report_of

    audit = run_folder.parent / "audit.json"
    audit.write_text(json.dumps(AUDIT))
    return report_of(run_folder, audits=[audit], words=["report.name=Sepsis warning", "report.owner=Clinic North"])


@pytest.fixture(scope="session")
def page_file(report, tmp_path_factory):
    from prifedsync.report.html import write_page

    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(report, path)
    return path


@pytest.fixture(scope="session")
def hostile_file(report, tmp_path_factory):
    """Every client has a name that is a trap, and so has the run."""
    from prifedsync.report.html import write_page

    rows = report.clients.rows
    trapped = [dataclasses.replace(rows[at % len(rows)], name=name) for at, name in enumerate(HOSTILE)]
    clients = dataclasses.replace(report.clients, rows=tuple(trapped))
    trap = " ".join(HOSTILE)
    curve = dataclasses.replace(report.curve, says=tuple(f"{said} {trap}" for said in report.curve.says))
    words = {**report.words, "owner": trap}
    changed = dataclasses.replace(
        report, clients=clients, title=trap, folder=trap, warnings=(trap,), words=words, curve=curve
    )
    path = tmp_path_factory.mktemp("hostile") / "report.html"
    write_page(changed, path)
    return path


@pytest.fixture(scope="session")
def long_file(report, tmp_path_factory):
    """Clients with names that are as long as names may be."""
    from prifedsync.report.html import write_page

    names = (LONG, LONG.replace(" ", "_"))
    rows = [dataclasses.replace(row, name=name) for row, name in zip(report.clients.rows, names, strict=False)]
    clients = dataclasses.replace(report.clients, rows=(*rows, *report.clients.rows[len(rows) :]))
    first, *others = report.signatures.files
    files = [dataclasses.replace(first, name=f"models/personal/{quote(name)}.safetensors") for name in names]
    signatures = dataclasses.replace(report.signatures, files=(first, *others, *files))
    path = tmp_path_factory.mktemp("long") / "report.html"
    write_page(dataclasses.replace(report, clients=clients, signatures=signatures), path)
    return path


@pytest.fixture(scope="session")
def wide_file(report, tmp_path_factory):
    """As many columns of clients as there may be: every kind of model and of answer, a ledger, and long names."""
    from prifedsync.report.clients import Spent
    from prifedsync.report.html import write_page
    from prifedsync.report.utility import NAMES
    from prifedsync.run.deployment import KINDS

    before = report.clients.rows[0].mu
    spent = Spent("a", "mu", True, "", 2.0, before, before, before, 0.5, "none")
    scores, answers = dict.fromkeys(NAMES, 0.875), dict.fromkeys(KINDS, 1000)
    rows = [
        dataclasses.replace(row, name=LONG.replace(" ", "_"), spent=spent, scores=scores, answers=answers, uploads=100_000)
        for row in report.clients.rows
    ]
    clients = dataclasses.replace(report.clients, rows=tuple(rows), without_ledger=0)
    path = tmp_path_factory.mktemp("wide") / "report.html"
    write_page(dataclasses.replace(report, clients=clients), path)
    return path


@pytest.fixture(scope="session")
def pinned_file(report, tmp_path_factory):
    """Two pins on the scale, with as many words as they may have."""
    from prifedsync.report.html import write_page

    found = report.guarantee
    larger, together = (dataclasses.replace(found.mu, upper=upper, text=f"{upper:.3f}") for upper in (1.05, 2.5))
    group = dataclasses.replace(found.groups[0], records=4096, mu=together)
    given = {**found.given_who_took_part, "mu": larger}
    guarantee = dataclasses.replace(found, given_who_took_part=given, groups=(*found.groups, group))
    words = {**report.words, "records_of_person": 4096}
    path = tmp_path_factory.mktemp("pinned") / "report.html"
    write_page(dataclasses.replace(report, guarantee=guarantee, words=words), path)
    return path


@pytest.fixture(scope="session")
def large(tmp_path_factory):
    """The page of 1,000 clients and 1,000 rounds, and the seconds that it took."""
    import time

    from prifedsync.report.contents import report_of
    from prifedsync.report.html import write_page

    from .large import grown

    folder = grown(tmp_path_factory.mktemp("large") / "run", clients=1000, rounds=1000)
    path = folder.parent / "report.html"
    start = time.process_time()  # of this process: others may be busy
    write_page(report_of(folder), path)
    return path, time.process_time() - start


@pytest.fixture(scope="session")
def comparison_file(report, tmp_path_factory):
    from prifedsync.report.comparing import comparison_of
    from prifedsync.report.html import write_comparison

    mu = dataclasses.replace(report.guarantee.mu, upper=9.0, text="9.000")
    louder = dataclasses.replace(report.guarantee, mu=mu)
    other = dataclasses.replace(report, folder="other_run & <b>", guarantee=louder)
    path = tmp_path_factory.mktemp("comparison") / "comparison.html"
    write_comparison(comparison_of([report, other]), path)
    return path


@pytest.fixture(scope="session")
def crowded_file(report, tmp_path_factory):
    """Runs of which some are near each other, from the same side and from both."""
    from prifedsync.report.comparing import Comparison, comparison_of
    from prifedsync.report.html import write_comparison

    (row,) = comparison_of([report]).rows
    near = [(0.2, 0.47), (0.29, 0.5), (0.48, 0.47), (0.9, 0.5), (1.25, 0.5), (1.4, 0.5), (1.4, 0.5)]
    mus = [dataclasses.replace(row.mu, upper=mu, text=f"{mu:.3f}") for mu, _ in near]
    rows = [
        dataclasses.replace(row, folder=f"run-at-clinics-{at}", mu=mu, mean=mean, baselines={"non-private": 0.9})
        for at, (mu, (_, mean)) in enumerate(zip(mus, near, strict=True))
    ]
    path = tmp_path_factory.mktemp("crowded") / "comparison.html"
    write_comparison(Comparison(tuple(rows), (), "", ""), path)
    return path


@pytest.fixture
def opened(chromium):
    """Opens pages, and closes them after the test."""
    pages = []

    def open_page(path, **options):
        pages.append(chromium.open(path, **options))
        return pages[-1]

    yield open_page
    for page in pages:
        page.close()


@pytest.fixture(scope="session")
def shown(chromium, page_file):
    """The page of a report, for tests that change nothing of it."""
    return chromium.open(page_file)


@pytest.fixture(scope="session")
def axe():
    return AXE.read_text(encoding="utf-8")
