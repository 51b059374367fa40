"""Attacks on the headline: one client stands for all others, and whoever reads it believes the others are as safe."""

import csv
import json
import math
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

import prifedsync
from prifedsync import run
from prifedsync.accounting import NoisySteps, PrivacyPlan
from prifedsync.accounting.statement import Statement
from prifedsync.config import from_mapping
from prifedsync.local import CLIP_MARGIN, SeededDraws
from prifedsync.record import Guarantees, plan_as_json
from prifedsync.rules import Server
from prifedsync.terminal import View, print_record, view

from ..engines.settings import heard_messages

SMALL = 20
LARGE = 4000
RATE = 1e-3
DELTA = 1e-6
TARGETS = {"mu": 1.0, "epsilon": 2.0, "advantage": 0.3}
NUMBERS = ("epsilon", "mu", "advantage")


def config_of(target, participation=1.0):
    return {
        "rounds": 3,
        "participation": participation,
        "compare": [],
        "local": {"batch": 16, "learning_rate": RATE, "optimiser": "sgd"},
        "data": {"source": run.GIVEN, "task": "regression", "test_fraction": 0},
        "privacy": {"target": target, "delta": DELTA, "randomness": "seeded"},
    }


def clients_of(sizes, label=1.0):
    """Records that move nothing, but for the first of each client: its gradient has length over C, in a known direction."""
    clients = {}
    for name, size in sizes.items():
        x = torch.zeros(size, 1)
        y = torch.zeros(size)
        x[0] = 1000.0
        y[0] = 1e6 * label
        clients[name] = (x, y)
    return clients


def slope():
    """A model of one weight, 0 at first: what a step releases is one number."""
    module = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(module.weight)
    return module


@pytest.fixture(scope="module")
def records():
    """The record of a small and a large client, for each target."""
    clients = clients_of({"small": SMALL, "large": LARGE})
    settings = {kind: config_of({kind: value}) for kind, value in TARGETS.items()}
    settings["mu, half of the rounds"] = config_of({"mu": 1.0}, participation=0.5)
    return {name: prifedsync.train(config, clients=clients, model=slope()).record for name, config in settings.items()}


CASES = pytest.mark.parametrize("case", [*TARGETS, "mu, half of the rounds"])


# ---------------------------------------------------------------------- what every headline must pass


def percentages(sentence):
    """How often an attacker guesses correctly, and the true positive rate at a false positive rate of 1 %."""
    pattern = r"correctly at most ([\d.]+)% .* true positive rate is at most ([\d.]+)%"
    found = re.search(pattern, " ".join(sentence.split()))
    return float(found[1]), float(found[2])


def value(stored):
    """JSON has no infinity: null stands for it."""
    return math.inf if stored is None else stored


def at_least(headline, own):
    """No number of the headline is on the unsafe side of one client's own."""
    for numbers, mine in ((headline, own), (headline["worst_case_participation"], own["worst_case_participation"])):
        for name in NUMBERS:
            assert value(numbers[name]["lower"]) >= value(mine[name]["lower"]), name
            assert value(numbers[name]["upper"]) >= value(mine[name]["upper"]), name
    for name in ("mu_weak", "mu_strong"):
        assert value(headline["paper"][name]) >= value(own["paper"][name]), name
    for (alpha, beta), (level, missed) in zip(headline["curve"], own["curve"], strict=True):
        assert alpha == level
        assert beta <= missed, alpha
    assert set(own["warnings"]) <= set(headline["warnings"])


def check_record(record):
    """What is stored: the guarantee, and its sentence."""
    for client in record.clients:
        at_least(record.guarantee, client.planned)
        stated = percentages(client.planned["sentence"])
        for sentence in (record.sentence, record.guarantee["sentence"]):
            right, spotted = percentages(sentence)
            assert right >= stated[0]
            assert spotted >= stated[1]
            assert "any client" in sentence


