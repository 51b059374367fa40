"""May this model leave: each fact leads to its decision, and is the reason that is given."""

import json
import shutil
from time import process_time

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

import prifedsync
from prifedsync.accounting import Budget
from prifedsync.record import RunRecord
from prifedsync.report.card import card_of
from prifedsync.report.contents import report_of
from prifedsync.report.guarantee import group, group_power
from prifedsync.report.html.page import page_of
from prifedsync.report.plans import Plans
from prifedsync.report.registry import entry_of
from prifedsync.report.verdict import RELEASED
from prifedsync.report.voiding import SCORES
from prifedsync.values import BadValue

from .runs import SAID, TESTED, config, records, rewritten, trained


def verdict_of(folder, *words, **given):
    return report_of(folder, words=[f"report.{word}" for word in words], **given).verdict


def audit(tmp_path, **holds):
    path = tmp_path / "audit.json"
    path.write_text(json.dumps(holds))
    return [path]


def test_a_run_of_which_all_is_said_may_leave(said):
    verdict = verdict_of(said)
    assert verdict.decision == "release"
    assert "μ ≤ 0.5001 is within the threshold for release, 1" in verdict.reason
    assert any("No audit was given" in each for each in verdict.would_change)


def test_what_is_not_said_is_to_be_reviewed(plain):
    verdict = verdict_of(plain)
    assert verdict.decision == "review"
    assert [ground.decision for ground in verdict.grounds] == ["review"] * 4
    assert "how many records a person may have" in verdict.grounds[0].what
    assert "Nobody has said the owner, purpose, receivers of this model" in verdict.grounds[1].what
    assert "No ledger was read for a, <script>, c" in verdict.grounds[2].what
    assert "whether settings were tried" in verdict.grounds[3].what
    once = "records_of_person=1"
    who = ("owner=Clinic", "purpose=a warning", "receivers=the clinics")
    assert verdict_of(plain, once, "other_releases=none", "tuning=none", *who[1:]).decision == "review"
    assert verdict_of(plain, "other_releases=none", "tuning=none", *who).decision == "review"
    assert verdict_of(plain, once, "other_releases=none", "tuning=none", *who).decision == "release"
    assert verdict_of(plain, once, "other_releases=none", "tuning=charged", *who).decision == "release"
    open_still = verdict_of(plain, once, "other_releases=none", 'tuning="not charged"', *who)
    assert open_still.decision == "review"
    assert "was not charged" in open_still.reason


@pytest.mark.parametrize(
    ("words", "decision"),
    [
        (("release_mu=0.501",), "release"),
        (("release_mu=0.499",), "review"),
        (("release_mu=0.1", "review_mu=0.499"), "do not release"),
        (("release_epsilon=1.99",), "review"),
        (("release_epsilon=2.0",), "release"),
        (("review_epsilon=1.99",), "do not release"),
    ],
)
def test_thresholds_are_the_owners(said, words, decision):
    """μ is 0.5000005 and ε is 1.9931."""
    verdict = verdict_of(said, *words)
    assert verdict.decision == decision
    assert any("release: μ ≤" in each for each in verdict.thresholds)


def test_too_little_noise_is_not_released(tmp_path):
    verdict = verdict_of(trained(tmp_path / "run", report=SAID, privacy__noise_multiplier=1.0))
    assert verdict.decision == "do not release"
    assert verdict.reason.startswith("μ ≤ 4.001 (ε ≤ ")
    assert "above the threshold for a review (μ ≤ 3)" in verdict.reason


def test_no_noise_is_not_released(tmp_path):
    changes = {"privacy__mechanism": "none", "privacy__noise_multiplier": None}
    report = report_of(trained(tmp_path / "run", report=SAID, **changes))
    assert report.verdict.decision == "do not release"
    assert "without noise" in report.verdict.reason
    assert report.guarantee is report.curve is report.progress is report.deltas is None
    assert report.attacks == report.conditions == ()
    assert report.no_guarantee == "no guarantee: trained without noise"
    alone = report_of(trained(tmp_path / "alone", TESTED, rule__name="alone", **changes))
    assert alone.verdict.decision == "do not release"
    assert "no released model" in alone.verdict.reason
    assert alone.leaving.uploads == 0
    assert "the draws of batches" in alone.leaving.stays
    (kept,) = (ground for ground in alone.verdict.grounds if "personal models in this folder" in ground.what)
    assert kept.next_step == "Leave models/personal with its clients."
    assert not any("the guarantee does not cover" in ground.what for ground in alone.verdict.grounds)


