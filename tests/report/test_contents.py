"""Every number of a report against a direct computation, on its safe side."""

import json
import math
import subprocess
import sys
from hashlib import sha256
from math import isclose, sqrt

import numpy as np
import pytest
from scipy.stats import norm

from prifedsync.fdp import gaussian
from prifedsync.record import RunRecord, plan_from_json
from prifedsync.report import graphs, sources
from prifedsync.report.attacks import BASES, attacks_of
from prifedsync.report.card import card_of, text
from prifedsync.report.contents import report_of
from prifedsync.report.guarantee import BEFORE_COINS, group
from prifedsync.report.html.page import page_of
from prifedsync.report.plans import MOST, Plans
from prifedsync.run.deployment import deployment_of

from .runs import RECORDS, SAID, rewritten, trained

WITHOUT = """
import sys
sys.modules["torch"] = None
sys.modules["plotly"] = None
from pathlib import Path
from prifedsync.report.contents import report_of
print(report_of(Path(sys.argv[1])).text())
"""
NO_NOISE = {"privacy__mechanism": "none", "privacy__noise_multiplier": None}
OUTPUT = {"privacy__mechanism": "output-laplace", "privacy__noise_multiplier": 30.0}


def plan_of(folder, client=0):
    return plan_from_json(RunRecord.read(folder / "record.json").clients[client].plan)


def mu_of(noise_multiplier, rounds, margin):
    """Full batches under replacement: a sum of rounds Gaussian releases, each of μ = 2(1 + margin) ÷ noise."""
    return 2 * (1 + margin) * sqrt(rounds) / noise_multiplier


def epsilon_of(mu, delta):
    """ε of a Gaussian at δ, by bisection of the closed form."""
    low, high = 0.0, 100.0
    for _ in range(200):
        middle = (low + high) / 2
        found = norm.cdf(mu / 2 - middle / mu) - math.exp(middle) * norm.cdf(-mu / 2 - middle / mu)
        low, high = (middle, high) if found > delta else (low, middle)
    return high


# ---------------------------------------------------------------------- the guarantee in numbers


def test_the_guarantee_is_that_of_the_noise_and_the_rounds(plain):
    said = report_of(plain).guarantee
    mu = mu_of(8.0, 4, plan_of(plain).mechanism.clip_margin)
    assert said.mu.upper == pytest.approx(mu, rel=1e-9)
    assert float(said.mu.text) >= mu
    assert said.epsilon.upper == pytest.approx(epsilon_of(mu, 1e-5), rel=1e-6)
    assert float(said.epsilon.text) >= epsilon_of(mu, 1e-5)
    for wrong in (mu * 2 / 3, mu * 1.5, mu_of(8.0, 3, 0), mu_of(8.0, 5, 0)):  # ⅔ or 1½ of the noise, a round more or less
        assert not isclose(said.mu.upper, wrong, rel_tol=0.05)
    assert said.correct.upper == pytest.approx(norm.cdf(mu / 2), abs=1e-6)
    assert said.hits_at_1_percent.upper == pytest.approx(norm.cdf(norm.ppf(0.01) + mu), abs=1e-6)
    assert said.about == "these files"


@pytest.mark.parametrize("end", ["epsilon", "mu", "advantage"])
def test_upper_ends_are_printed(plain, copied, end):
    """With brackets that are far apart, a number from the wrong end would be seen."""

    def wide(data):
        data["guarantee"][end]["upper"] *= 1.5

    before, after = report_of(plain).guarantee, report_of(rewritten(copied(plain), wide)).guarantee
    assert getattr(after, end).upper == pytest.approx(1.5 * getattr(before, end).upper)
    assert getattr(after, end).text != getattr(before, end).text


def test_four_attacks_have_the_bound_of_the_curve(plain):
    report = report_of(plain)
    mu = report.guarantee.mu.upper
    assert [attack.name for attack in report.attacks] == [
        "membership", "attribute inference", "re-identification", "reconstruction"
    ]  # fmt: skip
    for attack in report.attacks:
        assert [rate.base for rate in attack.rates] == list(BASES) == [0.001, 0.01, 0.1, 0.5]
        for rate in attack.rates:
            exact = norm.cdf(norm.ppf(rate.base) + mu)  # 1 − G_μ(b)
            assert exact <= rate.at_most.upper <= exact * (1 + 1e-6)
            assert exact <= float(rate.at_most.text.rstrip("%")) / 100 <= exact * 1.05
            assert rate.at_most.text in rate.sentence