def check_printed(text, record):
    """What is printed: ε, μ and the sentence."""
    words = " ".join(text.split())
    epsilon = float(re.search(r"ε ≤ ([\d.]+) at", words)[1])
    mu = float(re.search(r"μ ≤ ([\d.]+) for", words)[1])
    right, spotted = percentages(words)
    for client in record.clients:
        own = client.planned
        assert epsilon >= own["epsilon"]["upper"]
        assert mu >= own["mu"]["upper"]
        assert right >= percentages(own["sentence"])[0]
        assert spotted >= percentages(own["sentence"])[1]
        chosen_by_others = own["worst_case_participation"]["epsilon"]["upper"]
        if chosen_by_others > own["epsilon"]["upper"]:
            assert float(re.search(r"ε ≤ ([\d.]+) if others choose", words)[1]) >= chosen_by_others


# ---------------------------------------------------------------------- the record and the last lines


@CASES
def test_no_client_is_worse_off_than_the_record_says(records, case):
    """Read the record's headline as a promise to every client, and look for a client whose own line is worse."""
    check_record(records[case])


@CASES
def test_no_client_is_worse_off_than_the_terminal_says(records, case, capsys):
    """Read the last lines of `train` as a promise to every client, and look for a client whose own line is worse."""
    print_record(records[case], None)
    check_printed(capsys.readouterr().out, records[case])


@CASES
def test_the_headline_is_no_worse_than_it_must_be(records, case):
    """Overstate every number: each must be that of some client, so that the headline is worth reading."""
    headline = records[case].guarantee
    owns = [client.planned for client in records[case].clients]
    for name in NUMBERS:
        for end in ("lower", "upper"):
            assert headline[name][end] == max(own[name][end] for own in owns)
    lowest = [min(betas) for betas in zip(*([beta for _, beta in own["curve"]] for own in owns), strict=True)]
    assert [beta for _, beta in headline["curve"]] == lowest


def test_the_numbers_that_were_printed_wrongly(records):
    """The small client's 69.2 % and 58.9 % were printed as 50.6 % and 50.5 %, because the large client has the larger ε."""
    for case, printed, true in (("mu", 50.6, 69.2), ("epsilon", 50.5, 58.9)):
        small, large = (client.planned for client in records[case].clients)
        assert large["epsilon"]["upper"] > small["epsilon"]["upper"]
        assert percentages(large["sentence"])[0] == printed
        assert percentages(records[case].sentence)[0] == true


def best_protected(statements):
    return min(statements, key=lambda each: each.honest.advantage.upper)


def largest_epsilon(statements):
    return max(statements, key=lambda each: each.honest.epsilon.upper)


@pytest.mark.parametrize("chosen", [best_protected, largest_epsilon])
def test_a_headline_of_one_client_is_seen(records, chosen, monkeypatch, capsys):
    """Plant the fault that one client's statement stands for all, be it the best protected one or that of the largest ε."""

    def of_one(many):
        return replace(chosen(tuple(many)), whose="any client")

    monkeypatch.setattr(Statement, "worst", staticmethod(of_one))
    clients = clients_of({"small": SMALL, "large": LARGE})
    record = prifedsync.train(config_of({"mu": 1.0}), clients=clients, model=slope()).record
    with pytest.raises(AssertionError):
        check_record(record)
    print_record(record, None)
    with pytest.raises(AssertionError):
        check_printed(capsys.readouterr().out, record)


def test_clients_that_differ_in_every_way():
    """Mix clients of which each is the worst in another number: no one of them may be taken for the headline."""
    steps = [
        {"noise_multiplier": 0.4, "records": LARGE, "batch": 16},  # rarely and fatally: ε
        {"noise_multiplier": 2.8, "records": SMALL, "batch": 16},  # often and mildly: advantage
        {"noise_multiplier": 2.0, "records": 300, "batch": 16},
    ]
    plans = [PrivacyPlan(mechanism=NoisySteps(local_steps=1, **each), rounds=3, participation=0.5) for each in steps]
    guarantees = Guarantees(DELTA, 3)
    headline = guarantees.worst(plans).as_json()
    owns = [guarantees.planned(plan).as_json() for plan in plans]
    for own in owns:
        at_least(headline, own)
    largest = {name: max(range(3), key=lambda i, name=name: owns[i][name]["upper"]) for name in NUMBERS}
    assert len(set(largest.values())) > 1  # else this attacks nothing


# ---------------------------------------------------------------------- the sentence, attacked


TRIALS = 2000