def test_one_client_has_no_others(tmp_path):
    clients = {"only": records()["a"]}
    prifedsync.train(config(), clients=clients, out=tmp_path / "run", progress=False)
    report = report_of(tmp_path / "run")
    first = "Protected is each record of the one client, against whoever receives the model."
    assert report.guarantee.sentences[0] == first
    assert "trained on the records of 1 client." in entry_of(report)["deployment"]["basic"]["description"]


def test_a_public_seed_on_private_records_is_not_released(tmp_path):
    report = report_of(trained(tmp_path / "run", report=SAID, privacy__randomness="seeded"))
    assert report.verdict.decision == "do not release"
    assert "can subtract the noise" in report.verdict.reason
    assert report.guarantee.about == "the algorithm"
    assert report.conditions[0].state == "broken"
    assert "the guarantee" not in {each.covered_by for each in report.leaving.releases}


def test_a_simulation_on_public_data_is_reviewed(said, copied):
    def simulated(data):
        data["config"]["data"]["source"] = "digits"
        data["config"]["privacy"]["randomness"] = "seeded"

    verdict = verdict_of(rewritten(copied(said), simulated))
    assert verdict.decision == "review"
    assert "simulation on a public data set (digits)" in verdict.reason


def test_a_rehearsal_is_not_released(said, copied):
    """Everybody was on one machine, so a page must not call it a run between machines."""

    def on_one_machine(data):
        counts = {each["name"]: {"sent": 4, "refused": 0, "lost": 0} for each in data["clients"]}
        data["deployment"] = {
            "carrier": "Flower 1.41.0", "rehearsal": True, "participation": "client", "answers": counts,
        }  # fmt: skip
        data["config"]["privacy"]["masks"] = True

    folder = rewritten(copied(said), on_one_machine)
    report = report_of(folder)
    assert report.verdict.decision == "do not release"
    assert report.verdict.reason == "This was a rehearsal on one machine, and no ledger charges it."
    assert "the deployment itself" in report.verdict.next_step
    assert (report.run.rehearsal, report.run.between_machines) == (True, False)
    texts = [*report.run.notices, report.leaving.where]
    assert any("rehearsal" in each for each in texts)
    assert not any("between machines" in each for each in texts)
    says = {"publishing": "do not publish: this was a rehearsal"}
    save_file(load_file(folder / RELEASED), folder / RELEASED, metadata=says)
    assert not any("says of itself" in ground.what for ground in report_of(folder).verdict.grounds)
    assert report.leaving.where.startswith("The run was rehearsed on one machine, carried by Flower")


def test_a_released_model_that_is_missing_is_reviewed(said, copied):
    folder = copied(said)
    (folder / "models" / "global.safetensors").unlink()
    verdict = verdict_of(folder)
    assert verdict.decision == "review"
    assert "The released model is not in the folder" in verdict.reason


def test_masks_that_were_simulated_are_reviewed(tmp_path):
    verdict = verdict_of(trained(tmp_path / "run", report=SAID, privacy__masks=True))
    assert verdict.decision == "review"
    assert "Masks were simulated" in verdict.reason


def test_an_unfinished_run_is_not_released(said, copied):
    folder = copied(said)
    (folder / "record.json").unlink()
    (folder / "checkpoint").mkdir()
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text("".join(lines[:2]) + lines[2][:7])  # it was killed while it wrote
    report = report_of(folder)
    assert not report.run.finished
    assert (report.run.rounds_done, report.run.rounds_planned) == (2, 4)
    assert report.verdict.decision == "do not release"
    assert "2 of 4 rounds and no record" in report.verdict.reason
    assert "secret key" in report.verdict.reason
    assert {item.status for item in report.items} == {"open"}
    assert report.title == SAID["name"]
    assert report.run.clients is None  # data.clients is of sources that the library divides
    assert "10 clients" not in card_of(report) + page_of(report) + str(entry_of(report))