def test_what_is_known_of_coins_is_said_beside_the_bounds_that_leave_it_out(sampled, plain, copied):
    """The server has seen who took part, and then more is known of whoever took part most."""

    def busy(data):
        for taken in data["shared"]["taken"]:
            taken["mu"]["upper"] = 2 * data["guarantee"]["mu"]["upper"]
            taken["epsilon"]["upper"] = 2 * data["guarantee"]["epsilon"]["upper"]

    folder = rewritten(copied(sampled), busy)
    report = report_of(folder)
    known = report.guarantee.known
    assert known["mu"].upper == 2 * report.guarantee.mu.upper
    before = [report.attacks_note, *report.guarantee.sentences]
    assert sum("they can be larger" in each for each in before) == 2
    (numbers,) = (each.text for each in report.items if each.number == 3)
    assert f"given who took part: μ ≤ {known['mu'].text}, ε ≤ {known['epsilon'].text}" in numbers
    assert "they can be larger" not in str(report_of(plain).as_json())

    rewritten(folder, lambda data: data["guarantee"]["epsilon"].update(upper=0.9))
    assert "1 to 20" in report_of(folder).guarantee.judgement


def slots_taken(folder, slots):
    """The same run, as if its coins had given the clients so many slots."""

    def tossed(data):
        data["shared"]["taken"] = []
        for at, (client, count) in enumerate(zip(data["clients"], slots, strict=True)):
            f = plan_from_json(data["shared"]["plan"][client["plan"]]).guarantee(taken=count)
            found = {"epsilon": f.epsilon(1e-5), "mu": f.mu(1e-5), "advantage": f.advantage()}
            data["shared"]["taken"].append({name: {"lower": b.lower, "upper": b.upper} for name, b in found.items()})
            client |= {"taken": at, "slots_taken": count, "rounds_taken": count, "noisy_queries": count}

    return rewritten(folder, tossed)


def test_coins_are_said_where_mu_and_epsilon_do_not_rise(tmp_path):
    """μ is about small α: it may fall given the slots that were taken, while an attacker is right more often."""
    changes = {"local__batch": 8, "participation": 0.15, "rounds": 8, "privacy__noise_multiplier": 1.5}
    report = report_of(slots_taken(trained(tmp_path / "run", report=SAID, **changes), [2, 3, 1]))
    found = report.guarantee
    given = found.given_who_took_part
    assert all(given[name].upper < found.known[name].upper for name in ("mu", "epsilon"))
    assert found.known["mu"] == found.mu  # no number is smaller than it is before the coins
    assert found.known["epsilon"] == found.epsilon
    assert found.advantage.text == "9.1%"
    assert found.known["advantage"].text == "14.3%"
    assert found.known_correct.text == "57.2%"
    assert found.correct.text == "54.6%"

    said = [each for each in found.sentences if "the server has seen it" in each]
    assert "right at most 57.2% of the time" in said[0]
    assert f"μ ≤ {found.mu.text} and ε ≤ {found.epsilon.text} hold for every client" in said[0]
    assert text(said[0]) in card_of(report)
    assert "can be larger" in report.attacks_note
    assert "told apart at most 57.2% of the time" in report.items[2].text
    assert "can be larger" in report.items[20].text
    page = page_of(report)
    everyday = page[page.index('class="everyday"') : page.index(">Thresholds<")]
    assert "Given that, more can be found" in everyday
    tiles = page[page.index('class="tiles"') : page.index("The measure is")]
    assert all(each in tiles for each in (found.mu.text, found.epsilon.text, "57.2%", "and can be larger"))
    for section in ("curve", "epsilon", "attacks"):
        start = page.index(f'<section id="{section}"')
        assert BEFORE_COINS in page[start : page.index("</section>", start)]


def test_what_is_known_of_coins_is_never_less_than_before_them(sampled, copied):
    """Whoever took no slot at all: its own numbers are next to nothing."""
    report = report_of(slots_taken(copied(sampled), [0, 0, 0]))
    found = report.guarantee
    assert found.given_who_took_part["mu"].upper < 1e-6
    assert found.known == {"mu": found.mu, "epsilon": found.epsilon, "advantage": found.advantage}
    assert found.more_is_known


def test_without_coins_nothing_is_said_of_them(plain):
    report = report_of(plain)
    assert not report.guarantee.more_is_known
    assert BEFORE_COINS not in page_of(report)
    assert "who took part" not in page_of(report)[: page_of(report).index('id="leaving"')]


