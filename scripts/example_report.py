"""Makes docs/example-report.html, and with a browser its picture docs/report.png: `make example`.

The run is that of `prifedsync train` without arguments: the seeded default on scikit-learn's digits, so that anybody can
make it again. The owner's words are made up, and say so. A test compares the page's numbers with those of a new run.
"""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import prifedsync
from prifedsync.report.contents import Report, report_of
from prifedsync.report.html import write_page

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "example-report.html"
PICTURE = ROOT / "docs" / "report.png"
WORDS = (
    "report.name=Example: handwritten digits",
    "report.purpose=shows what a report looks like",
    "report.owner=nobody (an example)",
    "report.date=2026-01-01",
    "report.population=writers of digits, from a public data set",
    "report.chosen_by=the authors of PriFedSync",
    "report.reason=the default of the library",
)


def made(folder: Path) -> Report:
    """The report of a new run of the default, in this folder."""
    prifedsync.train(out=folder, progress=False)
    found = report_of(folder, words=WORDS)
    assert found.reproducing is not None
    anywhere = dataclasses.replace(found.reproducing, host="any")  # the example is of no particular machine
    return dataclasses.replace(found, reproducing=anywhere)


def write() -> None:
    """Write the page."""
    with tempfile.TemporaryDirectory() as place:
        write_page(made(Path(place) / "digits"), PAGE)


def photograph() -> None:
    """Write a picture of the top of the page, where there is a browser."""
    browser = shutil.which("chromium")
    if browser is None:
        print("no picture was made: chromium is not installed", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
                "--disable-component-update", "--disable-sync", "--no-first-run", "--hide-scrollbars",
                f"--user-data-dir={profile}", "--window-size=1200,1180", f"--screenshot={PICTURE}", PAGE.as_uri(),
            ],
            check=True,
            stderr=subprocess.DEVNULL,  # it misses a desktop
            timeout=120,
        )  # fmt: skip


if __name__ == "__main__":
    write()
    photograph()