def test_an_unfinished_run_between_machines_goes_on_at_its_server(said, copied):
    folder = copied(said)
    (folder / "record.json").unlink()
    (folder / "checkpoint").mkdir()
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    (folder / "rounds.jsonl").write_text("".join(json.dumps({**line, "answers": {}}) + "\n" for line in lines[:2]))
    verdict = verdict_of(folder)
    assert "secret key" not in verdict.reason  # owners have those of their draws
    assert verdict.next_step == "Go on with `prifedsync deploy serve`, and make the report again."


def test_a_key_that_was_left_behind_is_not_released(said, copied):
    folder = copied(said)
    (folder / "checkpoint").mkdir()
    verdict = verdict_of(folder)
    assert verdict.decision == "do not release"
    assert "secret key" in verdict.reason


def test_scores_without_noise_are_reviewed(tmp_path):
    verdict = verdict_of(trained(tmp_path / "run", TESTED, report=SAID))
    assert verdict.decision == "review"
    assert "computed without noise" in verdict.reason


def test_scores_that_stay_with_the_owners_do_not_leave(tmp_path):
    """The model card goes with the model, so it has none of them then."""
    folder = trained(tmp_path / "run", TESTED, report=SAID | {"scores": "stay with the owners"})
    report = report_of(folder)
    assert report.verdict.decision == "release"
    assert "Scores are computed without noise, and stay with the owners." in card_of(report)
    assert "worst client" not in card_of(report)
    (said,) = (each for each in report.conditions if each.what == SCORES)
    assert said.state == "cannot be checked here"
    assert "worst client" in card_of(report_of(folder, words=['report.scores="not said"']))


def test_events_of_tensorboard_leave_too_and_stay_with_the_scores(tmp_path):
    """Their scores are those of the log, without noise."""
    pytest.importorskip("tensorboard")
    folder = trained(tmp_path / "run", TESTED, report=SAID, performance__tensorboard=True)
    report = report_of(folder)
    (events,) = (each for each in report.leaving.releases if each.what.startswith("TensorBoard"))
    assert (
        events.what == "TensorBoard events: scores (accuracy) after rounds: the mean over clients, and the worst client's"
    )
    assert (events.amount, events.covered_by) == ("in events/", "nothing")
    assert "rounds.jsonl, events/ and this report" in report.verdict.next_step
    (said,) = (each for each in report.conditions if each.what == SCORES)
    assert "rounds.jsonl, events/ and this report" in said.here
    shutil.rmtree(folder / "events")
    report = report_of(folder)
    assert not any(each.what.startswith("TensorBoard") for each in report.leaving.releases)
    assert "record.json, rounds.jsonl and this report" in report.verdict.next_step


def test_events_without_scores_are_said_to_have_none(tmp_path):
    pytest.importorskip("tensorboard")
    releases = report_of(trained(tmp_path / "run", performance__tensorboard=True)).leaving.releases
    assert [each.what for each in releases if each.amount == "in events/"] == ["TensorBoard events"]


def test_words_of_spaces_say_nothing(said):
    assert verdict_of(said, 'owner="  "').decision == "review"


def test_where_the_change_of_a_round_is_noised_a_person_is_protected_as_one_record_is(tmp_path):
    """Such noise hides all records of a client together, so nobody is asked how many a person has."""
    words = {name: value for name, value in SAID.items() if name != "records_of_person"}
    changes = {"privacy__mechanism": "output-gaussian", "privacy__noise_multiplier": 8.0}
    report = report_of(trained(tmp_path / "run", report=words, **changes))
    assert report.verdict.decision == "release"
    assert report.guarantee.groups == ()
    assert not any("several records" in each for each in report.guarantee.sentences)
    assert not any("A person is read as one record" in each.what for each in report.conditions)


def test_models_that_are_kept_are_reviewed(tmp_path):
    verdict = verdict_of(trained(tmp_path / "run", report=SAID, rule__name="ditto"))
    assert verdict.decision == "review"
    assert "3 personal models in this folder have no guarantee" in verdict.reason
    assert "models/global.safetensors alone" in verdict.next_step


