"""Masks, losses and the server's optimiser, from the config to the released model; what cannot work is refused."""

import json
import math
from dataclasses import dataclass, replace

import pytest
import torch

import prifedsync
from prifedsync.config import ServerConfig, from_mapping
from prifedsync.data import Description, Task
from prifedsync.engines import Cohort
from prifedsync.engines.outages import Outages
from prifedsync.planning import crowd_of, jobs_of, least_clients_of, not_summed, rule_of, sums_of_run
from prifedsync.rules import RULES, Pulled, Rule, Server, Steps
from prifedsync.rules.rule import beyond_sum
from prifedsync.run import prepare
from prifedsync.server import Aggregator, stepped
from prifedsync.values import BadValue

SIZES = {"a": 12, "b": 40, "c": 3, "d": 20}
BASE = {
    "rounds": 4, "averaging": 0.0, "compare": [], "data": {"classes": 3, "test_fraction": 0.0},
    "local": {"learning_rate": 0.5, "batch": "full", "local_steps": 1, "optimiser": "sgd"},
    "privacy": {"noise_multiplier": 2.0, "clip_norm": 1.0, "randomness": "seeded"}, "performance": {"dtype": "float64"},
}  # fmt: skip


def config_of(**changes):
    return from_mapping(BASE).changed(**{name.replace("__", "."): value for name, value in changes.items()})


def planned(sizes=SIZES, **changes):
    config = config_of(**changes)
    rule = rule_of(config)
    described = Description(sizes, (4,), Task("classes", 3))
    return config, rule, jobs_of(config, described, lambda steps, neighbours: 0.0, rule=rule)


def records(sizes=SIZES):
    draw = torch.Generator().manual_seed(7)
    return {
        name: (torch.randn(size, 4, generator=draw), torch.randint(0, 3, (size,), generator=draw))
        for name, size in sizes.items()
    }


# ---------------------------------------------------------------------- which runs are summed


def test_the_rules_whose_server_needs_the_sum_alone():
    alone = {name for name, kind in RULES.items() if kind().needs_sum_alone}
    assert alone == {"fedavg", "fedprox", "ditto", "apfl"}
    assert not RULES["ditto"](publish=True).needs_sum_alone


@pytest.mark.parametrize("name", ["helper", "start", "finish", "merge"])
def test_a_rule_from_outside_that_does_something_of_its_own_needs_more(name):
    assert type("Plain", (Rule,), {"name": "plain"})().needs_sum_alone
    assert not type("Own", (Rule,), {"name": "own", name: lambda self, *given: given[0]})().needs_sum_alone
    assert not type("Own", (Rule,), {"name": "own", "attends": True})().needs_sum_alone
    assert not type("Own", (Rule,), {"name": "own", "outer": True})().needs_sum_alone


def test_steps_of_ones_own_need_more_than_the_sum():
    """A pull that is not 0 where training starts would be missing from the sum."""
    pushed = type("Pushed", (Pulled,), {"pull": lambda self, weights, anchor, strength: weights})
    rules = [type("Own", (Rule,), {"name": "own", "steps": property(lambda self, it=it: it())}) for it in (Pulled, pushed)]
    assert [rule().needs_sum_alone for rule in rules] == [True, False]
    assert type(Rule().steps) is Steps


BEYOND = "rule {} needs more than the sum of the uploads: {}"
FEDAVG = {"rule.name": "fedavg"}
SGD = {"local.optimiser": "sgd", "local.weight_decay": 0.0}
NOT_SUMMED = [  # why; the changes that make it so; what the remedy names; what it takes to undo them
    ("nothing is noised", {"privacy__mechanism": "none", "privacy__noise_multiplier": None}, "", {}),
    ("a round has several noisy steps", {"local__local_steps": 2}, "local.local_steps = 1", {"local.local_steps": 1}),
    (BEYOND.format("attentive", "it needs every client's single upload"), {"rule__name": "attentive"}, "a rule", FEDAVG),
    (BEYOND.format("interpolate", "it needs every client's single"), {"rule__name": "interpolate"}, "a rule", FEDAVG),
    (BEYOND.format("mixture", "it needs every client's single upload"), {"rule__name": "mixture"}, "a rule", FEDAVG),
    (BEYOND.format("mean-regularised", "a client goes on from its own model"), {"rule__name": "mean-regularised"}, "a rule",
     FEDAVG),
    (BEYOND.format("pfedme", "a client goes on from its own model"), {"rule__name": "pfedme"}, "a rule", FEDAVG),
    (BEYOND.format("ditto", "its personal models are published"), {"rule__name": "ditto", "rule__publish": True},
     "publish no personal models", {"rule.publish": False}),
    ("the noise is Laplace noise", {"privacy__mechanism": "output-laplace"}, 'privacy.mechanism = "output-gaussian"',
     {"privacy.mechanism": "output-gaussian"}),
    ("models of earlier rounds", {"rule__delivery": "push"}, 'rule.delivery = "pull"', {"rule.delivery": "pull"}),
    ("the local optimiser does more", {"local__optimiser": "momentum"}, 'local.optimiser = "sgd"', SGD),
    ("the local optimiser does more", {"local__weight_decay": 0.1}, "local.weight_decay = 0", SGD),
    ("depends on how often", {"participation": 0.5, "local__schedule": "cosine"}, 'local.schedule = "constant"',
     {"local.schedule": "constant"}),
]  # fmt: skip


