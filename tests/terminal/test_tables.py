"""Every table: each number in its own column, and on the safe side of its bracket."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from prifedsync.accounting import NoisySteps, PrivacyPlan, Target
from prifedsync.accounting.planning import ClientAnswer
from prifedsync.fdp import Neighbours
from prifedsync.record import KEPT, ClientRecord
from prifedsync.scores import Interval, Measured
from prifedsync.terminal import (
    print_answers,
    print_audit,
    print_bench,
    print_partition,
    print_record,
    print_rules,
    print_statement,
    print_tables,
    print_warnings,
)

from .printed import BEWARE, HONEST, record, rows_of, statement, words


@pytest.fixture
def printed(capsys, monkeypatch):
    """What a function prints on standard output, in a window of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def call(function, *given, **named):
        function(*given, **named)
        seen = capsys.readouterr()
        assert seen.err == ""
        return seen.out

    return call


def fits(text, width=80):
    """The lines of a table; sentences are whole lines where there is no terminal."""
    table = text.partition("\n\n")[0]
    return all(len(line) <= width for line in table.splitlines())


# ---------------------------------------------------------------------- train


def test_the_headline_is_the_upper_end(printed):
    text = words(printed(print_record, record(), None))
    assert "ε ≤ 2.000 at δ = 1e-05, μ ≤ 0.5000 for α" in text
    assert "(ε ≤ 4.000 if others choose who takes part)" in text
    assert "adjacency: one record replaced" in text
    assert "correctly at most 62.5% of the time" in text  # an advantage of at most 0.25
    assert "true positive rate is at most 12.5%" in text
    assert "simulation" not in text


def test_a_number_between_two_decimals_is_rounded_up(printed):
    between = record()
    between.guarantee["epsilon"]["upper"] = 2.00001
    between.guarantee["mu"]["upper"] = 0.50001
    between.guarantee["worst_case_participation"]["epsilon"]["upper"] = 4.00001
    text = words(printed(print_record, between, None))
    assert "ε ≤ 2.001 at" in text
    assert "μ ≤ 0.5001 for" in text
    assert "(ε ≤ 4.001 if others choose" in text


def test_attempts_and_lost_uploads_have_a_line_where_there_are_any(printed):
    assert "never arrived" not in printed(print_record, record(), None)
    assert "1 upload never arrived. What" in words(printed(print_record, record(uploads_lost=1), None))
    text = words(printed(print_record, record(uploads_lost=3, attempts_used=2), None))
    assert "3 uploads never arrived, and the run used 2 spare attempts. What was spent on them is counted." in text


def test_no_bound_is_infinite(printed):
    unbounded = record()
    unbounded.guarantee["epsilon"]["upper"] = None
    assert "ε ≤ ∞ at" in printed(print_record, unbounded, None)


def test_means_and_worst_scores_stand_in_their_columns(printed):
    text = printed(print_record, record(), None)
    rows = rows_of(text)
    assert rows["personal"] == ["private", "0.910", "0.900", "0.810", "0.710"]
    assert rows["released"] == ["private", "0.920", "0.905", "0.820", "0.720"]
    assert rows["alone"] == ["not private", "0.930", "–", "0.830", "0.730"]
    (below,) = [line.split() for line in text.splitlines() if "–0.9" in line]
    assert below == ["0.881–0.951", "0.871–0.941", "0.691–0.741"]
    assert words(text).startswith(
        "accuracy on the clients' own test records, and on all records together mean over mean over"
    )
    assert "each of 3 clients counts once in the mean over clients, each of 90 test records once in the mean over" in text
    assert "Ranges are 95% bootstrap intervals over test records; they do not show how runs vary." in text
    assert fits(text)


def scored(name, records, **scores):
    given = {model.replace("_", "-"): {"accuracy": score} for model, score in scores.items()}
    planned = {"epsilon": {"lower": 1.0, "upper": 2.00001}}
    return ClientRecord(name, records, None, 1, 1, 1, planned, None, 40, given, Interval(0.1, 0.3))


