"""Views where people read them: `account`, `plan`, the end of `train`, the record and Python."""

import json
import re
from dataclasses import replace
from io import StringIO
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import prifedsync
from prifedsync.accounting import Crowd, NoisySteps, PrivacyPlan
from prifedsync.accounting.statement import Statement, up
from prifedsync.cli import app
from prifedsync.config import load
from prifedsync.planning import crowd_of, jobs_of, rule_of
from prifedsync.record import MASKS_SIMULATED, Guarantees, RunRecord, plan_as_json, plan_from_json
from prifedsync.run import forecast
from prifedsync.terminal import print_statement, print_views
from prifedsync.values import BadValue

ACCOUNT = [
    "account",
    "--records",
    "100",
    "--batch",
    "full",
    "--noise-multiplier",
    "10",
    "--local-steps",
    "1",
    "--rounds",
    "25",
]
PLAN = ["plan", "--records", "100", "--batch", "full", "--rounds", "25"]  # μ = 1 with noise 10


def told(*words):
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.stdout


def answered(*words):
    return json.loads(told(*words, "--json"))


def refused(*words):
    result = CliRunner().invoke(app, list(words))
    assert isinstance(result.exception, BadValue), result.output
    return str(result.exception)


def by(views):
    return {(view["who"], view["colluders"]): view for view in views}


# account


def test_account_has_the_views_of_the_contract():
    views = answered(*ACCOUNT, "--clients", "16", "--masks", "--colluders", "7")["views"]
    assert [(view["who"], view["colluders"]) for view in views] == [
        ("readers", 0), ("clients", 7),
        ("server", 0), ("server", 1), ("server", 7), ("server", 8), ("server", 14), ("everybody", 15),
    ]  # fmt: skip
    for view in views:
        assert set(view) == {"who", "colluders", "claim", "mu", "epsilon", "advantage", "assumes"}
        assert view["claim"] is True
        assert view["assumes"]
        honest = {"readers": 16, "everybody": 1}.get(view["who"], 16 - view["colluders"])
        assert 1 / sqrt(honest) <= view["mu"]["upper"] <= 1 / sqrt(honest) * (1 + 1e-9)
        assert view["mu"]["lower"] <= view["mu"]["upper"]


def test_without_masks_the_server_is_everybody():
    views = by(answered(*ACCOUNT, "--clients", "16")["views"])
    for colluders in (0, 1, 8, 14):
        assert set(views["server", colluders]) == {"who", "colluders", "claim", "why"}
        assert views["server", colluders]["claim"] is False
        assert "masks are off" in views["server", colluders]["why"]
    assert views["readers", 0]["mu"]["upper"] == pytest.approx(0.25, rel=1e-9)


def test_without_clients_nothing_changes():
    assert "views" not in answered(*ACCOUNT)
    assert "Who learns" not in told(*ACCOUNT)
    assert "masks = true needs the number of clients; add --clients" in refused(*ACCOUNT, "--masks")
    assert "colluders = 2 needs the number of clients" in refused(*ACCOUNT, "--colluders", "2")


def test_attempts_are_charged_against_everybody_and_leave_fewer_in_a_sum():
    views = by(answered(*ACCOUNT, "--clients", "16", "--masks", "--attempts", "11")["views"])
    assert views["everybody", 15]["mu"]["upper"] == pytest.approx(1.2, rel=1e-9)  # √(36/25)
    assert views["readers", 0]["mu"]["upper"] == pytest.approx(1.2 / sqrt(5), rel=1e-9)
    assert views["server", 8]["claim"] is False
    more = by(answered(*ACCOUNT, "--clients", "16", "--masks", "--attempts", "11", "--least-clients", "9")["views"])
    assert more["server", 8]["mu"]["upper"] == pytest.approx(1.2, rel=1e-9)


def test_several_noisy_steps_have_no_smaller_number():
    words = [*ACCOUNT, "--clients", "16", "--masks"]
    words[words.index("--local-steps") + 1] = "2"
    views = answered(*words)["views"]
    assert [view["claim"] for view in views] == [False] * (len(views) - 1) + [True]
    text = told(*words)
    assert "No smaller number is claimed against fewer: a round has several noisy steps" in text
    assert "Who learns" not in text


