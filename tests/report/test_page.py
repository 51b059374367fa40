"""The page of a report as text: one file that loads nothing, in which every name is text. tests/browser looks at it."""

import base64
import dataclasses
import hashlib
import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from scripts.example_report import PAGE, made

from prifedsync.report.audits import Audited
from prifedsync.report.comparing import Comparison, comparison_of
from prifedsync.report.contents import MASKED, PERSONS, report_of
from prifedsync.report.guarantee import Group, Stated
from prifedsync.report.html import write_comparison, write_page
from prifedsync.report.html.charts import FEW_TICKS, plain, wrapped
from prifedsync.report.html.markup import as_json, tag
from prifedsync.report.html.page import LIMIT, page_of
from prifedsync.report.html.parts import sentence
from prifedsync.report.sources import FileHash
from prifedsync.report.utility import Labels

TRAP = "</script><script>window.hacked = 1</script><img src=x onerror=alert(1)>\"'&amp;"
SECTIONS = [
    "verdict", "guarantee", "attacks", "views", "curve", "epsilon", "leaving", "conditions", "audits", "clients",
    "utility", "reproducing", "items", "warnings", "signatures",
]  # fmt: skip


class Read(HTMLParser):
    """The elements of a page, the texts of its scripts and styles, and its visible text."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.scripts, self.style, self.text, self._within = [], [], "", "", ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._within = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag):
        self._within = ""

    def handle_data(self, data):
        if self._within == "script":
            attrs, text = self.scripts[-1]
            self.scripts[-1] = (attrs, text + data)
        elif self._within == "style":
            self.style += data
        else:
            self.text += data

    def ids(self, name):
        return [attrs.get("id") for tag, attrs in self.elements if tag == name]

    def data(self, name):
        (text,) = (text for attrs, text in self.scripts if attrs.get("id") == name)
        return json.loads(text)


@pytest.fixture(scope="module")
def report(sampled):
    return report_of(sampled)


@pytest.fixture(scope="module")
def page(report):
    return Read(page_of(report))


def test_all_sections_are_there_in_order_with_the_verdict_first(page):
    assert page.ids("section") == SECTIONS


def test_it_loads_nothing(page):
    for _, attrs in page.elements:
        for name in ("src", "srcset", "data", "action", "formaction", "poster"):
            assert name not in attrs
        assert attrs.get("href", "#").startswith("#")
    assert "@page" in page.style
    assert "@import" not in page.style
    assert "url(" not in page.style
    (policy,) = (attrs["content"] for _, attrs in page.elements if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    hashes = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for attrs, text in page.scripts if not attrs
    ]
    assert len(hashes) == 2
    assert all(f"'sha256-{each}'" in policy for each in hashes)
    assert "unsafe-inline" not in policy.split("script-src")[1]


def test_names_that_are_traps_are_text(report):
    rows = tuple(dataclasses.replace(row, name=TRAP) for row in report.clients.rows)
    words = {name: TRAP if isinstance(value, str) else value for name, value in report.words.items()}
    curve = dataclasses.replace(report.curve, says=tuple(TRAP for _ in report.curve.says))
    clients = dataclasses.replace(report.clients, rows=rows)
    changed = dataclasses.replace(
        report, clients=clients, words=words, title=TRAP, folder=TRAP, warnings=(TRAP,), curve=curve, no_guarantee=TRAP
    )
    found = Read(page_of(changed))
    assert len(found.scripts) == len(Read(page_of(report)).scripts)
    assert not [tag for tag, _ in found.elements if tag == "img"]
    assert not [name for _, attrs in found.elements for name in attrs if name.startswith("on")]
    assert found.text.count(TRAP) >= len(rows) + 3
    assert found.data("report")["title"] == TRAP
    assert "<img" not in json.dumps(found.data("chart-curve")["data"])


def test_numbers_are_in_it_as_json(page, report):
    told = page.data("report")
    wanted = json.loads(report.text())
    wanted["clients"]["rows"] = []
    assert told == wanted


def test_each_client_has_a_row(page, report):
    for row in report.clients.rows:
        assert row.name in page.text


def test_the_table_of_clients_is_of_scores_where_there_are_some(page, plain):
    assert "Clients, with their accuracy on their own test records" in page.text
    assert "on their own test records" not in Read(page_of(report_of(plain))).text


@pytest.mark.parametrize("count", [1000, 10000])
def test_it_stays_small_however_many_clients_there_are(count, report):
    base = report.clients.rows
    rows = tuple(dataclasses.replace(base[at % 3], name=f"{at} {'long ' * 20}") for at in range(count))
    text = page_of(dataclasses.replace(report, clients=dataclasses.replace(report.clients, rows=rows)))
    assert len(text.encode()) <= LIMIT
    found = Read(text)
    shown = text.count('<th scope="row">')
    assert shown > 500
    if count == 10000:
        assert f"of {count:,}. All are in report.json." in found.text


def test_rows_make_way_for_what_cannot_be_left_out(report):
    """A name may have letters of three bytes, and an owner may say much."""
    rows = tuple(dataclasses.replace(report.clients.rows[0], name=f"{at} {'병원' * 10}") for at in range(5000))
    words = {**report.words, "purpose": "warns of sepsis " * 40_000}
    clients = dataclasses.replace(report.clients, rows=rows)
    counts = []
    for changed in ({"clients": clients}, {"clients": clients, "words": words}):
        text = page_of(dataclasses.replace(report, **changed))
        assert len(text.encode()) <= LIMIT
        counts.append(Read(text).text.count("병원병원"))
    assert counts[0] > counts[1] > 100


def test_files_that_were_given_beside_the_run_are_listed_up_to_a_number(report):
    extras = tuple(FileHash(f"receipt-{at}.json", "0" * 64, 0) for at in range(20_000))
    signatures = dataclasses.replace(report.signatures, extras=extras)
    text = page_of(dataclasses.replace(report, signatures=signatures))
    assert len(text.encode()) <= LIMIT
    assert "Of 20,000 files beside the run, 200 are listed. All are in report.json." in text


def test_a_run_that_is_not_finished_says_so(plain_unfinished):
    found = Read(page_of(report_of(plain_unfinished)))
    assert "do not release" in found.text
    assert "not finished" in found.text
    assert {"verdict", "guarantee", "items", "signatures"} <= set(found.ids("section"))


@pytest.fixture
def plain_unfinished(plain, copied):
    folder = copied(plain)
    (folder / "record.json").unlink()
    return folder


def test_what_was_not_measured_says_so(plain):
    found = Read(page_of(report_of(plain)))
    assert "not measured" in found.text
    assert "No audit was given." in found.text


def test_the_comparison_has_both_tables(report, tmp_path):
    comparison = comparison_of([report, dataclasses.replace(report, folder=TRAP)])
    write_comparison(comparison, tmp_path / "all.html")
    found = Read((tmp_path / "all.html").read_text(encoding="utf-8"))
    assert comparison.markdown in found.text
    assert comparison.latex in found.text
    assert not [tag for tag, _ in found.elements if tag == "img"]


def test_the_file_is_written_whole(report, tmp_path):
    write_page(report, tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page_of(report)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_without_plotly_there_is_one_line_and_no_page(sampled, tmp_path):
    code = (
        "import sys; sys.modules['plotly'] = None\n"
        "from pathlib import Path\n"
        "from prifedsync.report.contents import report_of\nfrom prifedsync.report.saving import save\n"
        "print(save(report_of(Path(sys.argv[1])), Path(sys.argv[2])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(sampled), str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.splitlines() == ["no page was written: plotly is not installed"]
    assert (tmp_path / "report.json").is_file()
    assert not (tmp_path / "report.html").exists()


def test_it_renders_without_torch(sampled, tmp_path):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path\n"
        "from prifedsync.report.contents import report_of\nfrom prifedsync.report.html import write_page\n"
        "write_page(report_of(Path(sys.argv[1])), Path(sys.argv[2]))"
    )
    place = str(tmp_path / "report.html")
    subprocess.run([sys.executable, "-c", code, str(sampled), place], check=True, timeout=120)
    assert (tmp_path / "report.html").stat().st_size > 10**6


# ---------------------------------------------------------------------- pieces


def test_whatever_is_not_html_is_escaped():
    assert tag("p", TRAP, title=TRAP).count("<") == 2
    assert tag("p", [TRAP, [tag("b", TRAP)]]).count("<") == 4
    assert tag("p", None, 0, class_=None, hidden=False, data_k="") == '<p data-k="">0</p>'
    assert "<" not in as_json("x", [TRAP]).removeprefix("<script").removesuffix("</script>")


def test_labels_of_figures_are_text():
    assert plain("<b>a</b>") == "&lt;b&gt;a&lt;/b&gt;"
    assert wrapped("aa bb <i>", 5) == "aa bb<br>&lt;i&gt;"


def test_symbols_stay_as_they_are():
    assert sentence("μ is small") == "μ is small."
    assert sentence("an attack") == "An attack."
    assert sentence("") == ""


# ---------------------------------------------------------------------- docs/example-report.html

# Timings, versions, hashes of files and scores may differ between machines.
DIFFERENT = {"folder", "reproducing", "signatures", "utility", "rounds", "items"}


def test_the_example_has_the_numbers_of_a_new_run(tmp_path):
    shown = Read(PAGE.read_text(encoding="utf-8")).data("report")
    told = Read(page_of(made(tmp_path / "digits"))).data("report")
    assert shown.keys() == told.keys()
    for name in shown.keys() - DIFFERENT:
        assert shown[name] == told[name], name
    for one, other in zip(shown["utility"]["scores"], told["utility"]["scores"], strict=True):
        assert one["mean"] == pytest.approx(other["mean"], abs=0.01)


def words_of(page, section):
    """What a section says, without its numbers."""
    start = page.index(f'<section id="{section}"')
    said = Read(page[start : page.index("</section>", start)]).text
    return re.sub(r"[\d.,]+", "#", said)


def test_the_example_has_the_words_of_a_new_run(tmp_path):
    shown, told = PAGE.read_text(encoding="utf-8"), page_of(made(tmp_path / "digits"))
    for name in set(SECTIONS) - {"utility", "reproducing", "items", "signatures"}:  # scores, machine and hashes differ
        assert words_of(shown, name) == words_of(told, name), f"{name}: make it again with `make example`"


def test_the_example_is_no_larger_than_it_must():
    assert PAGE.stat().st_size < LIMIT
    assert re.search(r"Example: handwritten digits", PAGE.read_text(encoding="utf-8"))


# ---------------------------------------------------------------------- numbers on the safe side


def test_the_curve_is_rounded_to_the_safe_side(report):
    """The certified β of the table is no larger than it is, and μ in the label of G_μ no smaller."""
    curve = dataclasses.replace(report.curve, gaussian_mu=0.99951, certified=tuple(0.99996 for _ in report.curve.alpha))
    page = page_of(dataclasses.replace(report, curve=curve))
    assert "G_μ for μ = 0.9996" in page
    assert "G_μ for μ = 0.9995" not in page
    table = page[page.index("Points of the trade-off curve") :]
    cells = re.findall(r"<td[^>]*>(?:<[^>]+>)*([^<]*)", table[: table.index("</table>")])
    assert "0.9999" in cells
    assert "1" not in cells


def test_the_table_of_the_curve_has_round_levels(report):
    page = page_of(report)
    table = page[page.index("Points of the trade-off curve") :]
    rates = re.findall(r'<th scope="row"[^>]*>([^<]*)', table[: table.index("</table>")])
    assert rates == ["0.1%", "1%", "5%", "10%", "50%"]


def test_members_found_are_rounded_up_and_the_other_lines_are_turned_over_too(page, report):
    drawn = page.data("chart-curve")
    certified = drawn["data"][drawn["layout"]["meta"]["certified"]]
    for beta, share in zip(report.curve.certified, certified["meta"], strict=True):
        assert 1 - beta <= share <= 1
        assert share <= (1 - beta) * 1.000002 + 1e-14
    named = {trace["name"]: trace for trace in drawn["data"]}
    guessing = next(trace for name, trace in named.items() if "guessing" in name)
    assert guessing["meta"] == list(report.curve.alpha)
    for trace in named.values():
        assert len(trace["meta"]) == len(trace["y"])
        turned = [share - (1 - beta) for beta, share in zip(trace["y"], trace["meta"], strict=True)]
        assert not trace["name"] or max(map(abs, turned)) < 1e-6
    assert all("not a guarantee" in name for name in named if "CLT" in name)


def test_both_certified_curves_say_when_they_hold(report):
    others = tuple(beta / 2 for beta in report.curve.certified)
    two = dataclasses.replace(report, curve=dataclasses.replace(report.curve, if_others_choose=others))
    text = Read(page_of(two)).text
    assert "no attacker is in the shaded area, below the solid certified curve" in text
    assert "Where others decide who takes part, none is below the dashed certified curve." in text
    one = dataclasses.replace(report, curve=dataclasses.replace(report.curve, if_others_choose=None))
    assert "No attacker is in the shaded area, below the certified curve." in Read(page_of(one)).text


# ---------------------------------------------------------------------- the verdict's scale


def rated(report, decision, mu, person=None, person_mu=None):
    """The report with this verdict, μ, and μ of a person with so many records."""
    stated = Stated(mu, f"{mu:.4g}")
    together = [Group(person, Stated(person_mu, f"{person_mu:.4g}") if person_mu else None, Stated(4.4, "4.4"), stated)]
    given = {**report.guarantee.given_who_took_part, "mu": stated}
    groups = tuple(together if person else [])
    found = dataclasses.replace(report.guarantee, mu=stated, given_who_took_part=given, groups=groups)
    words = {**report.words, "release_mu": 1.0, "review_mu": 3.0, "records_of_person": person or 0}
    verdict = dataclasses.replace(report.verdict, decision=decision)
    return Read(page_of(dataclasses.replace(report, guarantee=found, words=words, verdict=verdict)))


def pins(page):
    """The place of each pin on the scale in percent, and whether it is the one that decides."""
    found = [attrs for tag, attrs in page.elements if tag == "span" and "pin" in attrs.get("class", "").split()]
    return [(float(re.search(r"left:([\d.]+)%", each["style"])[1]), "decides" in each["class"]) for each in found]


def test_the_pin_stands_at_the_mu_that_decides(report):
    assert pins(rated(report, "release", 0.5)) == [(12.5, True)]
    assert pins(rated(report, "review", 0.5, person=3, person_mu=1.5)) == [(12.5, False), (37.5, True)]
    assert pins(rated(report, "review", 0.5, person=3)) == [(12.5, False)]
    assert pins(rated(report, "do not release", 40.0)) == [(100.0, True)]


def test_the_scale_never_says_something_else_than_the_verdict(report):
    agrees = rated(report, "review", 0.5, person=3, person_mu=1.5)
    assert "The μ of a person with 3 records is in the zone of the verdict: review." in agrees.text
    other = rated(report, "review", 0.5)
    assert "By the μ of one record alone it would be: release. Another ground makes the verdict: review." in other.text
    unknown = rated(report, "review", 0.5, person=3)
    assert "For a person with 3 records no μ is known, only ε ≤ 4.4" in unknown.text
    beyond = rated(report, "do not release", 40.0)
    assert "For one record, μ is beyond the end of this scale." in beyond.text


def test_the_first_lines_say_what_the_numbers_mean(page, report):
    said = f"an attacker who accepts 1% false positives finds at most {report.guarantee.hits_at_1_percent.text} of members"
    assert said in page.text
    assert page.text.index(said) < page.text.index("Thresholds")
    further = "This is about one record: a person with 3 records is protected less."
    assert further in rated(report, "review", 0.5, person=3).text
    assert further not in page.text


# ---------------------------------------------------------------------- scores


def test_a_box_and_its_table_have_the_same_quartiles(report):
    rows = report.clients.rows
    values = (0.1, 0.2, 0.4, 0.7, 0.75, 0.8, 5.0)
    spread = tuple(dataclasses.replace(rows[0], name=f"c{value}", scores={"released": value}) for value in values)
    found = Read(page_of(dataclasses.replace(report, clients=dataclasses.replace(report.clients, rows=spread))))
    (box,) = found.data("chart-clients-scores")["data"]
    assert (box["q1"], box["median"], box["q3"]) == ([pytest.approx(0.3)], [0.7], [pytest.approx(0.775)])
    assert (box["lowerfence"], box["upperfence"]) == ([0.1], [0.8])
    assert box["x"] == [list(values)]
    assert re.search(r"released model\s*0.300\s*0.700\s*0.775", found.text)


def without_scores(report):
    """A run whose clients have no test records."""
    nothing = {"mean": None, "interval": None, "worst": None, "pooled": None, "pooled_interval": None}
    smallest = dataclasses.replace(report.utility.smallest, scores={"released": None})
    scores = tuple(dataclasses.replace(each, **nothing) for each in report.utility.scores)
    over = {model: (None,) * len(report.rounds.rounds) for model in report.rounds.mean}
    return dataclasses.replace(
        report,
        utility=dataclasses.replace(report.utility, scores=scores, smallest=smallest),
        rounds=dataclasses.replace(report.rounds, mean=over, worst=over),
    )


def test_no_tick_is_between_two_rounds(report):
    page = Read(page_of(report))
    assert len(report.rounds.rounds) > FEW_TICKS
    assert "dtick" not in page.data("chart-rounds")["layout"]["xaxis"]
    few = {model: values[:3] for model, values in report.rounds.mean.items()}
    rounds = dataclasses.replace(report.rounds, rounds=(1, 2, 3), mean=few, worst=few)
    found = Read(page_of(dataclasses.replace(report, rounds=rounds)))
    assert found.data("chart-rounds")["layout"]["xaxis"]["dtick"] == 1


def test_colours_of_labels_begin_at_nothing(report):
    """Plotly heeds the lower end of a scale only where it is told the upper one."""
    labels = Labels(("0", "1"), ("a",), ((0.45, 0.55),))
    utility = dataclasses.replace(report.utility, labels=labels)
    (drawn,) = Read(page_of(dataclasses.replace(report, utility=utility))).data("chart-labels")["data"]
    assert (drawn["zmin"], drawn["zmax"]) == (0, 0.55)


def test_sentences_of_an_owner_take_a_line_of_their_own(report):
    for purpose, wanted in (("warns of sepsis", 0), ("warns of sepsis " * 9, 1)):
        found = Read(page_of(dataclasses.replace(report, words={**report.words, "purpose": purpose})))
        assert sum(attrs.get("class") == "broad" for _, attrs in found.elements) == wanted


def test_what_was_not_scored_has_no_chart_and_no_table(report):
    found = Read(page_of(without_scores(report)))
    assert "figure-rounds" not in found.ids("figure")
    assert "No round was scored" in found.text
    assert "No model was scored" in found.text
    assert "Scores on the clients' own test records" not in found.text
    assert "released model –" not in found.text


def test_gains_that_were_not_compared_are_not_listed(report):
    sentences = ("a has accuracy – with the others",)
    utility = dataclasses.replace(report.utility, joining={"not compared": 3}, joining_sentences=sentences)
    text = Read(page_of(dataclasses.replace(report, utility=utility))).text
    assert "Each client's own model was not trained or not scored" in text
    assert sentences[0] not in text.replace(json.dumps(sentences[0]), "")


def test_the_smallest_client_is_counted_in_the_unit_of_the_run(report):
    run = dataclasses.replace(report.run, unit="person")
    least = report.utility.smallest
    text = Read(page_of(dataclasses.replace(report, run=run))).text
    assert f"{least.client} has {least.records} persons, and no client has fewer." in text


def test_nobody_is_the_smallest_beside_clients_of_unknown_size(report):
    hidden = dataclasses.replace(report.clients.rows[-1], records=None)
    clients = dataclasses.replace(report.clients, rows=(*report.clients.rows[:-1], hidden))
    text = Read(page_of(dataclasses.replace(report, clients=clients))).text
    assert "no client whose number is known has fewer" in text
    assert "and no client has fewer" not in text


def test_intervals_say_what_they_are(page):
    assert "95% bootstrap intervals over test records. They leave out how much scores vary between runs." in page.text
    assert "its interval" not in page.text


# ---------------------------------------------------------------------- several runs


def charts(page):
    return {attrs["id"]: page.data(attrs["id"]) for attrs, _ in page.scripts if attrs.get("id", "").startswith("chart-")}


def compared(tmp_path, *rows):
    """The page of these runs."""
    write_comparison(Comparison(rows, (), "", ""), tmp_path / "all.html")
    return Read((tmp_path / "all.html").read_text(encoding="utf-8"))


@pytest.fixture
def row(report):
    found = comparison_of([report]).rows[0]
    return dataclasses.replace(found, mean=0.8, metric="accuracy", baselines={"non-private": 0.9}, simulation=False)


def test_each_metric_has_a_figure_of_its_own(row, tmp_path):
    other = dataclasses.replace(row, folder="other", metric="auroc")
    found = charts(compared(tmp_path, row, other))
    assert [each["layout"]["yaxis"]["title"]["text"] for each in found.values()] == ["accuracy", "auroc"]
    assert [len(each["data"][0]["x"]) for each in found.values()] == [1, 1]


def test_the_non_private_line_is_drawn_only_where_runs_share_their_data(row, tmp_path):
    alike = compared(tmp_path, row, dataclasses.replace(row, folder="other"))
    (drawn,) = charts(alike).values()
    assert len(drawn["layout"]["shapes"]) == 1
    assert f"all clients together, without noise, of {row.folder}: 0.900" in alike.text
    apart = compared(tmp_path, row, dataclasses.replace(row, folder="other", data="elsewhere"))
    (drawn,) = charts(apart).values()
    assert drawn["layout"]["shapes"] == []


def test_simulations_are_marked_by_shape_and_word(row, tmp_path):
    found = compared(tmp_path, row, dataclasses.replace(row, folder="other", simulation=True))
    (drawn,) = charts(found).values()
    assert drawn["data"][0]["marker"]["symbol"] == ["circle", "diamond"]
    assert "a run that is not a simulation" in found.text
    assert "a simulation" in found.text.replace("not a simulation", "")
    marks = [attrs for tag, attrs in found.elements if tag == "span" and attrs.get("class") == "mark open"]
    assert len(marks) >= 1
    assert "model in use" in found.text


def named_at(drawn):
    return drawn["data"][0]["textposition"]


def test_names_of_runs_that_are_near_stand_apart(row, tmp_path):
    """Rules at one μ are what is compared most often."""
    near = [dataclasses.replace(row, folder=f"run{at}", mean=0.8 + at / 1000) for at in range(4)]
    (drawn,) = charts(compared(tmp_path, *near)).values()
    assert len(set(named_at(drawn))) == 4
    far = [dataclasses.replace(row, folder=f"run{at}", mean=at / 4, interval=None) for at in range(4)]
    (drawn,) = charts(compared(tmp_path, *far)).values()
    assert set(named_at(drawn)) == {"middle left"}


def test_a_name_that_has_no_room_is_left_out(row, tmp_path):
    """Beside one point there are six places."""
    alike = [dataclasses.replace(row, folder=f"run{at}", interval=None) for at in range(7)]
    (drawn,) = charts(compared(tmp_path, *alike)).values()
    names = [text.strip() for text in drawn["data"][0]["text"]]
    assert names == [*(f"run{at}" for at in range(6)), ""]
    assert len(set(named_at(drawn)[:6])) == 6


def test_runs_that_a_comparison_does_not_draw_are_counted(row, tmp_path):
    words = "1 run without a μ or without a score: see the table."
    assert words in compared(tmp_path, row, dataclasses.replace(row, folder="other", mean=None)).text
    assert words not in compared(tmp_path, row).text


def test_a_name_stands_where_the_figure_has_room_and_is_no_longer_than_that(row, tmp_path):
    small = dataclasses.replace(row, folder="x" * 90, mu=dataclasses.replace(row.mu, upper=row.mu.upper / 10))
    (drawn,) = charts(compared(tmp_path, small, row)).values()
    assert named_at(drawn) == ["middle right", "middle left"]
    assert drawn["data"][0]["text"][0].strip() == "x" * 21 + "…"


def test_long_names_beside_the_colours_of_labels_are_cut(report):
    labels = Labels(("0", "1"), tuple(f"{at} {'x' * 90}" for at in range(50)), ((0.5, 0.5),) * 50)
    utility = dataclasses.replace(report.utility, labels=labels)
    found = Read(page_of(dataclasses.replace(report, utility=utility))).data("chart-labels")["layout"]["yaxis"]
    assert found["tickvals"][:2] == [0, 3]
    assert [len(name) for name in found["ticktext"]] == [20] * len(found["tickvals"])


def test_a_comparison_says_where_lower_is_better(row, tmp_path):
    errors = dataclasses.replace(row, metric="rmse", lower_is_better=True)
    found = compared(tmp_path, row, errors)
    assert "Rmse of 1 run, against μ. Lower is better." in found.text
    assert "Accuracy of 1 run, against μ. The table" in found.text
    assert "rmse, lower is better" in found.text


def test_a_comparison_has_each_run_in_one_row_with_what_explains_it(row, tmp_path):
    write_comparison(Comparison((row,), (), "", ""), tmp_path / "all.html")
    heads = heads_of((tmp_path / "all.html").read_text(encoding="utf-8"), 'id="runs"')
    assert heads[-3:] == ["Metric, model in use", "mean over clients, interval", "worst client"]


# ---------------------------------------------------------------------- tables


def heads_of(page, table):
    """The heads of the columns of a table."""
    inside = page[page.index(table) :]
    head = inside[inside.index("<thead") : inside.index("</thead>")]
    return [re.sub("<[^>]+>", "", each) for each in re.findall(r"<th .*?</th>", head)]


def test_what_a_client_spent_comes_before_what_it_sent(report):
    heads = heads_of(page_of(report), 'id="clients-table"')
    first = ["Client", "records", "rounds", "ε ≤", "μ ≤", "ε ≤ of slots taken", "spent before", "left"]
    assert heads[:8] == first
    last = ["gains by joining", "uploads", "noisy queries", "noise multiplier", "test records"]
    assert heads[-5:] == last


def test_a_larger_number_for_slots_taken_is_explained(report):
    why = "the number for slots taken knows how often the coin said yes"
    rows = [dataclasses.replace(row, taken_epsilon=row.epsilon) for row in report.clients.rows]
    same = dataclasses.replace(report, clients=dataclasses.replace(report.clients, rows=tuple(rows)))
    assert why not in Read(page_of(same)).text
    rows[0] = dataclasses.replace(rows[0], taken_epsilon=Stated(rows[0].epsilon.upper + 1, "9"))
    larger = dataclasses.replace(report, clients=dataclasses.replace(report.clients, rows=tuple(rows)))
    assert why in Read(page_of(larger)).text


def test_no_head_of_a_table_is_empty(report):
    page = page_of(report)
    assert all(re.sub("<[^>]+>", "", each).strip() for each in re.findall(r"<th .*?</th>", page))


# ---------------------------------------------------------------------- paper


def test_each_sheet_has_the_title_and_the_hash_of_the_record(report):
    title = 'A "title" \\ </style><script>'
    style = page_of(dataclasses.replace(report, title=title)).split("<style>")[1].split("</style>")[0]
    margins = style.rsplit("@page", 1)[1]
    (record,) = (file.sha256 for file in report.signatures.files if file.name == "record.json")
    assert record in margins
    said = re.search(r'top-left \{ content: "([^"]*)"', margins)[1]
    assert re.sub(r"\\([0-9a-f]{6})", lambda found: chr(int(found[1], 16)), said) == title


def test_a_review_has_a_place_for_the_officers_decision(report):
    for decision, wanted in (("review", True), ("release", False), ("do not release", False)):
        verdict = dataclasses.replace(report.verdict, decision=decision)
        text = Read(page_of(dataclasses.replace(report, verdict=verdict))).text
        assert ("Decision of the privacy officer" in text) is wanted


# ---------------------------------------------------------------------- the first lines


def marks_of(page):
    """The kind of each mark of the page's head."""
    head = page[page.index('class="masthead"') : page.index('id="verdict"')]
    return re.findall(r'class="mark (\w+)"', head)