def test_joining_is_a_table_and_a_sentence_for_each_client(printed):
    known = Measured(0.9, Interval(0.85, 0.95))
    north = scored("north", 1412, released=known, alone_private=Measured(0.7, Interval(0.6, 0.8)), personal=Measured(0.5))
    south = scored("south", 5, released=Measured(None, None, "one class only"), alone_private=known)
    text = printed(print_record, record(clients=(north, south)), None)
    rows = rows_of(text)
    assert "Is joining worth it? (accuracy on each client's own test records)" in words(text)
    assert rows["client"] == ["records", "ε ≤", "alone, same ε", "released", "personal"]
    assert rows["north"] == ["1,412", "2.001", "0.700", "0.900", "0.500"]  # ε on its safe side
    assert rows["south"] == ["5", "2.001", "0.900", "–", "–"]
    assert "north (1,412 records) gains: accuracy 0.900 with the others against 0.700 alone at the same privacy" in text
    assert "accuracy of released: undefined at south (one class only), and left out of the means." in text
    assert "--set" not in text


def test_where_nothing_was_compared_one_line_says_how(printed):
    clients = tuple(scored(f"c{i}", i, released=Measured(0.9 - i / 1000)) for i in range(10_000))
    text = printed(print_record, record(clients=clients), None)
    assert "4 of 10,000 clients: smallest, median, largest and worst" not in text  # the largest is the worst here
    assert "3 of 10,000 clients: smallest, median, largest and worst" in words(text)
    assert text.count("--set compare=alone,alone-private") == 1
    assert len(text.splitlines()) < 40
    undefined = tuple(scored(f"c{i}", i, released=Measured(None, None, "one class only")) for i in range(10_000))
    text = printed(print_record, record(clients=undefined), None)
    assert "undefined at c0, c1, c2, c3, c4 and 9,995 more clients (one class only)" in text


def test_models_without_a_guarantee_are_not_called_private(printed):
    bare = record(guarantee=None, sentence="no guarantee: trained without noise")
    text = printed(print_record, bare, None)
    assert rows_of(text)["personal"][0] == "not private"
    assert rows_of(text)["released"][0] == "not private"
    assert "no guarantee: trained without noise" in text
    assert "ε ≤" not in text
    kept = record(personal_models=f"not private if published: {KEPT}")
    assert rows_of(printed(print_record, kept, None))["personal"][0] == "kept"


def test_every_warning_of_a_run_is_printed_as_it_is(printed):
    text = printed(print_record, record(), Path("a folder"))
    assert f"warning: {BEWARE}\n" in text
    assert "warning: a second warning\n" in text
    assert text.endswith("run folder: a folder\n")
    assert "warning" not in printed(print_record, record(warnings=()), None)


def test_a_report_that_is_there_is_named(tmp_path, printed):
    (tmp_path / "report.html").touch()
    lines = printed(print_record, record(), tmp_path).splitlines()
    assert lines[-2:] == [f"run folder: {tmp_path}", f"report: {tmp_path / 'report.html'}"]


def test_a_simulation_is_called_one(printed):
    seeded = record(config={"privacy": {"randomness": "seeded"}})
    assert "one record replaced (a simulation)" in words(printed(print_record, seeded, None))


# ---------------------------------------------------------------------- account


def test_honest_and_worst_case_participation_stand_in_their_columns(printed):
    text = printed(print_statement, statement())
    rows = rows_of(text)
    assert rows["client's own coin"] == ["others choose"]  # the heading of the first column is empty
    assert rows["ε at δ = 1e-05"] == ["≤ 2.0000", "≤ 4.0000"]
    assert rows["≥ 1.0000"] == ["≥ 3.0000"]
    assert rows["μ for α in 1e-5 … 1−1e-5"] == ["≤ 0.5000", "≤ 0.7500"]
    assert rows["advantage of the best attack"] == ["≤ 25.0%", "≤ 62.5%"]
    assert rows["true positives at 0.1% false positives"] == ["≤ 6.3%", "≤ 18.8%"]
    assert rows["true positives at 1.0% false positives"] == ["≤ 12.5%", "≤ 25.0%"]
    assert fits(text)


def test_what_stands_below_a_statement(printed):
    text = words(printed(print_statement, statement()))
    assert "correctly at most 62.5% of the time" in text
    assert "The paper prints μ = 0.50 (strong: 5.50): an asymptotic value, not a guarantee." in text
    assert f"warning: {BEWARE}" in text
    plain = words(printed(print_statement, statement(warnings=(), mu_weak=None, mu_strong=None)))
    assert "warning" not in plain
    assert "paper" not in plain