def test_chance_has_both_numbers_in_each_line():
    some = [*ACCOUNT, "--participation", "0.5", "--clients", "4", "--masks", "--least-clients", "4"]
    view = by(answered(*some)["views"])["server", 0]
    assert view["worst_case_participation"]["mu"]["upper"] == pytest.approx(0.5, rel=1e-9)
    assert view["epsilon"]["upper"] < view["worst_case_participation"]["epsilon"]["upper"]
    assert "others choose" in told(*some)
    assert "least_clients must be given" in refused(*ACCOUNT, "--participation", "0.5", "--clients", "4", "--masks")


def test_each_number_of_the_table_is_rounded_up_and_stands_with_its_assumption():
    words = [*ACCOUNT, "--clients", "10", "--masks"]
    lines = told(*words).splitlines()
    for view in answered(*words)["views"]:
        shown = [line for line in lines if line.split()[:2] == [view["who"], str(view["colluders"])]]
        assert len(shown) == 1
        line = shown[0]
        assert line.rstrip().endswith(view["assumes"])
        _, _, epsilon, mu = line.split()[:4]
        assert epsilon == up(view["epsilon"]["upper"])
        assert float(mu) >= view["mu"]["upper"]
        assert float(mu) == pytest.approx(view["mu"]["upper"], rel=1e-3)


def test_no_claim_stands_below_the_table_with_its_reason():
    lines = told(*ACCOUNT, "--clients", "10").splitlines()
    assert [line for line in lines if line.startswith("server")] == []
    why = "masks are off, so the server sees every single upload (privacy.masks = true)."
    assert f"No claim against the server and 0, 1, 5 or 8 clients: {why}" in lines


def test_equal_reasons_stand_once():
    lines = told(*ACCOUNT, "--clients", "10", "--masks", "--attempts", "8").splitlines()
    few = "a sum may have as few as 2 clients, and so many colluders may be all of them but one"
    (line,) = [line for line in lines if line.startswith("No claim")]
    assert line.startswith(f"No claim against 5 clients or the server and 5 or 8 clients: {few}: ")
    one = told(*ACCOUNT, "--clients", "3", "--least-clients", "1").splitlines()
    assert any(line.startswith("No claim against 1 client: a sum may have as few as 1 client, and") for line in one)


def test_a_narrow_terminal_has_the_reason_below_the_table():
    plan = PrivacyPlan(mechanism=NoisySteps(noise_multiplier=10.0, records=9, batch="full", local_steps=1), rounds=25)
    views = [each.as_json() for each in Guarantees(1e-5, 10).views(Crowd.alike(10), [plan])]
    console = Console(width=80, file=StringIO(), force_terminal=True, color_system=None)
    print_views(console, {"delta": 1e-5, "unit": "record", "views": views}, simulation=False)
    text = console.file.getvalue()
    table, below = text.split("No claim against")
    assert "masks are off" in below
    assert "masks" not in table
    assert len(below.splitlines()) <= 3


def test_masks_are_refused_where_a_client_may_be_alone():
    alone = "attempts = 9 leaves 1 client in a sum, and a client alone in a list is not masked"
    assert alone in refused(*ACCOUNT, "--clients", "10", "--masks", "--attempts", "9")
    assert alone in refused(*PLAN, "--target-mu", "1", "--clients", "10", "--masks", "--attempts", "9")
    one = "least_clients = 1 leaves 1 client in a sum"
    assert one in refused(*ACCOUNT, "--clients", "10", "--masks", "--least-clients", "1")
    assert answered(*ACCOUNT, "--clients", "10", "--masks", "--attempts", "8")["views"]


def test_a_simulation_says_so_in_every_view(capsys):
    plan = PrivacyPlan(mechanism=NoisySteps(noise_multiplier=10.0, records=9, batch="full", local_steps=1), rounds=25)
    views = Guarantees(1e-5, 4).views(Crowd.alike(4), [plan])
    statement = replace(Statement.of(plan), views=views, simulation=True)
    assert all(view["simulation"] for view in statement.as_json()["views"] if view["claim"])
    assert "readers: ε ≤" in repr(statement)
    assert repr(statement).count("a simulation, if") == len([v for v in views if v.honest]) - 1
    print_statement(statement)
    assert "Who learns how much about one record (a simulation)" in capsys.readouterr().out


def test_the_readmes_table_is_what_account_prints():
    page = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    (words, table) = re.findall(r"prifedsync (account [^\n]*--masks)\n```\n```text\n(.*?)\n```", page, flags=re.DOTALL)[0]
    printed = "\n".join(line.rstrip() for line in told(*words.split()).splitlines())
    assert table in printed


# plan