def test_a_person_with_several_records_counts(said):
    verdict = verdict_of(said, "records_of_person=4")
    assert verdict.decision == "review"
    assert "4 records, and is protected with ε ≤ 9.998, μ ≤ 2.001 only" in verdict.reason
    assert verdict_of(said, "records_of_person=7").decision == "do not release"
    assert verdict_of(said, "records_of_person=1").decision == "release"


@pytest.mark.parametrize(("records", "words", "decision"), [
    (2, [], "review"),
    (2, ["report.release_mu=0.1", "report.review_mu=0.1"], "do not release"),
    (10**6, [], "do not release"),
])  # fmt: skip
def test_a_person_is_judged_by_what_an_attacker_can_tell_where_there_is_no_mu(sampled, records, words, decision):
    report = report_of(sampled, words=[f"report.records_of_person={records}", *words])
    (own,) = (each for each in report.guarantee.groups if each.records == records)
    assert own.mu is None
    assert (own.epsilon.upper is None) == (records == 10**6)
    (ground,) = (each for each in report.verdict.grounds if "A person may have" in each.what)
    assert ground.decision == decision


def test_a_million_records_of_a_person_are_soon_computed(sampled):
    """Where power cannot rise any more it stays as it is; before that, stopping may only make the bound larger."""
    plans = Plans.of(RunRecord.read(sampled / "record.json").clients)
    begun = process_time()
    found = group(plans, 10**6, 1e-5)
    assert process_time() - begun < 2
    assert found.correct.upper == 1
    alpha = np.array([1e-9, 1e-3, 0.5])
    power = alpha
    for _ in range(5):
        power = plans.power(power)
    assert (group_power(plans, 5, alpha) == power).all()
    assert (group_power(plans, 10**6, alpha) >= power).all()


def test_a_delta_that_is_too_large_is_reviewed(tmp_path):
    verdict = verdict_of(trained(tmp_path / "run", report=SAID, privacy__delta=0.03))
    assert verdict.decision == "review"
    assert "δ = 0.03" in verdict.reason


# ---------------------------------------------------------------------- audits


@pytest.mark.parametrize(
    ("holds", "decision"),
    [
        ({"mu": {"lower": 0.3}, "confidence": 0.95}, "release"),
        ({"mu": {"lower": 0.51}, "confidence": 0.95}, "do not release"),
        ({"epsilon": {"lower": 1.9}, "delta": 1e-5}, "release"),
        ({"epsilon": {"lower": 2.0}, "delta": 1e-5}, "do not release"),
        ({"epsilon": {"lower": 1.0}, "delta": 1e-3}, "release"),
        ({"epsilon": {"lower": 1.9}, "delta": 1e-3}, "do not release"),  # the claim at this δ is 1.33
        ({"passed": True, "checks": [{"name": "noise", "passed": True}]}, "release"),
        ({"passed": False, "checks": [{"name": "noise", "passed": False}]}, "do not release"),
    ],
)
def test_an_audit_beside_the_claim(said, tmp_path, holds, decision):
    report = report_of(said, audits=audit(tmp_path, **holds))
    assert report.verdict.decision == decision
    (found,) = report.audits
    assert found.broken == (decision == "do not release")
    if decision == "do not release":
        assert "An audit contradicts the guarantee" in report.verdict.reason
        assert not any("No audit was given" in each for each in report.verdict.would_change)


def test_a_band_of_an_audit_is_in_the_picture(said, tmp_path):
    band = [[0.01, 0.9, 0.99], [0.1, 0.7, 0.9]]
    report = report_of(said, audits=audit(tmp_path, mu={"lower": 0.1}, band=band))
    assert report.curve.audit == (((0.01, 0.9, 0.99), (0.1, 0.7, 0.9)),)