def test_attacks_on_persons_ask_for_persons(plain):
    record = RunRecord.read(plain / "record.json")
    asked = [each.question for each in attacks_of(record.guarantee, Plans.of(record.clients), "person")]
    assert asked[2:] == ["who the person behind these records is", "what all records of a person contain, closely enough"]


def test_attacks_are_on_the_safe_side_of_a_bracket(sampled):
    """The certified lower curve, and not the upper one: the two differ where batches are drawn."""
    f = plan_of(sampled).guarantee()
    other = [plan_of(sampled, client).guarantee() for client in (1, 2)]
    for rate in report_of(sampled).attacks[0].rates:
        worst = max(1 - float(each(rate.base)) for each in (f, *other))
        assert worst <= rate.at_most.upper <= worst + 1e-9
        assert rate.at_most.upper > max(1 - float(each.upper(rate.base)) for each in (f, *other))


def test_groups_of_full_batches_add_up(plain):
    report = report_of(plain)
    mu = report.guarantee.mu.upper
    assert [each.records for each in report.guarantee.groups] == [2, 5, 10]
    for each in report.guarantee.groups:
        assert each.mu.upper == pytest.approx(each.records * mu, rel=1e-9)
        assert each.epsilon.upper == pytest.approx(epsilon_of(each.records * mu, 1e-5), rel=1e-6)
        assert each.correct.upper == pytest.approx(norm.cdf(each.records * mu / 2), abs=1e-6)


def test_groups_elsewhere_are_no_smaller_than_those_of_one(sampled):
    """No closed form: what is proved in general is above what holds, and rises with the records."""
    report = report_of(sampled)
    one = report.guarantee.epsilon.upper
    groups = report.guarantee.groups
    assert all(each.mu is None for each in groups)
    assert all(each.epsilon.upper is None or each.epsilon.upper > one for each in groups)
    assert groups[0].epsilon.upper > 1.5 * one
    assert report.guarantee.correct.upper < groups[0].correct.upper < groups[1].correct.upper <= groups[2].correct.upper


def test_a_group_from_the_curve_is_above_the_closed_form(plain):
    """The general way, on a Gaussian where the truth is known."""

    class NoClosedForm(Plans):
        gaussian_mu = None

    plans = NoClosedForm((plan_of(plain),), True, 40)
    mu = plan_of(plain).guarantee().mu().upper
    for records in (2, 5):
        found = group(plans, records, 1e-5)
        exact = norm.cdf(records * mu / 2)
        assert exact <= found.correct.upper <= exact + 0.005
        assert epsilon_of(records * mu, 1e-5) <= found.epsilon.upper <= 1.01 * epsilon_of(records * mu, 1e-5)


def test_the_owner_states_how_many_records_a_person_has(plain):
    said = report_of(plain, words=["report.records_of_person=3"])
    assert [each.records for each in said.guarantee.groups] == [2, 3, 5, 10]


def test_hypotheses_name_the_smallest_client_as_it_is(plain):
    first, second = report_of(plain).guarantee.hypotheses
    assert "a (40 records)" in first
    assert first != second


def test_a_delta_above_one_over_n_of_any_client_is_warned_of(tmp_path):
    """The clients have 40, 50 and 60 records: with δ = 0.02, one record of 60 may be published in the clear."""
    report = report_of(trained(tmp_path / "run", privacy__delta=0.02))
    assert "δ = 0.02 is not below 1/60, one over the records of the largest client" in report.guarantee.delta_warning
    assert [row.delta for row in report.deltas.rows if row.warning] == [0.02]
    assert report_of(trained(tmp_path / "less", privacy__delta=0.016)).guarantee.delta_warning == ""


# ---------------------------------------------------------------------- the lines