@pytest.mark.parametrize(("everybody", "noise"), [(None, 10 / 0.1 / 5), (0.25, 40.0), (2.0, 20.0)])
def test_plan_gives_the_least_noise_for_both_targets(everybody, noise):
    """25 honest clients: Δ√R·max(1/(μ₁√h), 1/μ₂), within 0.1 %."""
    other = [] if everybody is None else ["--target-mu", str(everybody)]
    said = answered(*PLAN, "--clients", "30", "--masks", "--coalition-mu", "0.1", "--colluders", "5", *other)
    assert noise <= said["noise_multiplier"] <= noise * 1.001
    views = by(said["views"])
    assert views["server", 5]["mu"]["upper"] <= 0.1
    assert views["everybody", 29]["mu"]["upper"] == said["mu"]["upper"] <= (everybody or 9)


def test_plan_for_sizes_meets_the_coalitions_target_for_each(tmp_path):
    sizes = tmp_path / "sizes.csv"
    sizes.write_text("client,records\na,20\nb,100\nc,1000\n")
    words = ["plan", "--sizes", str(sizes), "--batch", "10", "--rounds", "25", "--masks", "--coalition-mu", "0.3"]
    said = answered(*words, "--colluders", "1", "--merge", "equal")
    assert by(said["views"])["server", 1]["mu"]["upper"] <= 0.3
    noises = [each["noise_multiplier"] for each in said["clients"]]
    assert noises[0] > noises[1] == pytest.approx(noises[2], rel=1e-9)  # the smallest client is sampled most
    weighed = answered(*words, "--colluders", "1")
    assert by(weighed["views"])["server", 1]["mu"]["upper"] <= 0.3
    noises = [each["noise_multiplier"] for each in weighed["clients"]]
    assert noises[0] / noises[1] == pytest.approx(5, rel=1e-9)  # c_j·noise is the same for those at the floor
    assert noises[0] / noises[2] < 50
    assert "To meet μ = 0.3 against the server and 1 client" in " ".join(told(*words, "--colluders", "1").split())


WRONG = {
    "no colluders": (
        ["--clients", "30", "--masks", "--coalition-mu", "0.1"],
        "colluders must be given with --coalition-mu",
    ),
    "no masks": (["--clients", "30", "--colluders", "3", "--coalition-mu", "0.1"], "needs masks"),
    "no clients": (["--masks", "--colluders", "3", "--coalition-mu", "0.1"], "clients must be given"),
    "too many": (["--masks", "--colluders", "30", "--coalition-mu", "0.1", "--clients", "30"], "colluders = 30 must be"),
    "steps": (
        ["--masks", "--colluders", "3", "--coalition-mu", "0.1", "--clients", "30", "--local-steps", "2"],
        "nothing can be claimed",
    ),
}


@pytest.mark.parametrize(("words", "says"), WRONG.values(), ids=list(WRONG))
def test_plan_refuses(words, says):
    assert says in refused(*PLAN, *words)


def test_too_much_noise_is_an_answer_of_plan():
    said = answered(*PLAN, "--clients", "3", "--masks", "--coalition-mu", "0.0001", "--colluders", "1")
    assert said["meets_target"] is False
    assert "cannot be met" in said["reason"]


# configs and runs

COALITION = (
    "privacy.masks=true", "privacy.target.mu=1", "privacy.target.coalition.mu=0.2", "privacy.target.coalition.colluders=5"
)  # fmt: skip


def test_a_config_with_two_targets():
    found = forecast(load("digits", COALITION))
    noises = {job.plan.mechanism.noise_multiplier for job in found.jobs}
    exact = 2 * sqrt(30) / (0.2 * sqrt(5))
    assert len(noises) == 1
    assert exact <= noises.pop() <= exact * 1.001
    views = by(found.statement().as_json()["views"])
    assert views["server", 5]["mu"]["upper"] <= 0.2
    assert views["readers", 0]["assumes"].startswith("they see the released models only")


def test_training_plans_the_noise_that_the_forecast_says():
    config = load("digits", COALITION)
    expected = [job.plan for job in forecast(config).jobs]
    from prifedsync.run.prepare import prepare

    assert [job.plan for job in prepare(config).jobs] == expected


def test_a_client_with_noise_of_its_own_keeps_it_or_the_target_is_refused():
    with pytest.raises(BadValue, match="noise_multiplier of their own"):
        forecast(load("digits", (*COALITION, "clients.client-00.noise_multiplier=1.0")))