def test_a_client_that_always_takes_part_has_one_column(printed):
    text = printed(print_statement, statement(worst_case=HONEST))
    rows = rows_of(text)
    assert "takes part in every round" in rows
    assert rows["ε at δ = 1e-05"] == ["≤ 2.0000"]
    assert "others choose" not in text
    added = words(printed(print_statement, statement(neighbours=Neighbours.ADD_REMOVE)))
    assert "whether the record is in the data" in added


def test_the_lower_end_is_rounded_down(printed):
    odd = replace(HONEST, epsilon=HONEST.epsilon._replace(lower=1.23456789, upper=2.00000001))
    rows = rows_of(printed(print_statement, statement(honest=odd)))
    assert rows["≥ 1.2345"] == ["≥ 3.0000"]
    assert rows["ε at δ = 1e-05"] == ["≤ 2.0001", "≤ 4.0000"]


def test_warnings_alone_go_to_the_error_stream(capsys):
    print_warnings(["look out"])
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err == "warning: look out\n"


# ---------------------------------------------------------------------- plan


def answers():
    steps = NoisySteps(noise_multiplier=1.234567, records=600, batch=16, local_steps=2)
    met = ClientAnswer("north", 600, PrivacyPlan(mechanism=steps, rounds=30), HONEST, "")
    return [met, ClientAnswer("[7]", 30, None, None, "client [7] cannot take part: it is small")]


def test_each_client_has_its_row(printed):
    text = printed(print_answers, answers(), Target("epsilon", 2.0), "noise", [BEWARE])
    rows = rows_of(text)
    assert rows["client"] == ["records", "batch", "rounds", "noise multiplier", "ε ≤", "μ ≤"]
    assert rows["north"] == ["600", "16", "30", "1.2346", "2.000", "0.5000"]  # more noise rather than less
    assert rows["[7]"] == ["30", "–", "–", "–", "cannot", "cannot"]
    assert "To meet ε = 2 at δ = 1e-05, solved for noise" in text
    assert "client [7] cannot take part: it is small\n" in text
    assert f"warning: {BEWARE}\n" in text
    assert fits(text)


def test_a_target_on_the_advantage_has_its_column(printed):
    text = printed(print_answers, answers(), Target("advantage", 0.2), "noise", [])
    rows = rows_of(text)
    assert rows["client"][-1] == "advantage ≤"
    assert rows["north"][-3:] == ["2.000", "0.5000", "25.0%"]
    assert rows["[7]"][-3:] == ["cannot"] * 3
    assert fits(text)


# ---------------------------------------------------------------------- bench


BENCH = {
    "preset": "mlp", "device": "cpu", "clients": 10, "batch": 16, "parameters": 4810, "local_steps": 5, "round_ms": 20.0,
    "first_round_s": 1.25, "repetitions": 7, "arithmetic": "float32", "draws": "system", "threads": 1,
    "peak_memory_mib": 300.4, "notes": ["a note"],
    "iteration_ms": 4.0, "nonprivate_ms": 2.0, "opacus_ms": 400.0, "opacus_ghost_ms": None, "plain_loop_ms": 1.0,
    "reference_ms": 1234.0,
    "spread": {"iteration_ms": [3.5, 4.5], "nonprivate_ms": [1.5, 2.5], "opacus_ms": [390.0, 410.0],
               "plain_loop_ms": [0.9, 1.1], "reference_ms": [1200.0, 1300.0]},
    "scaling": [{"clients": 10, "iteration_ms": 4.0, "client_step_ms": 0.4},
                {"clients": 100, "iteration_ms": 20.0, "client_step_ms": 0.2}],
}  # fmt: skip


def test_bench_compares_every_variant_with_ours(printed):
    text = printed(print_bench, BENCH, "somewhere")
    rows = rows_of(text)
    assert rows["variant"] == ["median ms", "middle half", "against ours"]
    assert rows["ours, private"] == ["4.00", "3.50 … 4.50"]
    assert rows["ours, not private"] == ["2.00", "1.50 … 2.50", "0.50 ×"]
    assert rows["Opacus, client by client"] == ["400", "390 … 410", "100.00 ×"]
    assert rows["our reference, record by record"] == ["1,234", "1,200 … 1,300", "308.50 ×"]
    assert "Opacus with ghost clipping" not in rows
    assert rows["clients"] == ["median ms", "ms a client"]
    assert rows["100"] == ["20.0", "0.200"]
    assert "(7 repetitions, float32, system draws, 1 thread, peak memory 300 MiB)" in text
    assert "note: a note" in text
    assert "written: somewhere/bench.json" in text
    assert fits(text)