def test_the_curve_is_certified_at_every_point(sampled):
    curve = report_of(sampled).curve
    alpha = np.array(curve.alpha)
    made = [plan_of(sampled, client).guarantee() for client in range(3)]
    lowest = np.min([f(alpha) for f in made], axis=0)
    assert np.all(np.array(curve.certified) <= lowest)
    assert np.all(np.array(curve.certified) >= lowest - 1e-6)
    assert np.all(np.array(curve.if_others_choose) <= np.array(curve.certified) + 1e-12)
    assert curve.identity == tuple(1 - alpha)
    assert curve.gaussian_mu == report_of(sampled).guarantee.mu.upper
    assert np.allclose(curve.gaussian, gaussian(curve.gaussian_mu)(alpha), rtol=1e-6, atol=1e-12)
    inside = (alpha >= 1e-5) & (alpha <= 1 - 1e-5)
    assert np.all(np.array(curve.gaussian)[inside] <= lowest[inside] + 1e-9)
    assert curve.asymptotic_note.endswith("not a guarantee")
    assert curve.asymptotic_mu == report_of(sampled).guarantee.paper_mu
    assert not np.allclose(curve.asymptotic, curve.certified, atol=1e-3)


def test_what_is_said_at_a_point_is_rounded_up(plain):
    curve = report_of(plain).curve
    assert len(curve.says) == len(curve.alpha)
    at = curve.alpha.index(0.01)
    exact = norm.cdf(norm.ppf(0.01) + mu_of(8.0, 4, 0))
    assert exact == pytest.approx(0.0339, abs=1e-4)
    assert curve.says[at] == "an attacker who accepts 1% false positives finds at most 3.4% of members"
    for alpha, says in zip(curve.alpha, curve.says, strict=True):
        shown = float(says.split("at most ")[1].split("%")[0]) / 100
        assert shown >= 1 - float(gaussian(mu_of(8.0, 4, 0))(alpha)) - 1e-12


def test_epsilon_over_rounds_ends_at_the_plan(sampled):
    report = report_of(sampled)
    progress = report.progress
    assert (progress.planned, progress.done) == (12, 12)
    assert progress.rounds == tuple(range(1, 13))
    assert progress.epsilon[-1].upper == pytest.approx(report.guarantee.epsilon.upper, rel=1e-9)
    for rounds, stated in zip(progress.rounds, progress.epsilon, strict=True):
        exact = max(plan_of(sampled, i).changed(rounds=rounds).guarantee().epsilon(1e-5).lower for i in range(3))
        assert exact <= stated.upper <= exact + 0.02  # a round more or less is 0.1 at least
        assert float(stated.text) >= stated.upper
    steps = np.diff([stated.upper for stated in progress.epsilon])
    assert min(steps) > 0.1


def test_epsilon_at_each_delta(sampled):
    deltas = report_of(sampled).deltas
    assert deltas.own == 1e-5
    assert [row.delta for row in deltas.rows] == sorted((row.delta for row in deltas.rows), reverse=True)
    for row in deltas.rows:
        brackets = [plan_of(sampled, i).guarantee().epsilon(row.delta) for i in range(3)]
        assert row.epsilon.upper == pytest.approx(max(bracket.upper for bracket in brackets), rel=1e-5)
        assert row.epsilon.upper >= max(bracket.lower for bracket in brackets)
        assert row.warning == (row.delta * 40 >= 1)


@pytest.mark.parametrize(("rounds", "points"), [(1, 1), (25, 25), (26, 25), (1000, 25), (1000, 4)])
def test_few_points_of_many_rounds(rounds, points):
    marks = graphs._marks(rounds, points)
    assert len(marks) <= points
    assert (marks[0], marks[-1]) == (1, rounds)


@pytest.mark.parametrize(
    ("rounds", "plans", "points"), [(1, 1, 1), (30, 1, 30), (60, 3, 60), (61, 1, 25), (60, 10, 6), (1000, 100, 4)]
)
def test_each_of_few_rounds_has_a_point(rounds, plans, points):
    assert graphs._most_points(rounds, plans) == points


# ---------------------------------------------------------------------- who, what and how


def test_clients_have_their_own_rows(sampled):
    record = RunRecord.read(sampled / "record.json")
    rows = report_of(sampled).clients.rows
    assert [row.name for row in rows] == list(RECORDS)
    for row, client in zip(rows, record.clients, strict=True):
        assert row.epsilon.upper == plan_from_json(client.plan).guarantee().epsilon(1e-5).upper
        assert (row.records, row.rounds, row.slots) == (client.records, client.rounds_taken, client.slots_taken)
        assert row.noisy_queries == 3 * row.uploads == 3 * client.rounds_taken
        assert row.taken_epsilon.upper == client.taken["epsilon"]["upper"]
        assert row.scores["alone"] == client.scores["alone"]["accuracy"].value