def scores(plan, seen):
    """The log-likelihood ratio of both values of the record, from the noisy sums of all steps in clip norms, [T, C]."""
    noise = plan.mechanism.noise_multiplier
    rate = plan.mechanism.rate

    def likelihood(centre):
        absent = (1 - rate) * torch.exp(-(seen**2) / (2 * noise**2))
        return absent + rate * torch.exp(-((seen - centre) ** 2) / (2 * noise**2))

    return (likelihood(1.0).log() - likelihood(-1.0).log()).sum(0)


def test_somebody_who_guesses_is_not_right_more_often_than_the_sentence_says(records):
    """Guess the value of a record of the small client from what the engine really sends, over 2,000 trials.

    Each trial is a client of its own with its own batches and noise. Draws are seeded, so the result is always the same;
    with other seeds, five standard deviations are exceeded with chance 3·10⁻⁷.
    """
    record = records["mu"]
    names = [f"trial {i}" for i in range(TRIALS)]
    sides = {name: 1.0 if i % 2 else -1.0 for i, name in enumerate(names)}
    clients = {}
    for name, side in sides.items():
        clients |= clients_of({name: SMALL}, side)
    prepared = run.prepare(from_mapping(config_of({"mu": 1.0})), clients, slope())
    plan = prepared.jobs[0].plan
    assert plan_as_json(plan) == record.clients[0].plan
    draws = SeededDraws(1)
    cohort = prepared.cohort(draws)
    seen = torch.zeros(plan.rounds, TRIALS, dtype=torch.float64)

    def heard(client, round, total):
        seen[round, client.index] = -total[0]  # a step goes against the sum

    with heard_messages(heard):
        list(run.synchronised(prepared, prepared.aggregator(), cohort, Server(cohort.start)))
    truth = torch.tensor([sides[name] for name in names])
    right = (scores(plan, seen).sign() == truth).double().mean().item()
    spread = 5 * math.sqrt(0.25 / TRIALS)
    assert right > 0.692 - spread  # the attack is as good as any can be
    assert right - spread > 0.506  # what was printed is false
    assert right - spread <= percentages(record.sentence)[0] / 100


# ---------------------------------------------------------------------- ε so far


EARLY = {"batch": 16, "noise_multiplier": 0.45}  # spends most in the first rounds
LATE = {"batch": "full", "noise_multiplier": 8.0}  # has spent more in the end
ROUNDS = 40


def plan_of(own, records, rounds):
    steps = NoisySteps(records=records, local_steps=1, clip_margin=CLIP_MARGIN, **own)
    return PrivacyPlan(mechanism=steps, rounds=rounds)


def followed(watch, early=LARGE, late=40):
    """A run of one client that spends early and one that spends late."""
    config = config_of({"mu": 1.0}) | {"rounds": ROUNDS, "clients": {"early": EARLY, "late": LATE}}
    config["privacy"] = config["privacy"] | {"delta": 1e-5}
    prifedsync.train(config, clients=clients_of({"early": early, "late": late}), model=slope(), watch=watch)


def test_no_client_has_spent_more_than_the_progress_says():
    """Follow the client that spends most in the first rounds, while another one will have spent more in the end."""
    said = {}

    def watch(event):
        if isinstance(event, run.RoundDone) and event.round in (1, 2, 10, ROUNDS):
            said[event.round] = (event.epsilon_so_far(), event.epsilon_planned())

    followed(watch)
    planned = [plan_of(EARLY, LARGE, ROUNDS), plan_of(LATE, 40, ROUNDS)]
    ends = [plan.guarantee().epsilon(1e-5) for plan in planned]
    assert ends[1].lower > ends[0].upper
    for round, (so_far, planned_epsilon) in said.items():
        spent = [plan.changed(rounds=round).guarantee().epsilon(1e-5) for plan in planned]
        assert so_far >= max(each.lower for each in spent)
        assert so_far == pytest.approx(max(each.upper for each in spent), rel=0.02)
        assert planned_epsilon >= max(each.lower for each in ends)
    assert said[1][0] > 2 * plan_of(LATE, 40, 1).guarantee().epsilon(1e-5).upper


