"""A record that contradicts itself, its log, its config, its plans or its model is not signed."""

import json
import re

import pytest
from safetensors.torch import load_file, save_file

from prifedsync.record import Guarantees, RunRecord, plan_from_json
from prifedsync.report import agreeing
from prifedsync.report.contents import report_of
from prifedsync.report.html.page import page_of
from prifedsync.report.plans import Plans
from prifedsync.report.registry import entry_of
from prifedsync.report.sources import sources_of
from prifedsync.values import BadValue

from .runs import RECORDS, SAID, TESTED, rewritten, trained

MODEL = "models/global.safetensors"


def grounds(folder, *words, **given):
    verdict = report_of(folder, words=[f"report.{word}" for word in words], **given).verdict
    return verdict.decision, [ground.what for ground in verdict.grounds]


def plans(data):
    return data["shared"]["plan"]


# ---------------------------------------------------------------------- what real runs leave


@pytest.mark.parametrize(
    "changes",
    [
        {"privacy__masks": True, "privacy__attempts": 2, "privacy__least_clients": 2},
        {"privacy__mechanism": "output-laplace", "privacy__noise_multiplier": 30.0},
        {"privacy__neighbours": "add-remove", "clients": {name: {"records": 64} for name in RECORDS}},
        {"clients": {"c": {"noise_multiplier": 6.0, "batch": 8, "local_steps": 2}}, "participation": 0.5, "rounds": 6},
        {"privacy__noise_multiplier": None, "privacy__target": {"mu": 0.4}, "local__batch": 8, "rule__name": "pfedme"},
        {"rule__name": "apfl", "rule__publish": True},
        {"rule__name": "alone", "rule__publish": True, "participation": 0.3},
        {"participation": 0.1, "rounds": 9},
        {"lost": 0.3, "rounds": 9},
        {"privacy__randomness": "seeded"},
    ],
)
def test_records_of_runs_agree(tmp_path, changes):
    folder = trained(tmp_path / "run", TESTED, report=SAID, **changes)
    sources = sources_of(folder)
    assert agreeing.contradictions(sources, sources.record) == []
    assert agreeing.understated(sources.record, Plans.of(sources.record.clients)) == []
    assert agreeing.changed_settings(sources, sources.record) == []
    assert agreeing.miscounted(sources.record) == []