@pytest.mark.parametrize(("why", "changes", "remedy", "undone"), NOT_SUMMED)
def test_why_a_run_is_not_summed_and_what_to_do(why, changes, remedy, undone):
    found = planned(**changes)
    assert why in not_summed(*found)
    assert sums_of_run(*found) is None
    if not remedy:
        return
    with pytest.raises(BadValue) as refused:
        planned(**changes, privacy__masks=True, privacy__least_clients=2)
    assert (refused.value.field, why in str(refused.value)) == ("privacy.masks", True)
    assert remedy in refused.value.remedy
    assert not_summed(*planned(**changes, **undone)) == ""
    with pytest.raises(BadValue, match="is about sums, and there are none"):
        planned(**changes, privacy__least_clients=2)


def test_the_reason_of_a_rule_from_outside():
    reasons = {
        "helper": "it needs every client's single upload", "start": "a client goes on from its own model",
        "finish": "a client goes on from its own model", "merge": "its merge is its own",
    }  # fmt: skip
    for name, reason in reasons.items():
        assert beyond_sum(type("Own", (Rule,), {"name": "own", name: lambda self, *given: given[0]})()) == reason
    assert beyond_sum(RULES["alone"]()) == "its clients send nothing"
    assert beyond_sum(Rule()) == ""


def test_one_client_that_is_unlike_the_others_is_enough():
    assert not_summed(*planned()) == ""
    assert "several noisy steps" in not_summed(*planned(**{"clients.b.local_steps": 2}))
    assert "optimiser" in not_summed(*planned(**{"clients.b.optimiser": "adam"}))


UNLIKE = {"merge": "equal", "clients.a.clip_norm": 1e-4, "clients.b.clip_norm": 1e4}


def test_clients_without_a_grid_for_all_train_unsummed_and_are_not_masked():
    """The loudest would have 2^20 steps of noise, and the quietest less than eight."""
    config, rule, jobs = planned(**UNLIKE)
    assert "the noise of client a" in not_summed(config, rule, jobs)
    assert sums_of_run(config, rule, jobs) is None
    crowd = crowd_of(config, rule, jobs)
    assert "client b has" in crowd.readers(0).seen(jobs[0].plan).why
    with pytest.raises(BadValue, match=r"client a would be .* client b has .*train without masks"):
        planned(**UNLIKE, privacy__masks=True)


@pytest.mark.parametrize(
    "changes",
    [{}, {"rule__name": "fedprox"}, {"rule__name": "apfl"}, {"local__batch": 3}, {"participation": 0.5},
     {"privacy__mechanism": "output-gaussian", "local__local_steps": 5, "local__optimiser": "adam"},
     {"local__schedule": "cosine"}, {"lost": 0.3}],
)  # fmt: skip
def test_what_is_summed(changes):
    assert not_summed(*planned(**changes)) == ""


# ---------------------------------------------------------------------- the least number of clients


def test_the_least_number_of_clients_by_default():
    assert least_clients_of(config_of(), 4) == 4
    assert least_clients_of(config_of(lost=0.1), 4) == 1
    assert least_clients_of(config_of(participation=0.5), 4) == 1
    assert least_clients_of(config_of(privacy__masks=True), 4) == 4
    assert least_clients_of(config_of(privacy__masks=True, privacy__attempts=2, lost=0.1), 4) == 2
    assert least_clients_of(config_of(privacy__least_clients=3, participation=0.5), 4) == 3


