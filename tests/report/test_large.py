"""A thousand clients and a thousand rounds: within seconds, and small."""

import json
import random
import time

import pytest

from prifedsync.accounting import NoisySteps, PrivacyPlan
from prifedsync.accounting.statement import Statement
from prifedsync.record import plan_as_json
from prifedsync.report.card import card_of
from prifedsync.report.contents import report_of
from prifedsync.report.html.page import LIMIT, page_of
from prifedsync.report.html.research import MOST_DOTS, MOST_LABELS
from prifedsync.report.utility import NAMES

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


def chart(page, name):
    """What plotly draws."""
    begun = page.index(f'id="chart-{name}">') + len(f'id="chart-{name}">')
    return json.loads(page[begun : page.index("</script>", begun)])["data"]


@pytest.mark.parametrize("spread", [0.1, 0.0])
def test_a_page_is_small_however_many_clients_have_scores(sampled, copied, spread):
    """Five kinds of models, with a score of many digits at each of 10,000 clients, and a config with a table for each."""
    draw = random.Random(0)
    names = [f"hospital-{at:05}-in-the-north" for at in range(10_000)]

    def grown(data):
        base = data["clients"][0]
        data["clients"] = [
            {**base, "name": name, "scores": {model: [[spread * draw.lognormvariate(0, 1), 0.7, 0.9]] for model in NAMES}}
            for name in names
        ]
        data["config"]["clients"] = {name: {"noise_multiplier": 4.0} for name in names}

    page = page_of(report_of(rewritten(copied(sampled), grown)))
    assert len(page.encode()) <= LIMIT
    boxes = chart(page, "clients-scores")
    assert len(boxes) == len(NAMES)
    for box in boxes:
        (shown,), (texts,) = box.get("x", [[]]), box.get("text", [[]])
        (least,), (most,) = box["lowerfence"], box["upperfence"]
        assert len(shown) == len(texts) == (MOST_DOTS if spread else 0)
        assert not any(least < value < most for value in shown)
        assert all(value == float(f"{value:.4g}") for value in shown)
    assert f"Points are clients beyond the lines of a box, at most {MOST_DOTS} of them" in page
    assert "The beginning of the config: all of it is in record.json" in page


def test_a_page_is_small_however_many_labels_there_are(sampled, copied):
    clients, labels = 1_000, 300
    draw = random.Random(0)
    shares = [[round(draw.random() / labels, 3) + (at % 3) / labels for at in range(labels)] for _ in range(clients)]

    def grown(data):
        base = data["clients"][0]
        data["clients"] = [{**base, "name": f"hospital-{at:04}"} for at in range(clients)]
        data["statistics"] = {"labels": {"names": [f"label-{at}" for at in range(labels)], "shares": shares}}

    page = page_of(report_of(rewritten(copied(sampled), grown)))
    assert len(page.encode()) <= LIMIT
    (drawn,) = chart(page, "labels")
    assert (len(drawn["y"]), drawn["y"][0], drawn["y"][-1]) == (MOST_DOTS, "hospital-0000", "hospital-0999")
    assert len(drawn["x"]) == MOST_LABELS
    assert all(int(name.removeprefix("label-")) % 3 == 2 for name in drawn["x"])
    assert {len(row) for row in drawn["z"]} == {MOST_LABELS}
    place = int(drawn["y"][1].removeprefix("hospital-"))
    assert drawn["z"][1] == [shares[place][int(name.removeprefix("label-"))] for name in drawn["x"]]
    said = "The picture has 200 clients at equal distances in the table of clients, and the 50 labels that are commonest."
    assert said in page
    assert "Share of each of the commonest labels, of 20 clients" in page