def test_each_audit_has_a_band_of_its_own_from_the_smallest_level(said, tmp_path):
    (first,) = audit(tmp_path, mu={"lower": 0.1}, band=[[0.1, 0.7, 0.9], [0.01, 0.9, 0.99]])
    second = first.rename(tmp_path / "other.json")
    (first,) = audit(tmp_path, mu={"lower": 0.1}, band=[[0.2, 0.6, 0.8], [0.5, 0.3, 0.5]])
    report = report_of(said, audits=[second, first])
    assert report.curve.audit == (((0.01, 0.9, 0.99), (0.1, 0.7, 0.9)), ((0.2, 0.6, 0.8), (0.5, 0.3, 0.5)))
    text = page_of(report)
    assert text.count("audit: the range that was measured") == 2  # in the legend, and in the figure's data
    data = json.loads(text.split('id="chart-curve">', 1)[1].split("</script>", 1)[0])["data"]
    bands = [trace["x"] for trace in data if len(trace["x"]) == 2]
    assert bands == [[0.01, 0.1]] * 2 + [[0.2, 0.5]] * 2


@pytest.mark.parametrize("delta", [0, 1])
def test_an_audit_at_no_delta_is_refused_by_its_name(said, tmp_path, delta):
    with pytest.raises(BadValue, match=r"audit = audit\.json has a δ of"):
        report_of(said, audits=audit(tmp_path, epsilon={"lower": 1.0}, delta=delta))


@pytest.mark.parametrize("holds", [{}, {"mu": 3}, {"epsilon": {"lower": 1}}, {"checks": [{}]}])
def test_what_is_no_audit_is_refused(said, tmp_path, holds):
    with pytest.raises(BadValue, match=r"audit = audit\.json cannot be read"):
        report_of(said, audits=audit(tmp_path, **holds))


# ---------------------------------------------------------------------- records that were changed


@pytest.mark.parametrize(
    ("place", "said_as"),
    [
        (("mu",), "μ"),
        (("epsilon",), "ε"),
        (("advantage",), "advantage"),
        (("worst_case_participation", "mu"), "μ where others decide"),
        (("worst_case_participation", "epsilon"), "ε where others decide"),
    ],
)
@pytest.mark.parametrize("run", ["said", "sampled"])
def test_a_record_that_states_less_than_its_plans_is_not_used(request, copied, run, place, said_as):
    """Where there is no closed form, the plans give brackets: a record must be below the lower end to be wrong."""

    def smaller(data):
        part = data["guarantee"]
        for name in place:
            part = part[name]
        if part["upper"] is None:
            pytest.skip("this run has no bound")
        part |= {"lower": part["lower"] / 2, "upper": part["lower"] * 0.99}

    verdict = verdict_of(rewritten(copied(request.getfixturevalue(run)), smaller))
    assert verdict.decision == "do not release"
    assert f"The record states less than its plans: a smaller {said_as}" in verdict.reason


def test_a_record_that_states_what_its_plans_have_is_used(sampled):
    assert not any("less than its plans" in ground.what for ground in verdict_of(sampled).grounds)


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_more_slots_than_the_plan_are_not_released(said, copied, participation):
    def taken(data):
        data["config"]["participation"] = participation
        data["clients"][1] |= {"slots_taken": 5, "rounds_taken": 4, "noisy_queries": 5}

    report = report_of(rewritten(copied(said), taken))
    assert report.verdict.decision == "do not release"
    assert "More slots were taken than the plan has, at <script>" in report.verdict.reason
    assert [each.state for each in report.conditions if "more slots" in each.what] == ["broken"]


@pytest.mark.parametrize("queries", [3, 5])
def test_counts_that_do_not_agree_are_not_released(said, copied, queries):
    def miscounted(data):
        data["clients"][1]["noisy_queries"] = queries

    verdict = verdict_of(rewritten(copied(said), miscounted))
    assert verdict.decision == "do not release"
    assert "counts of noisy queries" in verdict.reason
    assert "<script>" in verdict.reason


def test_the_worst_ground_is_the_reason_and_all_are_kept(plain, tmp_path):
    verdict = verdict_of(plain, audits=audit(tmp_path, mu={"lower": 9.0}))
    assert [ground.decision for ground in verdict.grounds] == ["do not release", *["review"] * 4]
    assert verdict.reason == verdict.grounds[0].what


# ---------------------------------------------------------------------- other releases


@pytest.mark.parametrize("text", ["none", "None.", " NONE "])
def test_no_other_releases_is_said_in_one_word(said, text):
    assert verdict_of(said, f"other_releases={json.dumps(text)}").decision == "release"