REFUSED = [
    ({"privacy__attempts": 2}, "privacy.attempts", "without masks"),
    ({"privacy__masks": True, "participation": 0.5}, "privacy.least_clients", "must be set"),
    ({"privacy__least_clients": 5}, "privacy.least_clients", "more than all 4 clients"),
    ({"privacy__masks": True, "privacy__least_clients": 1}, "privacy.least_clients", "not masked"),
    ({"privacy__masks": True, "privacy__attempts": 3}, "privacy.attempts", "not masked"),
    ({"privacy__masks": True, "privacy__noise_multiplier": 0.05, "privacy__clip_norm": 1.0,
      "clients.a.clip_norm": 1e6}, "the grid of messages", "too coarse"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "field", "why"), REFUSED)
def test_numbers_that_could_not_work_are_refused(changes, field, why):
    with pytest.raises(BadValue) as refused:
        planned(**changes)
    assert refused.value.field == field
    assert why in str(refused.value)


def test_masks_with_private_sizes_need_nominal_ones():
    """Where a record is added or removed, its client's weight and batch must not depend on it."""
    private = {"privacy__neighbours": "add-remove", "privacy__masks": True}
    with pytest.raises(BadValue, match="must be set with add-remove adjacency"):
        planned(**private)
    nominal = {f"clients.{name}.records": 10 for name in SIZES}
    one, other = (sums_of_run(*planned(sizes, **private, **nominal)) for sizes in (SIZES, SIZES | {"b": 41}))
    assert one == other


# ---------------------------------------------------------------------- whole runs


def expected_losses(config):
    """(attempts, uploads that never arrived) of each round, by the public coins alone."""
    outages = Outages(config.lost, config.seed)
    spare = config.privacy.attempts
    for round in range(config.rounds):
        listed = set(SIZES)
        lost = 0
        for attempt in range(1 + spare):
            arrived = {name for name in listed if not outages.lost(name, round, attempt)}
            lost += len(listed - arrived)
            again = arrived != listed and spare and len(arrived) >= len(SIZES) - config.privacy.attempts
            if not again:
                break
            spare -= 1
            listed = arrived
        yield attempt + 1, lost


def assert_logged(result, folder, config):
    """Attempts and losses stand in the log, in the history and in the record, and follow from public coins."""
    expected = list(expected_losses(config))
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [(line.get("attempts", 1), line.get("lost", 0)) for line in lines] == expected
    assert all(line.get("attempts") != 1 and line.get("lost") != 0 for line in lines)  # written where there is any
    assert [(row["attempts"], row["lost"]) for row in result.history] == expected
    stored = json.loads((folder / "record.json").read_text())
    assert stored["attempts_used"] == result.engine.attempts == sum(attempts - 1 for attempts, _ in expected) > 0
    assert stored["uploads_lost"] == sum(lost for _, lost in expected) > 0
    for client, job in zip(result.record.clients, result.engine.jobs, strict=True):
        spent = job.plan.guarantee(taken=client.slots_taken).epsilon(1e-5)
        assert client.taken["epsilon"]["upper"] == pytest.approx(spent.upper)


@pytest.mark.parametrize("randomness", ["seeded", "system"])
@pytest.mark.parametrize("engine", ["vectorised", "reference"])
def test_masked_runs_state_what_was_spent(engine, randomness, tmp_path):
    config = config_of(
        privacy__masks=True, privacy__attempts=2, lost=0.15, rounds=6, seed=2, compare=["non-private", "alone-private"],
        performance__engine=engine, privacy__randomness=randomness,
    )  # fmt: skip
    result = prifedsync.train(config, clients=records(), out=tmp_path / "run")
    slots = [client.slots_taken for client in result.record.clients]
    assert max(slots) > 6  # there was a loss, and an attempt
    assert [client.noisy_queries for client in result.record.clients] == slots
    assert all(client.slots_taken <= 8 and client.rounds_taken == 6 for client in result.record.clients)
    assert_logged(result, tmp_path / "run", config)
    assert {path.name for path in (tmp_path / "run" / "models" / "personal").iterdir()} == {
        f"{name}.safetensors" for name in SIZES
    }
    again = prifedsync.train(config, clients=records())
    assert [client.slots_taken for client in again.record.clients] == slots  # losses are those of the seed


def test_masks_change_no_bit_of_a_model():
    """With the same seed: with masks, without, and on both engines."""
    configs = [
        config_of(privacy__masks=masks, performance__engine=engine, merge=merge)
        for merge in ("records", "equal")
        for masks in (False, True)
        for engine in ("vectorised", "reference")
    ]
    weights = [prifedsync.train(config, clients=records()).server.weights for config in configs]
    assert all(torch.equal(weights[0], one) for one in weights[:4])
    assert all(torch.equal(weights[4], one) for one in weights[4:])
    assert not torch.equal(weights[0], weights[4])