# ---------------------------------------------------------------------- the record beside itself


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda data: data["shared"]["plan"][0].update(unit="person"), "the unit"),
        (lambda data: data["config"]["data"].update(person="patient"), "the unit"),
        (lambda data: data["config"]["privacy"].update(neighbours="add-remove"), "the adjacency relation"),
        (lambda data: data["guarantee"].update(neighbours="add-remove"), "the adjacency relation"),
        (lambda data: data["guarantee"].update(copies=2), "how many clients may hold the same records"),
        (lambda data: data["shared"]["plan"][0].update(copies=2), "how many clients may hold the same records"),
        (
            lambda data: data["config"]["data"].update(person="patient", person_clients=2),
            "how many clients may hold the same person",
        ),
        (lambda data: data["shared"]["plan"][0].update(rounds=5), "the number of rounds"),
        (lambda data: data["config"]["privacy"].update(attempts=3), "the number of rounds"),
        (lambda data: data["shared"]["plan"][0].update(participation=0.5), "participation"),
        (lambda data: data["guarantee"].update(delta=1e-4), "δ"),
        (lambda data: data["config"].update(clients={"c": {"noise_multiplier": 0.5}}), "the noise (c)"),
        (lambda data: data["config"]["privacy"].update(noise_multiplier=0.5), "the noise (a, <script>, c)"),
        (lambda data: data["config"]["privacy"].update(mechanism="none"), "the mechanism"),
        (lambda data: data["config"]["privacy"].pop("noise_multiplier"), "the noise (a, <script>, c)"),
        (lambda data: data["config"]["local"].update(batch=8), "the batches"),
        (lambda data: data["config"]["local"].update(local_steps=2), "the local steps (a, <script>, c)"),
        (lambda data: data["config"].update(clients={"c": {"local_steps": 2}}), "the local steps (c)"),
        (lambda data: data["config"]["rule"].update(name="pfedme", inner_steps=2), "the local steps"),
        (lambda data: data["config"]["rule"].update(name="apfl", publish=True), "the local steps"),
        (lambda data: data["config"].update(clients={"d": {"noise_multiplier": 0.5}}), "the names of clients"),
        (lambda data: data["clients"][2].update(name="a"), "the names of clients"),
        (lambda data: data["clients"][0].update(records=None), "the numbers of records (a)"),
        (lambda data: data["clients"][0].update(records=41), "the numbers of records (a)"),
        (lambda data: data["guarantee"]["mu"].update(alpha_min=0.01), "the range of μ"),
        (lambda data: data["shared"]["taken"][0]["mu"].update(alpha_min=0.01), "the range of μ"),
        (lambda data: data["clients"][0].update(plan=None), "clients without a plan or its numbers (a)"),
        (lambda data: data["clients"][0].update(taken=None), "clients without a plan or its numbers (a)"),
        (lambda data: data["clients"][0].update(rounds_taken=3), "slots and rounds of a"),
        (
            lambda data: data["clients"][0].update(rounds_taken=-1, slots_taken=-1, noisy_queries=-1),
            "slots and rounds of a",
        ),
        (lambda data: data["clients"][0].update(rounds_taken=3, slots_taken=3, noisy_queries=3), "the log and the rounds"),
    ],
)
def test_a_record_that_contradicts_itself_is_not_released(said, copied, change, what):
    decision, found = grounds(rewritten(copied(said), change))
    assert decision == "do not release"
    (odd,) = (each for each in found if "contradicts itself" in each)
    assert what in odd


@pytest.mark.parametrize("field", ["delta", "neighbours"])
def test_a_record_whose_config_lacks_what_every_version_had_is_refused(said, copied, field):
    """Else whoever takes it away may state any."""
    with pytest.raises(BadValue, match=rf"cannot be read: KeyError\('{field}'\)"):
        report_of(rewritten(copied(said), lambda data: data["config"]["privacy"].pop(field)))


def test_persons_of_a_table_are_named_in_its_config(said, copied):
    """Else several records of a person would go unasked."""

    def of_persons(data):
        data["config"]["data"]["source"] = "csv"
        for plan in plans(data):
            plan["unit"] = "person"
        data["unit"] = data["guarantee"]["unit"] = "person"

    assert any("contradicts itself: the unit" in each for each in grounds(rewritten(copied(said), of_persons))[1])


@pytest.mark.parametrize(("kind", "value"), [("mu", 0.9), ("epsilon", 3.0), ("advantage", 0.3)])
def test_noise_that_no_target_asks_for_contradicts_the_record(tmp_path, kind, value):
    """A plan with more noise states less, and its record agrees with it everywhere but in its target."""
    target = {"privacy__noise_multiplier": None, "privacy__target": {kind: value}}
    folder = trained(tmp_path / "run", report=SAID, **target)
    assert grounds(folder)[0] == "release"

    def quieter(data):
        for plan in plans(data):
            plan["noise_multiplier"] *= 1.01
        rows = Guarantees(data["guarantee"]["delta"], len(data["clients"]))
        made = rows.worst(map(plan_from_json, plans(data)))
        data["guarantee"] = made.as_json()
        data["shared"]["planned"] = data["shared"]["taken"] = [made.honest.as_json()] * len(data["shared"]["planned"])

    decision, found = grounds(rewritten(folder, quieter))
    assert decision == "do not release"
    assert found[0] == "The record contradicts itself: the noise (a, <script>, c)."


@pytest.mark.parametrize("lines", [3, 5])
def test_a_log_of_other_rounds_contradicts_the_record(said, copied, lines):
    folder = copied(said)
    first = json.loads((folder / "rounds.jsonl").read_text().splitlines()[0])
    text = "".join(json.dumps(first | {"round": at}) + "\n" for at in range(1, lines + 1))
    (folder / "rounds.jsonl").write_text(text)
    assert "The record contradicts itself: the log and the rounds." in grounds(folder)[1]