def test_everything_that_left_is_counted(sampled, plain):
    record = RunRecord.read(sampled / "record.json")
    leaving = report_of(sampled).leaving
    assert leaving.uploads == sum(client.rounds_taken for client in record.clients)
    assert leaving.values == record.parameters == 8
    bare = [each.what for each in leaving.releases if each.covered_by == "nothing"]
    assert bare == ["scores (accuracy) on the clients' test records", "timings"]
    assert [each.what for each in report_of(plain).leaving.releases if each.covered_by == "nothing"] == ["timings"]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({}, "updates of clients from noisy steps"),
        (OUTPUT, "updates of clients with noise added once"),
        (NO_NOISE, "updates of clients without noise"),
    ],
)
def test_uploads_are_called_what_they_are(tmp_path, changes, what):
    leaving = report_of(trained(tmp_path / "run", **changes)).leaving
    uploads = leaving.releases[0]
    assert uploads.what == f"{what}, one for each round or attempt that a client took part in"
    assert uploads.seen_by == "the server, each by itself"
    assert uploads.amount == "12 uploads of 8 numbers"


def test_of_masked_uploads_the_server_sees_sums(tmp_path):
    uploads = report_of(trained(tmp_path / "run", privacy__masks=True)).leaving.releases[0]
    assert uploads.seen_by == "the server, as sums over clients"
    assert uploads.note == "masked in pairs: the server learns only the sum"


def numbers_of(report):
    (found,) = (each for each in report.leaving.releases if each.what.startswith("numbers of training"))
    return found.note


def test_sizes_are_true_or_nominal_as_the_config_says(tmp_path):
    """Also where there is no guarantee that would say it."""
    assert numbers_of(report_of(trained(tmp_path / "bare", **NO_NOISE))) == "true numbers"
    assert numbers_of(report_of(trained(tmp_path / "true"))) == "true numbers"
    sizes = {name: {"records": 64} for name in RECORDS}
    nominal = trained(tmp_path / "nominal", clients=sizes, privacy__neighbours="add-remove")
    report = report_of(nominal)
    assert numbers_of(report) == "nominal numbers"
    assert report.guarantee.hypotheses[0] == "One certain record is among those of a (nominally 64 records)."
    assert "Records of a client, nominally: 64 to 64, 192 in all" in card_of(report)
    page = page_of(report)
    assert "with 192 records to train on, nominally" in page
    assert "a has nominally 64 records, and no client has fewer." in page
    assert ">nominal records</button>" in page


def test_without_scores_there_are_none(plain):
    report = report_of(plain)
    assert report.utility.scores == ()
    assert report.utility.smallest.scores == {}
    assert report.rounds is None


def test_a_model_without_scores_has_no_line(sampled, copied):
    folder = copied(sampled)
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        line["personal"] = {"mean": None, "worst": None}
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert list(report_of(folder).rounds.mean) == ["released"]


def test_scores_stand_with_their_intervals(sampled):
    record = RunRecord.read(sampled / "record.json")
    report = report_of(sampled)
    for each in report.utility.scores:
        own = record.by_metric[each.metric][each.model].own
        assert (each.mean, each.interval, each.worst) == (own.mean, own.interval, own.worst)
    assert {each.model for each in report.utility.scores} == {"personal", "released", "alone"}
    assert report.utility.smallest.client == "a"
    assert sum(report.utility.joining.values()) == 3
    assert (report.utility.labels, report.utility.clipping) == (None, ())  # records of a private run are not counted
    assert report.rounds.rounds == tuple(range(1, 13))
    assert report.rounds.baselines == {"alone": record.scores["alone"].own.mean}
    assert report.utility.rounds_per_second == pytest.approx(12 / record.timings["train"], rel=1e-3)


def test_hashes_are_those_of_the_files(plain):
    files = {each.name: each for each in report_of(plain).signatures.files}
    assert {"record.json", "config.toml", "models/global.safetensors"} <= set(files)
    for name, each in files.items():
        assert each.sha256 == sha256((plain / name).read_bytes()).hexdigest()


def test_all_items_have_a_place(plain, said):
    items = report_of(plain).items
    assert [item.number for item in items] == list(range(1, 25))
    assert {item.number for item in items if item.status == "open"} == {1, 2, 5, 8, 9, 11, 15, 17, 18, 19, 20, 22, 24}
    full = report_of(said)
    assert {item.number for item in full.items if item.status == "open"} == {
        17,
        18,
        24,
    }  # no audit, no scores, no signatures
    assert full.title == SAID["name"]
    text = " ".join(item.text for item in full.items)
    assert all(
        str(SAID[name]) in text
        for name in ("purpose", "law", "receivers", "record_is", "chosen_by", "reason", "rounds_chosen_by", "columns")
    )