def test_scores_and_models_of_clients_are_those_of_the_released_model():
    data = records({"a": 30, "b": 30, "c": 30})
    result = prifedsync.train(config_of(data__test_fraction=0.3), clients=data)
    for name in data:
        own = result.personal(name)
        assert all(torch.equal(own[key], value) for key, value in result.state_dict.items())
    scores = result.record.by_metric["accuracy"]
    assert scores["personal"] == scores["released"]
    assert all(row["personal_mean"] == row["released_mean"] for row in result.history)


class Stop(Exception):
    pass


@pytest.mark.parametrize("changes", [
    {"privacy__masks": True, "privacy__attempts": 2, "lost": 0.15, "rule__name": "apfl", "seed": 2},
    {"privacy__masks": True, "privacy__attempts": 2, "lost": 0.15, "performance__engine": "reference", "seed": 2},
    {"server__optimiser": "momentum"},
    {"server__optimiser": "adam", "averaging": 0.5},
    {"server__optimiser": "adam", "local__local_steps": 2, "rule__name": "interpolate"},
])  # fmt: skip
@pytest.mark.parametrize("stop", [1, 3, 5])
def test_a_run_goes_on_to_the_last_bit(changes, stop, tmp_path):
    config = config_of(**changes, rounds=6, performance__checkpoint_seconds=0.0)
    whole = prifedsync.train(config, clients=records())

    def watch(event):
        if getattr(event, "round", None) == stop:
            raise Stop

    with pytest.raises(Stop):
        prifedsync.train(config, clients=records(), out=tmp_path / "run", watch=watch)
    again = prifedsync.resume(tmp_path / "run", clients=records())
    assert torch.equal(again.server.weights, whole.server.weights)
    assert torch.equal(again.server.released, whole.server.released)
    assert again.engine.counters() == whole.engine.counters()
    assert again.engine.attempts == whole.engine.attempts
    assert [(row["attempts"], row["lost"]) for row in again.history] == [
        (row["attempts"], row["lost"]) for row in whole.history
    ]
    assert again.record.attempts_used == whole.engine.attempts
    assert again.record.uploads_lost == whole.record.uploads_lost
    assert again.server.merges == whole.server.merges


@pytest.mark.parametrize(
    ("engine", "call"), [*(("vectorised", call) for call in (2, 4, 7)), *(("reference", call) for call in (5, 13, 24))]
)
def test_a_run_that_ends_in_the_middle_of_an_attempt_goes_on(engine, call, tmp_path, monkeypatch):
    """Whatever was sent since the last checkpoint is sent again with the same noise, and counted once."""
    config = config_of(privacy__masks=True, privacy__attempts=2, lost=0.15, rounds=6, seed=2, performance__engine=engine,
                       performance__checkpoint_seconds=0.0, privacy__randomness="system")  # fmt: skip
    right = Cohort._messages
    sent = []

    def messages(self, sums, round, group, helper):
        found = right(self, sums, round, group, helper)
        sent.append(((round, group[0].attempt, tuple(client.name for client in group)), found.clone()))
        if len(sent) == call:
            raise Stop
        return found

    monkeypatch.setattr(Cohort, "_messages", messages)
    with pytest.raises(Stop):
        prifedsync.train(config, clients=records(), out=tmp_path / "run")
    result = prifedsync.resume(tmp_path / "run", clients=records())
    first = dict(sent[:call])
    again = dict(sent[call:])
    assert all(torch.equal(again[slot], first[slot]) for slot in first if slot in again)
    assert len({*first, *again}) >= 6
    taken = [client.slots_taken for client in result.record.clients]
    assert taken == [client.noisy_queries for client in result.record.clients]
    assert sum(taken) == sum(len(names) for _, _, names in {*first, *again})
    assert result.engine.attempts == len({slot[:2] for slot in {*first, *again} if slot[1]})


# ---------------------------------------------------------------------- the server's optimiser


def after(changes, rate=1.0, start=1.0, **fields):
    optimiser = ServerConfig(**fields)
    server = Server(torch.tensor([start], dtype=torch.float64))
    found = []
    for change in changes:
        server = stepped(optimiser, server, torch.tensor([change], dtype=torch.float64), rate)
        found.append(server.weights.item())
    return found


def test_plain_steps_by_hand():
    assert after([2.0, -1.0], rate=0.5) == [2.0, 1.5]


