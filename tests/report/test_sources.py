"""What a report reads: what is malformed is refused in one line, and what is optional is found."""

import json

import pytest

from prifedsync.config import load
from prifedsync.record import SCHEMA_VERSION
from prifedsync.report.contents import report_of
from prifedsync.run import prepare
from prifedsync.values import BadValue

from ..test_record import old_version
from .runs import rewritten


def refused(folder, **given):
    with pytest.raises(BadValue) as error:
        report_of(folder, **given)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"schema_version": 5}', b"null", b"[" * 9000])
def test_a_record_that_cannot_be_read(plain, copied, content):
    folder = copied(plain)
    (folder / "record.json").write_bytes(content)
    assert "record.json cannot be read" in refused(folder) or "schema_version" in refused(folder)


def test_a_truncated_record(plain, copied):
    folder = copied(plain)
    whole = (folder / "record.json").read_bytes()
    for length in range(1, len(whole) - 2, len(whole) // 20):
        (folder / "record.json").write_bytes(whole[:length])
        assert "cannot be read" in refused(folder)


def test_a_newer_record(plain, copied):
    folder = rewritten(copied(plain), lambda data: data.update(schema_version=SCHEMA_VERSION + 1))
    assert f"1 to {SCHEMA_VERSION}" in refused(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["config"].pop("privacy"),
        lambda data: data["guarantee"].pop("mu"),
        lambda data: data.update(guarantee=[]),
        lambda data: data["shared"]["plan"][0].pop("rounds"),
        lambda data: data["shared"]["plan"][0].update(mechanism="Nothing"),
        lambda data: data["shared"]["plan"][0].update(rounds=-1),
        lambda data: data["clients"][0].update(noisy_queries="many"),
        lambda data: data["clients"].clear(),
        lambda data: data["guarantee"].update(curve=[[0.5]]),
        lambda data: data.update(config="words"),
    ],
)
def test_a_record_with_a_wrong_part(plain, copied, change):
    assert refused(rewritten(copied(plain), change))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("name", ["mu", "epsilon"])
def test_what_is_no_number_is_above_no_threshold_and_so_refused(said, copied, name, number):
    folder = rewritten(copied(said), lambda data: data["guarantee"][name].update(upper=123456.5))
    path = folder / "record.json"
    path.write_text(path.read_text().replace("123456.5", number))
    assert "is not a finite number" in refused(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["clients"][0].update(name="\ud800"),  # half of a letter, which no file can hold
        lambda data: data["guarantee"]["mu"].update(upper="0.5"),
        lambda data: data["guarantee"]["mu"].update(upper=10**400),
    ],
)
def test_what_cannot_be_written_is_refused(said, copied, change):
    assert "record.json cannot be read" in refused(rewritten(copied(said), change))


def test_an_advantage_beyond_one_says_that_an_attacker_may_always_be_right(said, copied):
    found = report_of(rewritten(copied(said), lambda data: data["guarantee"]["advantage"].update(upper=1e300))).guarantee
    assert found.correct.text == found.known_correct.text == "100%"
    assert any("right at most 100% of the time" in each for each in found.sentences)


def test_randomness_that_nobody_knows_is_not_secret(said, copied):
    report = report_of(rewritten(copied(said), lambda data: data["config"]["privacy"].update(randomness="")))
    assert report.run.simulation
    assert report.verdict.decision == "do not release"


def test_a_log_that_is_damaged(plain, copied):
    folder = copied(plain)
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text("".join([lines[0], "{\n", *lines[2:]]))
    assert "rounds.jsonl cannot be read: line 2 is damaged" in refused(folder)
    (folder / "rounds.jsonl").write_text("".join(lines)[:-3])
    assert "ends in the middle of a line" in refused(folder)
    for score in ("NaN", "1e999"):
        last = f'{{"round": 4, "participants": 3, "released": {{"mean": {score}, "worst": 0.1}}}}\n'
        (folder / "rounds.jsonl").write_text("".join([*lines[:3], last]))
        assert "rounds.jsonl cannot be read: line 4 is damaged" in refused(folder)
    (folder / "rounds.jsonl").unlink()
    assert report_of(folder).rounds is None


@pytest.mark.parametrize("text", ["source = 5", "[source]\nname = ['a']"])
def test_a_policy_that_is_malformed_is_blamed_itself(plain, tmp_path, text):
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(BadValue, match=r"policy.toml has no source with a name"):
        report_of(plain, policies=[path])


def test_a_folder_without_a_run(tmp_path):
    assert "is not a run folder" in refused(tmp_path)


def test_a_config_that_is_malformed(plain, copied):
    folder = copied(plain)
    (folder / "record.json").unlink()
    (folder / "config.toml").write_text("rounds = \n")
    assert refused(folder)


@pytest.mark.parametrize("words", [["rounds=3"], ["report.nothing=1"], ["report.release_mu=-1"], ["report"]])
def test_only_the_owners_words_may_be_set(plain, words):
    assert refused(plain, words=words)


@pytest.mark.parametrize("name", ["policies", "receipts", "audits"])
@pytest.mark.parametrize("content", [None, "{", "[", '"text"'])
def test_what_is_given_besides_must_be_readable(plain, tmp_path, name, content):
    path = tmp_path / "given"
    if content is not None:
        path.write_text(content)
    assert "given cannot be read" in refused(plain, **{name: [path]})


@pytest.mark.parametrize("number", ["NaN", "Infinity"])
def test_a_ledger_of_no_numbers_is_refused(said, tmp_path, number):
    path = tmp_path / "given.json"
    path.write_text(f'{{"source": "a", "budget": 1, "spent": {number}}}')
    assert "given.json cannot be read" in refused(said, receipts=[path])


def test_what_is_no_receipt_is_refused(plain, tmp_path):
    path = tmp_path / "given.json"
    path.write_text("{}")
    assert "neither a receipt nor the export of a ledger" in refused(plain, receipts=[path])


@pytest.mark.parametrize("version", [1, 2])
def test_records_of_earlier_versions(plain, copied, version):
    """Old records had one metric and other names. What they did not have is not said."""

    folder = copied(plain)
    today = json.loads((folder / "record.json").read_bytes())
    old = old_version(version) | {"config": today["config"], "guarantee": today["guarantee"]}
    plan = today["shared"]["plan"][0]
    for client in old["clients"]:
        client["plan"] = {name: value for name, value in plan.items() if name not in ("unit", "attempts")}
        client["noisy_queries"] = client["rounds_taken"] = 4
        client["planned"] = client["taken"] = today["shared"]["planned"][0]
    for name in ("unit", "attempts_used", "uploads_lost", "settings", "deployment", "note"):
        old.pop(name, None)
    old["config"].pop("report")
    old["config"]["privacy"].pop("masks")
    (folder / "record.json").write_text(json.dumps(old))
    report = report_of(folder)
    assert report.guarantee.mu.text == report_of(plain).guarantee.mu.text
    assert report.words["tuning"] == "not said"
    assert [row.name for row in report.clients.rows] == ["a", "b"]


def test_words_change_no_run():
    """A run may be resumed under other words; anything else that is changed is refused."""
    bare = prepare(load("digits"))
    said = prepare(load("digits", ["report.name=Digits", "report.release_mu=2"]))
    assert said.config.report.name == "Digits"
    assert said._fixed_fields() == bare._fixed_fields()
    assert prepare(load("digits", ["rounds=3"]))._fixed_fields() != bare._fixed_fields()