def test_an_audit_fills_its_item(plain, tmp_path):
    path = tmp_path / "audit.json"
    path.write_text(json.dumps({"passed": True, "checks": [{"name": "noise", "passed": True}]}))
    item = report_of(plain, audits=[path]).items[16]
    assert (item.status, item.taken_from) == ("filled", "audit")
    assert "1 of 1 checks passed" in item.text


def test_it_needs_no_torch_and_no_plotly(plain):
    ran = subprocess.run([sys.executable, "-c", WITHOUT, plain], check=True, capture_output=True, text=True)
    assert json.loads(ran.stdout) == json.loads(report_of(plain).text())


def test_as_json_has_no_infinity(plain, copied):
    def endless(data):
        data["guarantee"]["epsilon"]["upper"] = None
        data["guarantee"]["mu"]["upper"] = None

    report = report_of(rewritten(copied(plain), endless))
    found = json.loads(report.text())
    assert found["guarantee"]["epsilon"] == {"upper": None, "text": "∞"}
    assert report.verdict.decision == "do not release"


# ---------------------------------------------------------------------- what one record is


@pytest.mark.parametrize("kind", ["record", "person"])
def test_what_a_record_is_stands_where_people_read(plain, copied, kind):
    """An owner's own words: text, and nothing else."""

    def of_persons(data):
        for plan in data["shared"]["plan"]:
            plan |= {"unit": "person", "rows_per_unit": 4}
        data["unit"] = data["guarantee"]["unit"] = "person"

    folder = plain if kind == "record" else rewritten(copied(plain), of_persons)
    words = "one <script>alert(1)</script> *stay* | [a](b) $x$"
    report = report_of(folder, words=[f"report.record_is={json.dumps(words)}"])
    unit = f"record ({words})" if kind == "record" else f"person (one record is {words})"
    assert report.guarantee.sentences[0].startswith(f"Protected is each {unit} of each of 3 clients, against ")
    escaped = r"one &lt;script&gt;alert(1)&lt;/script&gt; \*stay\* \| \[a\](b) \$x\$"  # as Markdown has it
    card = card_of(report)
    assert card.count(escaped) == 2
    assert f"the unit is a {kind} (" in card
    assert "<script" not in card
    page = page_of(report)
    assert "<script>alert" not in page
    shown = f"{unit.split('<')[0]}&lt;script&gt;alert(1)&lt;/script&gt;"
    assert page.count(shown) == 2  # in the guarantee, and as the unit of privacy
    assert f"<dd>one {kind}</dd>" in page_of(report_of(folder))


# ---------------------------------------------------------------------- kinds of runs


@pytest.mark.parametrize("rehearsal", [None, True, False])
def test_whoever_ran_all_clients_is_trusted_and_that_is_said(said, copied, rehearsal):
    """In one process, or on one machine. Between machines nobody had all records."""

    def deployed(data):
        names = [each["name"] for each in data["clients"]]
        how = {"carrier": "Flower 1.41.0", "participation": "clients", "rehearsal": rehearsal}
        data["deployment"] = deployment_of([{"round": 1}], names, **how)

    report = report_of(said if rehearsal is None else rewritten(copied(said), deployed))
    first, second, *_ = report.guarantee.sentences
    says = "had all records"
    texts = {
        "notices": " ".join(report.run.notices),
        "guarantee": second,
        "condition": " ".join(each.here for each in report.conditions),
        "card": card_of(report),
        "where": report.leaving.where,
    }
    for where, shown in texts.items():
        assert (says in shown and "is trusted" in shown) == (rehearsal is not False), where
    assert ("the server, all other clients, and whoever" in first) == (rehearsal is False)
    assert ("The guarantee is about what left that" in second) == (rehearsal is not False)
    assert ("the records" in report.leaving.stays) == (rehearsal is False)
    if rehearsal is None:
        assert report.verdict.decision == "release"  # it is an assumption, and no fault


UNFINISHED = {
    "This run is a simulation": {"privacy__randomness": "seeded"},
    "Clients overlap: several of them may hold the same record.": {"data__overlap": True},
    "Clients overlap: up to 3 of them may hold the same person.": {"data__person": "id", "data__person_clients": 3},
    "The unit is a person": {"data__person": "id"},
    "Uploads were masked in pairs": {"privacy__masks": True},
}