def test_momentum_by_hand():
    """v = 2, then 0.5·2 − 1 = 0, then 0 + 4: w = 1 + 0.25·2, + 0, + 1."""
    assert after([2.0, -1.0, 4.0], rate=0.25, optimiser="momentum", momentum=0.5) == [1.5, 1.5, 2.5]


def test_adam_by_hand():
    """β = (½, ¾), ε = 1, rate ½. First m̂ = 2, v̂ = 4; then m = ½·1 + ½·(−1) = 0: no step."""
    fields = {"optimiser": "adam", "betas": (0.5, 0.75), "stability": 1.0, "learning_rate": 0.5}
    first = 1 + 0.5 * 2 / (2 + 1)
    third = first + 0.5 * (0.5 * 4 / (1 - 0.5**3)) / (math.sqrt((0.75 * (0.75 * 1 + 0.25) + 0.25 * 16) / (1 - 0.75**3)) + 1)
    assert after([2.0, -1.0, 4.0], rate=0.1, **fields) == pytest.approx([first, first, third], rel=1e-15)


def test_an_optimiser_is_refused_in_planning_where_a_rule_merges_by_itself():
    config, _, jobs = planned(server__optimiser="adam")  # a rule with the default merge is planned
    own = type("Own", (Rule,), {"name": "own", "merge": lambda self, server, *given: server})()
    described = Description(SIZES, (4,), Task("classes", 3))
    assert len(jobs) == len(SIZES)
    with pytest.raises(BadValue, match=r"server\.optimiser"):
        jobs_of(config.changed(merge="equal"), described, lambda steps, neighbours: 0.0, rule=own)


@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam"])
def test_sums_and_models_lead_to_the_same_step(optimiser):
    """The gradient is the mean change, whether it comes as a sum or as models; one round, up to the grid."""
    config = config_of(server__optimiser=optimiser, rounds=1, server_rate=0.5)
    summed = prifedsync.train(config, clients=records())
    models = prifedsync.train(config.changed(**{"rule.delivery": "push"}), clients=records())
    assert models.prepared.sums is None
    assert summed.prepared.sums is not None
    sums = summed.prepared.sums
    cell = abs(sums.step) * sums.grid / sum(sums.weights.values()) / ServerConfig().stability  # adam's slope at most
    moved = float((summed.server.weights - summed.prepared.start).abs().max())
    apart = float((summed.server.weights - models.server.weights).abs().max())
    assert apart < min(0.05 * moved, 4 * cell)


def test_an_optimiser_of_the_server_needs_the_default_merge():
    @dataclass(frozen=True)
    class Median(Rule):
        name = "median"

        def merge(self, server, uploads, rate, weights=None):
            return server.merged(uploads.value.median(0, keepdim=True).values, rate)

    prepared = prepare(config_of(), records(), rule=Median)
    Aggregator(prepared.rule, prepared.jobs, prepared.start)
    with pytest.raises(BadValue, match=r"server.optimiser = momentum cannot be combined with rule median"):
        Aggregator(prepared.rule, prepared.jobs, prepared.start, optimiser=ServerConfig(optimiser="momentum"))
    unused = replace(prepared, config=prepared.config.changed(**{"server.optimiser": "adam"}))
    with pytest.raises(BadValue):
        unused.aggregator()


def test_the_momentum_of_the_server_is_worth_something():
    """Without noise it is plain heavy ball: two rounds of momentum on one client are those of torch's SGD."""
    data = {"a": records()["b"]}
    config = config_of(
        privacy__mechanism="none", privacy__noise_multiplier=None, server__optimiser="momentum", server__momentum=0.5,
        rounds=3, local__learning_rate=0.1,
    )  # fmt: skip
    result = prifedsync.train(config, clients=data)
    module = prepare(config, data).module.double()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)
    x, y = data["a"]
    for _ in range(3):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(module(x.double()), y).backward()
        optimiser.step()
    for name, value in module.state_dict().items():
        torch.testing.assert_close(result.state_dict[name].double(), value, rtol=1e-9, atol=1e-12)


def test_rules_say_which_can_be_masked(capsys):
    from prifedsync.cli.rules import rules

    rules(as_json=True)
    listed = json.loads(capsys.readouterr().out)["rules"]
    assert {row["name"] for row in listed if row["needs_sum_alone"]} == {"fedavg", "fedprox", "ditto", "apfl"}
    rules()
    text = " ".join(capsys.readouterr().out.split())
    assert "can be masked (privacy.masks): fedavg, fedprox, apfl (unless rule.publish = true), ditto (unless rule." in text