def between(said, copied, participation="clients", sent=4):
    def deployed(data):
        counts = {each["name"]: {"sent": sent, "refused": 0, "lost": 0} for each in data["clients"]}
        data["deployment"] = {"carrier": "Flower 1.41.0", "participation": participation, "answers": counts}

    return rewritten(copied(said), deployed)


def test_more_answers_than_slots_contradict_the_record(said, copied):
    assert (
        "The record contradicts itself: slots and answers of a, <script>, c." in grounds(between(said, copied, sent=5))[1]
    )


def test_where_the_server_chose_all_rounds_must_be_planned(said, copied):
    def coin(data):
        plans(data)[0]["participation"] = data["config"]["participation"] = 0.5

    folder = rewritten(between(said, copied, "server"), coin)
    assert any("participation" in each for each in grounds(folder)[1])


# ---------------------------------------------------------------------- the record beside its plans


def test_a_curve_that_promises_too_much_is_not_used(sampled, copied):
    def flat(data):
        data["guarantee"]["curve"] = [[alpha, min(1 - alpha, beta * 1.05)] for alpha, beta in data["guarantee"]["curve"]]

    assert any("a smaller bound on attacks" in each for each in grounds(rewritten(copied(sampled), flat))[1])


@pytest.mark.parametrize("which", ["planned", "taken"])
@pytest.mark.parametrize("kind", ["epsilon", "mu", "advantage"])
def test_a_row_that_states_less_is_not_used(sampled, copied, which, kind):
    def smaller(data):
        data["shared"][which][0][kind].update(lower=0.0, upper=data["shared"][which][0][kind]["lower"] * 0.9)

    decision, found = grounds(rewritten(copied(sampled), smaller))
    assert decision == "do not release"
    assert any("states less than its plans: a smaller row of a" in each for each in found)


def test_a_headline_below_a_row_is_not_used(said, copied):
    def larger(data):
        data["shared"]["planned"][0]["mu"]["upper"] *= 1.01

    assert any("a smaller row of" in each for each in grounds(rewritten(copied(said), larger))[1])


def test_a_view_that_states_less_is_not_used(tmp_path):
    """Three clients hide each other: no view can be below μ ÷ √3."""
    folder = trained(tmp_path / "run", report=SAID, privacy__masks=True)
    assert not any("states less" in each for each in grounds(folder)[1])

    def smaller(data):
        view = next(view for view in data["guarantee"]["views"] if view["who"] == "readers")
        assert view["mu"]["upper"] == pytest.approx(data["guarantee"]["mu"]["upper"] / 3**0.5, rel=1e-6)
        view["mu"]["upper"] *= 0.99

    assert any("a smaller number against readers" in each for each in grounds(rewritten(folder, smaller))[1])


def test_without_masks_the_server_has_no_smaller_number(said, copied):
    def claimed(data):
        views = data["guarantee"]["views"]
        readers = next(view for view in views if view["who"] == "readers")
        at = next(at for at, view in enumerate(views) if view["who"] == "server")
        views[at] = {**readers, "who": "server", "assumes": "masks hold, and 3 of 3 clients never collude"}

    decision, found = grounds(rewritten(copied(said), claimed))
    assert decision == "do not release"
    assert any("a smaller number against server" in each for each in found)