def test_good_news_has_no_sign_of_a_warning(report):
    notices = (PERSONS, MASKED, f"{MASKED} All clients were in one process, so masks were simulated.", "A simulation.")
    run = dataclasses.replace(report.run, notices=notices)
    assert marks_of(page_of(dataclasses.replace(report, run=run))) == ["good", "good", "open", "open"]


def test_records_are_counted_where_their_numbers_are_public(report):
    count = sum(row.records for row in report.clients.rows)
    assert f"3 clients with {count} records to train on" in Read(page_of(report)).text
    shared = "; a record of several clients counts at each of them"
    assert shared not in Read(page_of(report)).text
    run = dataclasses.replace(report.run, overlapping=2)
    assert shared in Read(page_of(dataclasses.replace(report, run=run))).text
    rows = (*report.clients.rows[1:], dataclasses.replace(report.clients.rows[0], records=None))
    hidden = dataclasses.replace(report, clients=dataclasses.replace(report.clients, rows=rows))
    assert "to train on" not in Read(page_of(hidden)).text


def test_numbers_that_an_audit_contradicts_are_not_repeated_without_a_word(report):
    words = "An audit contradicts these numbers"
    said = "An attack found more."
    audit = Audited("audit.json", "attack", None, (), 9.5, 4.4, "ε at δ = 1e-5", 0.95, True, True, said)
    found = Read(page_of(dataclasses.replace(report, audits=(audit,)))).text
    assert found.index("In everyday words") < found.index(words) < found.index("Thresholds")
    fine = dataclasses.replace(report, audits=(dataclasses.replace(audit, broken=False),))
    assert words not in Read(page_of(fine)).text


