"""A thousand clients and a thousand rounds: within seconds, and small."""

import json
import time

import pytest

from prifedsync.accounting import NoisySteps, PrivacyPlan
from prifedsync.accounting.statement import Statement
from prifedsync.record import plan_as_json
from prifedsync.report.card import card_of
from prifedsync.report.contents import report_of

from .runs import rewritten

CLIENTS = ROUNDS = 1000
SECONDS = 5.0  # of the processor, so that what else runs on the machine does not count


@pytest.mark.parametrize("different", [1, 10, 1000])
def test_a_large_run_has_a_small_report_soon(sampled, copied, different):
    folder = copied(sampled)
    steps = NoisySteps(noise_multiplier=3.0, records=400, batch=16, local_steps=1)
    plans = [PrivacyPlan(mechanism=steps, rounds=ROUNDS).changed(records=400 + i) for i in range(different)]
    stated = Statement.of(plans[0]).as_json()
    short = {name: value for name, value in stated.items() if name != "curve"}

    def grown(data):
        client = data["clients"][0]
        data["shared"] = {"plan": [plan_as_json(plan) for plan in plans], "planned": [short], "taken": [short]}
        data["clients"] = [
            {**client, "name": f"client-{i:04}", "records": 400 + i % different, "plan": i % different, "planned": 0,
             "taken": 0, "rounds_taken": ROUNDS, "slots_taken": ROUNDS, "noisy_queries": ROUNDS}
            for i in range(CLIENTS)
        ]  # fmt: skip
        data["guarantee"] = stated
        data["config"] |= {"rounds": ROUNDS, "participation": 1.0}

    rewritten(folder, grown)
    line = json.loads((folder / "rounds.jsonl").read_text().splitlines()[0])
    lines = [json.dumps({**line, "round": round, "participants": CLIENTS}) for round in range(1, ROUNDS + 1)]
    (folder / "rounds.jsonl").write_text("\n".join(lines) + "\n")
    begun = time.process_time()
    report = report_of(folder)
    text = report.text()
    assert time.process_time() - begun < SECONDS
    assert len(text.encode()) < 1_000_000
    assert len(report.clients.rows) == CLIENTS
    assert len(report.rounds.rounds) <= 401
    assert report.rounds.rounds[-1] == report.progress.rounds[-1] == ROUNDS
    assert len(report.utility.joining_sentences) <= 4
    assert (report.guarantee.groups_hold_for == "every client") == (different <= 10)
    assert report.curve.holds_for == "every client"
    assert (report.deltas.holds_for == "every client") == (different <= 10)
    assert len(card_of(report)) < 20_000