def test_what_is_known_of_who_took_part_counts(tmp_path):
    """Whoever took part in all of 30 rounds by coins of 0.3 has the μ of 30 rounds, and not what was expected."""
    folder = trained(tmp_path / "run", report=SAID, participation=0.3, rounds=30, privacy__randomness="system")
    record = RunRecord.read(folder / "record.json")
    assert any(client.taken["mu"]["upper"] != record.guarantee["mu"]["upper"] for client in record.clients)

    def busy(data):
        """As if one client's coin had said yes each time."""
        plan = plans(data)[data["clients"][0]["plan"]]
        all_rounds = data["guarantee"]["worst_case_participation"]
        data["shared"]["taken"].append(all_rounds)
        data["clients"][0] |= {
            "rounds_taken": plan["rounds"], "slots_taken": plan["rounds"], "noisy_queries": plan["rounds"],
            "taken": len(data["shared"]["taken"]) - 1,
        }  # fmt: skip

    report = report_of(rewritten(folder, busy), words=["report.release_mu=1.3", "report.review_mu=1.35"])
    assert report.guarantee.mu.upper < 1.3
    assert report.guarantee.given_who_took_part["mu"].upper == pytest.approx(2 / 8 * 30**0.5, rel=1e-4)
    assert report.verdict.decision == "do not release"
    assert "given who took part is above the threshold for a review" in report.verdict.reason
    assert any("who took part, and the server has seen it" in each for each in report.guarantee.sentences)
    mu = report.guarantee.given_who_took_part["mu"].text
    loss = entry_of(report)["deployment"]["privacy_loss"]
    assert f"μ ≤ {mu} for" in loss["privacy_parameters_details"]
    (pin,) = re.findall(r'class="pin[^"]*"[^>]*><span[^>]*>([^<]*)</span>', page_of(report).replace("\u00a0", " "))
    assert pin == f"one record given who took part: μ ≤ {mu}"
    assert "Another ground makes the verdict" not in page_of(report)


def test_more_plans_than_are_compared_are_reviewed(said, copied):
    def many(data):
        first = plans(data)[0]
        data["shared"]["plan"] = [{**first, "batch": 8, "records": 40 + at, "noise_multiplier": 8.0} for at in range(11)]
        client = data["clients"][0]
        data["clients"] = [{**client, "name": f"c{at}", "plan": at, "records": 40 + at} for at in range(11)]

    assert any("so many different plans" in each for each in grounds(rewritten(copied(said), many))[1])
    assert not any("so many different plans" in each for each in grounds(said)[1])


# ---------------------------------------------------------------------- the files


def resaved(folder, metadata):
    weights = load_file(folder / MODEL)
    save_file(weights, folder / MODEL, metadata=metadata)
    return folder


@pytest.mark.parametrize(
    ("metadata", "decision", "what"),
    [
        ({"publishing": "may be published: covered by the guarantee in record.json"}, "release", "nothing speaks against"),
        ({"publishing": "not private if published: no guarantee"}, "do not release", "says of itself: “not private"),
        ({"publishing": "do not publish: this was a rehearsal"}, "do not release", "says of itself: “do not publish"),
        ({"publishing": "a simulation: the guarantee is"}, "do not release", "says of itself: “a simulation"),
        ({"publishing": "by all means"}, "review", "does not say whether it may be published"),
        ({}, "review", "does not say whether it may be published"),
        (None, "review", "does not say whether it may be published"),
    ],
)
def test_what_the_released_model_says_of_itself_counts(said, copied, metadata, decision, what):
    found, every = grounds(resaved(copied(said), metadata))
    assert found == decision
    assert any(what in each for each in every)


@pytest.mark.parametrize("change", [lambda content: b"", lambda content: content[:-3], lambda content: b"PK" + content])
def test_a_released_model_that_cannot_be_read_is_not_released(said, copied, change):
    folder = copied(said)
    (folder / MODEL).write_bytes(change((folder / MODEL).read_bytes()))
    decision, found = grounds(folder)
    assert decision == "do not release"
    assert any("The released model cannot be read" in each for each in found)


def test_personal_models_that_are_not_private_say_so_themselves(tmp_path):
    """A record that was changed cannot make them private."""
    folder = trained(tmp_path / "run", report=SAID, rule__name="ditto")
    rewritten(folder, lambda data: data.update(personal_models="may be published: covered by the guarantee in record.json"))
    decision, found = grounds(folder)
    assert decision == "review"
    assert any("3 personal models in this folder have no guarantee" in each for each in found)