def test_bench_without_scaling(printed):
    text = printed(print_bench, BENCH | {"scaling": BENCH["scaling"][:1], "threads": 2}, None)
    assert "by number of clients" not in text
    assert "2 threads" in text
    assert "written" not in text


# ---------------------------------------------------------------------- audit, rules, partition, reproduce


def test_a_failed_check_is_explained(printed):
    good = {"name": "count", "measured": "1 drawn", "allowed": "1 counted", "passed": True, "explanation": "never shown"}
    bad = good | {"name": "noise [scale]", "passed": False, "explanation": "too little noise"}
    text = printed(print_audit, {"passed": False, "checks": [good, bad]})
    rows = rows_of(text)
    assert rows["check"] == ["measured", "allowed", "result"]
    assert rows["count"] == ["1 drawn", "1 counted", "ok"]
    assert rows["noise [scale]"] == ["1 drawn", "1 counted", "FAILED"]
    assert "noise [scale]: too little noise\n" in text
    assert "never shown" not in text
    assert text.endswith("the guarantee does not hold for this step\n")
    assert printed(print_audit, {"passed": True, "checks": [good]}).endswith("all checks passed\n")


def test_rules_stand_in_their_columns(printed):
    row = {"name": "a", "server_sends": "b", "client_does": "c", "leaves": "d", "cost": "e", "needs_sum_alone": True}
    field = {"name": "f", "default": True, "about": "g", "allowed": "true or false"}
    text = printed(print_rules, [row | {"own_fields": [field]}])
    (line,) = (line for line in text.splitlines() if line.startswith("│"))
    assert [cell.strip() for cell in line.strip("│").split("│")] == ["a", "b", "c", "d", "e"]
    assert "K is local.local_steps" in text
    assert "a: rule.f = true: g (true or false)" in text


def census(**changed):
    client = SimpleNamespace(name="[north]", train=30, test=7, labels={"no": 10, "yes": 20}, seen=2, persons=None)
    given = {"clients": [client], "labels": ["no", "yes"], "copies": 1, "records": 30, "sizes": (30, 30.0, 31),
             "labels_seen": 2.0, "persons": None}  # fmt: skip
    return SimpleNamespace(**(given | changed))


def test_a_partition_counts_records_and_labels(printed):
    text = printed(print_partition, census(), None, own=False)
    rows = rows_of(text)
    assert rows["client"] == ["train", "test", "no", "yes"]
    assert rows["[north]"] == ["30", "7", "10", "20"]
    assert "1 client with 30 training records: least 30, median 30, most 31" in text
    assert "no guarantee" not in text
    assert "one and the same" not in text
    private = printed(print_partition, census(copies=3), "a.png", own=True)
    assert "exact counts of your records, without noise: no guarantee covers them" in private
    assert "up to 3 clients hold one and the same record" in private
    assert "picture: a.png" in private


def test_a_partition_counts_persons_too(printed):
    client = SimpleNamespace(name="north", train=30, test=7, labels={}, seen=0, persons=(12, 3))
    text = printed(print_partition, census(clients=[client], labels=(), persons=12, copies=2), None, own=True)
    assert rows_of(text)["north"] == ["30", "7", "12", "3"]
    assert "those of 12 persons" in text
    assert "up to 2 clients hold one and the same person" in text


def test_a_table_of_the_paper_in_its_parts(printed):
    parts = [("first", ("p", "R"), [["1", "93"]]), ("second", ("p", "ε ≤"), [["0.5", "13.88"]])]
    text = printed(print_tables, parts, "a sentence", "page.md")
    rows = rows_of(text)
    assert rows["1"] == ["93"]
    assert rows["0.5"] == ["13.88"]
    assert "a sentence\n" in text
    assert text.endswith("the whole table: page.md\n")