def test_a_run_that_is_not_finished_has_no_word_of_its_warnings(report):
    run = dataclasses.replace(report.run, finished=False)
    found = Read(page_of(dataclasses.replace(report, run=run, warnings=()))).text
    assert "Its warnings are written down when it ends." in found
    assert "not measured The run is not finished." in found
    assert "no warning" not in found
    assert "came from training" not in found


def test_what_left_is_counted_on_the_page(report):
    leaving = dataclasses.replace(report.leaving, values=8, uploads=30)
    found = Read(page_of(dataclasses.replace(report, leaving=leaving))).text
    assert "30 uploads left the clients, each of 8 numbers." in found


def test_persons_are_no_members_and_no_records(report):
    run = dataclasses.replace(report.run, unit="person")
    found = dataclasses.replace(report.guarantee, unit="person")
    text = Read(page_of(dataclasses.replace(report, run=run, guarantee=found))).text
    assert "of persons, at most, are found with 1% false positives" in text
    assert "of members, at most" not in text


def test_no_option_of_a_command_is_broken_at_its_hyphens(report):
    page = page_of(report)
    command = report.reproducing.commands[-1]
    shown = page[page.index('<pre class="command">') :]
    assert "".join(f"<span>{word}</span> " for word in command.split()).strip() in shown
    assert command in Read(page).text


def test_epsilon_begins_at_nothing_and_the_end_is_drawn_once(report):
    rounds = report.progress.rounds
    for done, lines in ((rounds[-1], 1), (rounds[-1] - 1, 2)):
        progress = dataclasses.replace(report.progress, done=done)
        found = Read(page_of(dataclasses.replace(report, progress=progress)))
        drawn = found.data("chart-progress")
        assert (drawn["data"][0]["x"][0], drawn["data"][0]["y"][0]) == (0, 0)
        assert drawn["data"][0]["x"][1:] == list(rounds)
        assert len(drawn["data"][0]["text"]) == len(rounds) + 1
        assert len(drawn["layout"]["shapes"]) == lines
        assert ("planned end, and rounds taken" in found.text) is (lines == 1)


def test_rounds_between_two_that_were_computed_are_explained(report):
    progress = dataclasses.replace(report.progress, planned=report.progress.rounds[-1] + 100)
    why = "Between two of them the line shows the next one's"
    assert why in Read(page_of(dataclasses.replace(report, progress=progress))).text
    assert why not in Read(page_of(report)).text