def test_other_releases_that_are_told_of_are_quoted(said):
    verdict = verdict_of(said, "other_releases=a model in 2024")
    assert verdict.decision == "review"
    assert "“a model in 2024”" in verdict.reason


def test_of_the_grounds_of_many_ledgers_the_first_are_said_and_the_others_counted(said, copied, tmp_path):
    folder = copied(said)

    def grown(data):
        data["clients"] = [{**data["clients"][0], "name": f"c{at}"} for at in range(30)]

    rewritten(folder, grown)
    clients = RunRecord.read(folder / "record.json").clients
    paths = []
    for client in clients:
        paths.append(tmp_path / f"{client.name}.json")
        slots = {"rounds": 3, "attempts": 0}
        charged = {"unit": "mu", "amount": 0.1}
        paths[-1].write_text(json.dumps({"source": client.name, "charged": charged, "plan": client.plan, "slots": slots}))
    verdict = verdict_of(folder, receipts=paths)
    told = [ground for ground in verdict.grounds if "and the record disagree" in ground.what]
    assert len(told) == 20
    (further,) = (ground for ground in verdict.grounds if "further ground" in ground.what)
    assert further.what == "There are 10 further grounds about clients' ledgers."
    assert further.decision == "do not release"


@pytest.mark.parametrize(
    ("unit", "budget", "spent", "words", "decision", "reason"),
    [
        ("mu", 4.0, 0.6, (), "release", "speaks against it. With what ledgers have spent before it comes to μ ≤ 0.922"),
        ("mu", 4.0, 0.8, (), "review", "comes to μ ≤ 1.025, above the threshold for release, 1"),
        ("mu", 4.0, 9.0, (), "do not release", "above the threshold for a review, 3"),
        ("mu", 4.0, 15.75, (), "do not release", "above the threshold for a review, 3"),
        ("mu", 1.0, 0.75, (), "review", "The budget of a has nothing left"),
        ("mu", 1.0, 0.9, (), "review", "The budget of a has nothing left"),
        ("epsilon", 10.0, 0.6, (), "review", "no threshold of ε is set"),
        ("epsilon", 10.0, 0.6, ("release_epsilon=9",), "release", "within the threshold"),
        ("epsilon", 10.0, 0.6, ("release_epsilon=2",), "review", "above the threshold for release, 2"),
        ("epsilon", 10.0, 0.6, ("review_epsilon=2",), "do not release", "above the threshold for a review, 2"),
    ],
)
def test_what_a_ledger_has_spent_before_counts(said, tmp_path, unit, budget, spent, words, decision, reason):
    """The run costs μ² = 0.25, or about as much in ρ: with 0.8 spent before, √(0.8 + 0.25) = 1.0247."""
    plan = RunRecord.read(said / "record.json").clients[0].plan
    order = 8.0
    limit = budget**2 if unit == "mu" else Budget(epsilon=budget, order=order).limit
    charged = 0.25
    total = spent + charged
    receipt = {
        "source": "a", "charged": {"unit": unit, "order": order, "amount": charged}, "plan": plan,
        "slots": {"rounds": 4, "attempts": 0}, "signature": "of somebody",
    }  # fmt: skip
    ledger = {
        "source": "a", "unit": unit, "budget": budget, "delta": 1e-5, "order": order, "spent": total, "reserved": 0.0,
        "left": max(0.0, limit - total),
    }  # fmt: skip
    paths = []
    for at, client in enumerate(RunRecord.read(said / "record.json").clients):
        whose = {"source": client.name, "plan": client.plan}
        before = {} if at == 0 else {"spent": charged, "left": limit - charged}  # the others have this run only
        for name, holds in {"receipt": receipt | whose, "ledger": ledger | whose | before}.items():
            paths.append(tmp_path / f"{name}-{at}.json")
            paths[-1].write_text(json.dumps(holds))
    words = ("other_releases=", *words)
    report = report_of(said, words=[f"report.{word}" for word in words], receipts=paths)
    assert report.verdict.decision == decision
    assert any(reason in ground.what for ground in report.verdict.grounds)
    assert report.clients.rows[0].spent.signature == "carries a signature, not checked here"