def test_another_config_in_the_folder_is_reviewed(said, copied):
    folder = copied(said)
    path = folder / "config.toml"
    text = path.read_text()
    path.write_text(text.replace("noise_multiplier = 8.0", "noise_multiplier = 2.0"))
    decision, found = grounds(folder)
    assert decision == "review"
    assert any("they differ in privacy.noise_multiplier." in each for each in found)
    path.write_text(text.replace('name = "Sepsis warning"', 'name = "Another"'))  # the owner's words may come later
    assert grounds(folder)[0] == "release"
    path.write_text("rounds = ")
    assert any("which cannot be read" in each for each in grounds(folder)[1])


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda config: config.update(clients={"c": {"noise_multiplier": 8.0}}), "clients.c"),
        (lambda config: config["data"].update(source={}), "data.source"),
        (lambda config: config["data"].update(source="digits"), "data.source"),
    ],
)
def test_a_record_with_another_config_is_reviewed(said, copied, change, field):
    """Also where the record was changed, as by calling the records public."""
    decision, found = grounds(rewritten(copied(said), lambda data: change(data["config"])))
    assert decision == "review"
    assert any(f"they differ in {field}." in each for each in found)


@pytest.mark.parametrize("field", ["privacy.attempts", "data.person", "local.momentum", "merge"])
def test_a_field_that_was_taken_from_the_record_is_missed(said, copied, field):
    """It stands in the file that the run has written."""

    def without(data):
        *tables, name = field.split(".")
        part = data["config"]
        for table in tables:
            part = part[table]
        del part[name]

    decision, found = grounds(rewritten(copied(said), without))
    assert decision == "review"
    assert any(f"they differ in {field}." in each for each in found)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda privacy: privacy.update(least_clients=3), "privacy.least_clients"),
        (lambda privacy: privacy["target"].update(mu=0.5), "privacy.target.mu"),
        (lambda privacy: privacy["target"]["coalition"].update(mu=0.5), "privacy.target.coalition.mu"),
    ],
)
def test_a_field_that_was_put_into_the_record_is_noticed(said, copied, change, field):
    decision, found = grounds(rewritten(copied(said), lambda data: change(data["config"]["privacy"])))
    assert decision == "review"
    assert any(f"they differ in {field}." in each for each in found)


@pytest.mark.parametrize("name", ["config.toml", "rounds.jsonl"])
def test_a_record_that_stands_alone_is_reviewed(said, copied, name):
    """Whoever changes a record could else take away what contradicts it."""
    folder = rewritten(copied(said), lambda data: data["config"]["data"].update(source="digits"))
    (folder / name).unlink()
    report = report_of(folder)
    assert report.verdict.decision == "review"
    assert any(f"not compared with {name}: not in the folder" in ground.what for ground in report.verdict.grounds)
    assert report.run.rounds_done == report.progress.done == 4


def test_an_empty_log_contradicts_the_record(said, copied):
    folder = copied(said)
    (folder / "rounds.jsonl").write_text("")
    decision, found = grounds(folder)
    assert decision == "do not release"
    assert any("the log and the rounds" in each for each in found)


def test_no_bound_on_epsilon_is_reviewed(said, copied):
    decision, found = grounds(rewritten(copied(said), lambda data: data["guarantee"]["epsilon"].update(upper=None)))
    assert decision == "review"
    assert "There is no bound on ε at δ = 1e-5." in found


def test_scores_in_the_log_alone_are_scores(said, copied):
    folder = copied(said)
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    lines = [line | {"released": {"mean": 0.9, "worst": 0.8}} for line in lines]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    decision, found = grounds(folder)
    assert decision == "review"
    assert any("computed without noise" in each for each in found)


def test_statistics_of_private_records_are_scores(said, copied):
    labels = {"labels": {"names": ["0", "1"], "shares": [[0.5, 0.5]] * 3}, "clipping": None}
    decision, found = grounds(rewritten(copied(said), lambda data: data.update(statistics=labels)))
    assert decision == "review"
    assert any("computed without noise" in each for each in found)