def test_a_coalition_needs_uploads_that_are_summed():
    with pytest.raises(BadValue, match="cannot be set: rule attentive needs more than the sum"):
        forecast(load("digits", (*COALITION, "rule.name=attentive")))


def tiny(**privacy):
    rng = np.random.default_rng(0)
    sizes = {"a": 20, "b": 30, "c": 40, "d": 20}
    clients = {name: (rng.normal(size=(n, 3)).clip(-1, 1), rng.integers(0, 2, n)) for name, n in sizes.items()}
    config = {
        "rounds": 4, "compare": [], "data": {"classes": 2}, "model": {"name": "softmax"},
        "local": {"learning_rate": 1.0, "local_steps": 1, "batch": "full"},
        "privacy": {"clip_norm": 1.0, "noise_multiplier": 4.0, **privacy},
    }  # fmt: skip
    return prifedsync.train(config, clients=clients)


def test_a_run_states_its_views_everywhere():
    result = tiny()
    views = {(view.who, view.colluders): view for view in result.guarantee.views}
    assert views["readers", 0].honest.mu.upper == pytest.approx(0.5, rel=1e-5)  # with its clip margin
    assert views["everybody", 3].honest.mu.upper == pytest.approx(1.0, rel=1e-5)
    assert result.record.guarantee["views"] == result.guarantee.as_json()["views"]
    assert "readers: ε ≤" in repr(result)
    again = RunRecord.from_json(json.loads(result.record.text()))
    assert again.guarantee["views"] == json.loads(json.dumps(result.record.guarantee["views"]))
    assert MASKS_SIMULATED not in result.record.warnings


def test_the_worst_client_of_each_view_is_stated():
    """With equal weights the smallest clients have the most noise in the mean, and the others hide them least."""
    config = load("digits", ("merge=equal", "privacy.noise_multiplier=11"))
    rule = rule_of(config)
    from prifedsync.data import Description, Task

    sizes = {"a": 20, "b": 100, "c": 400}
    jobs = jobs_of(config, Description(sizes, (1,), Task("regression", 0)), lambda steps, neighbours: 0.0, rule=rule)
    crowd = crowd_of(config, rule, jobs)
    assert crowd.spreads == pytest.approx((1.0 * 5.5, 0.2 * 5.5, 0.05 * 5.5))  # clip_norm 0.5
    views = Guarantees(1e-5, 3).views(crowd, [job.plan for job in jobs])
    alone = 2 * sqrt(30) / 11
    assert views[0].honest.mu.upper == pytest.approx(alone / sqrt(1 + 0.04 + 0.0025), rel=1e-9)


def test_a_plan_with_attempts_is_written_and_read():
    plan = PrivacyPlan(
        mechanism=NoisySteps(noise_multiplier=2.0, records=9, batch="full", local_steps=1), rounds=3, attempts=2
    )
    assert plan_as_json(plan)["attempts"] == 2
    assert plan_from_json(json.loads(json.dumps(plan_as_json(plan)))) == plan
    numbers = Guarantees(1e-5, 2)
    assert numbers.taken(plan, 3).epsilon.upper < numbers.planned(plan).epsilon.lower
    assert numbers.taken(plan, 5) == numbers.planned(plan).honest


def test_masks_in_one_process_are_called_simulated():
    from prifedsync.run.prepare import prepare
    from prifedsync.run.recording import _warnings, guarantees_of

    prepared = prepare(load("digits", ("privacy.masks=true",)))
    assert MASKS_SIMULATED in _warnings(prepared, (), guarantees_of(prepared), None)
    open_ones = prepare(load("digits"))
    assert MASKS_SIMULATED not in _warnings(open_ones, (), guarantees_of(open_ones), None)


def test_settings_are_chosen_for_two_targets():
    """One client stands for all there: where its noise is given, whether that is enough is judged with all clients."""
    from prifedsync.run.prepare import prepare

    auto = [*COALITION, "local.learning_rate=auto"]
    exact = 2 * sqrt(30) / (0.2 * sqrt(5))
    assert prepare(load("digits", auto)).jobs[0].plan.mechanism.noise_multiplier == pytest.approx(exact, rel=2e-3)
    louder = [*auto, "privacy.target.mu=0.3", "clients.client-03.noise_multiplier=20.0"]
    jobs = {job.client: job for job in prepare(load("digits", louder)).jobs}
    assert jobs["client-03"].plan.mechanism.noise_multiplier == 20.0
