"""docs/tables.md from its first line to its last: its files are written, its commands and its Python run, in order."""

import csv
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

from prifedsync.joining import NOT_COMPARED

PAGE = Path(__file__).parents[1] / "docs" / "tables.md"
BLOCK = re.compile(r"```(\w+)\n(.*?)```", flags=re.DOTALL)
NAMED = re.compile(r"\s(?:This|It) is\s`([\w.]+)`:\s*$")  # the words before a block that is a file


def run(folder, *words):
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder, timeout=120)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done


def called(folder, line):
    program, *words = shlex.split(line)
    assert program in ("prifedsync", "python"), line
    return run(folder, sys.executable, *(["-m", "prifedsync.cli"] if program == "prifedsync" else []), *words)


def walked(folder):
    """What each command of the page printed, and what its Python did, in order."""
    text = PAGE.read_text(encoding="utf-8")
    printed = {}
    for block in BLOCK.finditer(text):
        language, body = block.groups()
        name = NAMED.search(text[: block.start()])
        if name:
            (folder / name[1]).write_text(body, encoding="utf-8")
        elif language == "sh":
            for line in body.splitlines():
                printed[line] = called(folder, line)
        elif language == "python":
            printed["python"] = run(folder, sys.executable, "-c", body)
            for shown in re.findall(r"#→ (.+)", body):
                assert shown in printed["python"].stdout
        else:
            assert language == "text"
            assert printed["prifedsync predict runs/hospitals new.csv"].stdout.startswith(body)
    return printed


def test_the_page_leads_from_tables_to_answers_for_new_rows(tmp_path):
    printed = walked(tmp_path)
    answers = list(csv.DictReader(printed["prifedsync predict runs/hospitals new.csv"].stdout.splitlines()))
    assert [line["prediction"] for line in answers][:2] == ["yes", "no"]
    assert len(answers) == 3
    assert (tmp_path / "answers.csv").read_text(encoding="utf-8").splitlines()[0] == "prediction,p_no,p_yes"
    odd = list(csv.DictReader(printed["prifedsync predict runs/hospitals odd.csv"].stdout.splitlines()))
    assert [bool(line["refused"]) for line in odd] == [False, True, True, False]
    assert [bool(line["prediction"]) for line in odd] == [True, False, False, True]
    scored = json.loads(next(done.stdout for line, done in printed.items() if "--json" in line))
    assert scored["together"]["records"] == 200
    auc = scored["together"]["scores"]["auc"]
    assert auc["interval"][0] < auc["value"] < auc["interval"][1]
    assert auc["value"] > 0.8
    assert "does not cover" in printed["prifedsync evaluate runs/hospitals --data later"].stdout


def test_the_python_of_the_page_is_ten_lines():
    last = [body for language, body in BLOCK.findall(PAGE.read_text(encoding="utf-8")) if language == "python"][-1]
    assert len([line for line in last.splitlines() if line.strip()]) <= 10


def test_messages_that_the_page_explains_are_in_the_source():
    source = "".join(path.read_text(encoding="utf-8") for path in (PAGE.parents[1] / "src").rglob("*.py"))
    explained = re.findall(r"^\| `(.+?)` \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(explained) >= 6
    for message in explained:
        part = re.split(r" = '\w+' |data\.categories\.\w+", message)[-1] or message.split(" data.")[0]
        assert part.strip() in source, part


def test_the_page_says_what_scores_are_and_what_comparing_takes():
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert "`p_LABEL` are scores of the model: noise and clipping move them, and they are no calibrated risks." in text
    takes = "takes about as long as the run for each baseline"
    assert takes in text
    assert takes in NOT_COMPARED