def test_no_client_has_spent_more_than_the_progress_line_says(monkeypatch, capsys):
    """The same, read from the lines that are printed."""
    monkeypatch.setattr(view, "PLAIN_EVERY", 0.0)
    monkeypatch.setattr(view, "EPSILON_SHARE", math.inf)
    with View(quiet=False) as watch:
        followed(watch)
    lines = re.findall(r"round (\d+) of \d+, .*?ε ([\d.]+) of ([\d.]+)", capsys.readouterr().err)
    assert [int(line[0]) for line in lines] == list(range(1, ROUNDS + 1))
    for round, so_far, planned in (lines[0], lines[1], lines[9], lines[-1]):
        for own, records in ((EARLY, LARGE), (LATE, 40)):
            assert float(so_far) >= plan_of(own, records, int(round)).guarantee().epsilon(1e-5).lower
            assert float(planned) >= plan_of(own, records, ROUNDS).guarantee().epsilon(1e-5).lower


class Clock:
    """Time as the test says."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


class Slow:
    """Bounds on ε that take a given time each, as with a thousand different clients; ε is the number of rounds."""

    def __init__(self, clock, takes):
        self.clock = clock
        self.seconds = takes
        self.known = {100}
        self.spent = 0.0

    def after(self, rounds):
        if rounds not in self.known:
            self.known.add(rounds)
            self.clock.now += self.seconds
            self.spent += self.seconds
        return float(rounds)


def test_many_different_clients_do_not_hold_up_training(monkeypatch, capsys):
    """Let a bound on ε take as long as a round: bounds get 5 % of the time, and the line says of which round they are."""
    clock = Clock()
    monkeypatch.setattr(view, "time", clock)
    watch = View(quiet=False)
    spending = Slow(clock, takes=10.0)
    for round in range(1, 101):
        for _ in range(10):
            clock.now += 1.0
        watch(run.RoundDone("private", round, 100, 1, None, None, 10.0, spending, False))
    assert 0 < spending.spent <= 0.05 * clock.now
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 100
    assert "ε 100 after all rounds" in lines[0]  # too early for a bound
    assert "ε 100 of 100" in lines[-1]
    for line in lines[20:-1]:
        round = int(re.search(r"round (\d+) of 100", line)[1])
        so_far, age = re.search(r"ε ([\d.]+)(?: \(after round (\d+)\))? of 100", line).groups()
        assert float(so_far) == int(age or round)
        assert int(age or round) >= round - 21


# ---------------------------------------------------------------------- before a run


def planned(sizes, folder, *words):
    """What `plan --json` answers for clients of these sizes."""
    path = folder / "sizes.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("client", "records"), *sizes.items()])
    command = [sys.executable, "-m", "prifedsync.cli", "plan", "--sizes", str(path), "--batch", "16", "--delta", str(DELTA)]
    done = subprocess.run([*command, *words, "--json"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "words",
    [
        ("--rounds", "3", "--target-mu", "1"),
        ("--rounds", "3", "--target-epsilon", "2"),
        ("--rounds", "3", "--noise-multiplier", "4", "--target-epsilon", "3", "--solve", "batch"),
    ],
    ids=["mu", "epsilon", "batch"],
)
def test_no_client_is_worse_off_than_plan_says(tmp_path, words):
    """Read what `plan --sizes` answers on top as a promise to every client, and look for one whose own answer is worse."""
    said = planned({"small": SMALL, "middle": 400, "large": LARGE}, tmp_path, *words)
    assert said["meets_target"]
    for client in said["clients"]:
        for name in NUMBERS:
            assert said[name]["lower"] >= client[name]["lower"]
            assert said[name]["upper"] >= client[name]["upper"]
        assert said["noise_multiplier"] >= client["noise_multiplier"]
        assert said["batch"] <= client["batch"]


def test_plan_gives_no_number_where_a_client_has_none(tmp_path):
    """Look for an ε on top while a client cannot take part at all."""
    said = planned({"tiny": 5, "large": LARGE}, tmp_path, "--rounds", "3", "--target-mu", "1")
    assert not said["meets_target"]
    assert [said[name]["upper"] for name in NUMBERS] == [None] * 3
    assert said["noise_multiplier"] is None
    assert "client tiny with 5 records cannot take part" in said["reason"]