def test_a_run_that_is_not_finished_has_the_notices_of_its_config(plain, copied, monkeypatch):
    folder = copied(plain)
    (folder / "record.json").unlink()
    assert report_of(folder).run.notices == ("This run is not finished.",)
    before = sources._config_of
    for notice, changes in UNFINISHED.items():

        def changed(place, changes=changes):
            found = json.loads(json.dumps(before(place)))
            for name, value in changes.items():
                table, field = name.split("__")
                found[table][field] = value
            return found

        monkeypatch.setattr(sources, "_config_of", changed)
        first, *others = report_of(folder).run.notices
        assert first == "This run is not finished."
        assert any(each.startswith(notice) for each in others), notice
        assert not any("the numbers count" in each for each in others)  # there are none yet


def test_kinds_of_runs_say_what_they_are(tmp_path):
    masked = report_of(trained(tmp_path / "masked", privacy__masks=True))
    assert masked.run.masked
    assert any("masked in pairs" in notice and "simulated" in notice for notice in masked.run.notices)
    server = [view for view in masked.guarantee.views if view.who == "server" and view.claim]
    assert server
    assert all(view.mu.upper < masked.guarantee.mu.upper for view in server)
    assert next(each for each in masked.conditions if each.what == "Masks hold.").state == "broken"


def test_a_rule_that_keeps_models_says_so(tmp_path):
    report = report_of(trained(tmp_path / "run", rule__name="ditto"))
    (personal,) = (each for each in report.leaving.releases if each.what == "personal models")
    assert personal.covered_by == "nothing"
    assert "what clients keep: personal models trained without noise" in report.leaving.stays


def test_persons_and_overlaps_say_so(plain, copied):
    def shared(data):
        for plan in data["shared"]["plan"]:
            plan |= {"unit": "person", "copies": 2, "rows_per_unit": 4}
        data["unit"] = data["guarantee"]["unit"] = "person"
        data["guarantee"]["copies"] = 2
        data["config"]["data"]["rows_per_person"] = 4

    report = report_of(rewritten(copied(plain), shared))
    assert report.run.overlapping == 2
    assert report.guarantee.groups == ()
    assert any("person" in notice for notice in report.run.notices)
    assert any("overlap" in notice for notice in report.run.notices)
    assert "up to 4" in report.items[4].text
    assert "of persons" in report.curve.says[0]


def test_output_noise_has_a_report(tmp_path):
    report = report_of(trained(tmp_path / "run", **OUTPUT))
    assert report.guarantee.paper_mu is None
    assert report.curve.asymptotic is None
    assert report.reproducing.commands == ("prifedsync train config.toml --out again",)


def test_the_command_that_is_named_states_the_same_guarantee(sampled, capsys):
    import shlex

    from prifedsync.cli import main

    report = report_of(sampled)
    words = [*shlex.split(report.reproducing.commands[1]), "--json"]
    sys_argv, sys.argv = sys.argv, words
    try:
        with pytest.raises(SystemExit):
            main()
    finally:
        sys.argv = sys_argv
    found = json.loads(capsys.readouterr().out)
    assert found["epsilon"]["upper"] == pytest.approx(report.clients.rows[0].epsilon.upper, rel=1e-4)


def test_of_very_many_plans_the_loudest_are_computed():
    """More different plans than are computed: the record's own numbers stand, and the picture says whom it is about."""

    class Client:
        def __init__(self, records):
            self.records = records
            self.plan = {
                "mechanism": "NoisySteps", "noise_multiplier": 1.0, "records": records, "batch": 10, "local_steps": 1,
                "sampling": "poisson", "clip_norm": 1.0, "clip_margin": 0.0, "rows_per_unit": 1, "rounds": 5,
                "participation": 1.0, "neighbours": "replace", "copies": 1, "unit": "record", "attempts": 0,
            }  # fmt: skip
            leak = {"upper": 100.0 / records}
            self.planned = {"epsilon": leak, "mu": leak, "advantage": leak}

    few = Plans.of([Client(100 + i) for i in range(MOST)])
    assert few.every
    assert len(few.plans) == MOST
    many = Plans.of([Client(100 + i) for i in range(MOST + 1)])
    assert not many.every
    assert [plan.mechanism.records for plan in many.plans] == [100]
    assert many.most_units == 100 + MOST
