"""A project as `deploy init` writes it: whose eyes each file is for, and that its owners accept the run and no other."""

import json
import stat
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from prifedsync import train
from prifedsync.asking.questions import Accepted, Declined, Enrol
from prifedsync.asking.refusals import Refusal
from prifedsync.asking.tensors import packed_bytes
from prifedsync.config import load
from prifedsync.deploy import project as project_module
from prifedsync.deploy.example import HOSPITALS, TESTS, UNLABELLED, example
from prifedsync.deploy.hosts import ALWAYS, Reached
from prifedsync.deploy.places import ProjectPlaces, ServerPlaces, SitePlaces
from prifedsync.deploy.project import _question_bytes
from prifedsync.deploy.settings import (
    MOST_QUESTION,
    ListenConfig,
    ServerSettings,
    SiteSettings,
    WaitingConfig,
    server_settings,
    site_settings,
)
from prifedsync.owner import admission
from prifedsync.owner.checkup import checkup
from prifedsync.owner.desk import Desk
from prifedsync.owner.keys import pinned
from prifedsync.owner.ledger import Ledger
from prifedsync.owner.ledger.pages import kept_for
from prifedsync.owner.log import OwnerLog
from prifedsync.owner.policy import read
from prifedsync.owner.records import records_of
from prifedsync.run import prepare
from prifedsync.values import BadValue

from .runs import BASE, CLIENTS, described, document, made, policies, rows, table, written_config

SECRETS = ("ca.key", "server.key", "tasks.secret", "policy.toml", "identity.key", "records.csv", "node.key")
CLOSED = ("authority", "server", "tls", "owner", "door", "site")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The example, for a server at two places."""
    folder = tmp_path_factory.mktemp("example") / "project"
    written = made(folder, None, hosts=("fl.example.org", "10.0.0.7"), port=9443)
    assert not written.notes
    return folder


@pytest.fixture(scope="module")
def asked(project):
    return document(project)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


# ---------------------------------------------------------------------- files


def test_secrets_are_for_one_user_and_closed_folders_too(project):
    seen = set()
    for path in project.rglob("*"):
        if path.name in SECRETS:
            assert mode(path) == 0o600, path
            seen.add(path.name)
        if path.name in CLOSED:
            assert mode(path) == 0o700, path
    assert seen == set(SECRETS)
    assert mode(project) == 0o700


def test_no_secret_is_in_two_places(project):
    found = {}
    for path in project.rglob("*"):
        if path.name in SECRETS and path.name not in ("policy.toml", "records.csv"):
            found.setdefault(path.read_bytes(), []).append(path)
    assert all(len(paths) == 1 for paths in found.values())
    assert len(found) == 1 + 1 + 4 + 3 + 3  # authority, server, tasks, owners, network sides


def test_each_party_has_its_files(project):
    places = ProjectPlaces(project)
    server = places.server
    for path in (server.authority, server.certificate, server.key, server.secret, server.preprocessing):
        assert path.is_file()
    assert len(server.secret.read_bytes()) == 32
    assert {path.name for path in server.nodes.iterdir()} == {f"{name}.pub" for name in HOSPITALS}
    for name in HOSPITALS:
        site = SitePlaces(places.client(name).site)
        assert site.public.read_text() == (server.nodes / f"{name}.pub").read_text()
        assert site.authority.read_bytes() == server.authority.read_bytes()
        assert places.client(name).door.is_dir()
    assert not list(server.folder.rglob("ca.key"))


def test_the_settings_are_read(project):
    server = server_settings(project / "server")
    assert (server.listen.host, server.listen.port, server.insecure) == ("0.0.0.0", 9443, False)
    site = site_settings(project / "clients/hospital-a/site")
    assert (site.client, site.server) == ("hospital-a", "fl.example.org:9443")
    assert site.question == MOST_QUESTION
    assert site.owner.resolve().parent == (project / "clients/hospital-a/door").resolve()


def test_a_site_carries_every_question_that_its_owner_allows(project):
    policy = read(project / "clients/hospital-a/owner/policy.toml")
    for count in (100, 10**9):
        wide = replace(policy, limits=replace(policy.limits, parameters=count))
        helper = packed_bytes("helper", torch.float64, count)
        assert helper < _question_bytes(wide) < helper + 10 * 2**20


def test_the_pages_name_each_party_and_leave_no_gap(project):
    page = (project / "README.md").read_text()
    assert all(f"`clients/{name}/`" in page for name in HOSPITALS)
    for path in [*project.rglob("README.md"), *project.rglob("Containerfile"), *project.rglob("*.service")]:
        assert "$client" not in path.read_text()
        assert "$folder" not in path.read_text()
    own = (project / "clients/hospital-b/README.md").read_text()
    assert "at most 24 rounds, spare attempts among them, of the model `softmax`" in own
    assert "/srv/prifedsync/hospital-b" in own
    assert "fl.example.org:9443" in own


# ---------------------------------------------------------------------- what is trained


def test_the_server_plans_what_a_training_run_over_the_same_tables_plans(project):
    config, description = described(project)
    served = prepare(config, description)
    with example() as (source, _):
        held = prepare(source.changed(**{"performance.device": "cpu"}))
    assert served.jobs == held.jobs
    assert served.net.arithmetic == "float32"
    assert (config.compare, config.performance.checkpoint_seconds) == ((), 0.0)
    said = json.loads(ServerPlaces(project / "server").preprocessing.read_text())
    assert said == held.preprocessing.as_json()


def test_the_example_learns_most_digits(project):
    test = project / "example/test.csv"
    with example(["evaluate_every=0"]) as (config, _):
        result = train(config)
    found = result.evaluate(test).together.scores["accuracy"].value
    assert found > 0.85  # 0.89 to 0.92 were seen


def test_the_rows_of_the_example_have_no_label(project):
    lines = (project / "example/rows.csv").read_text().splitlines()
    assert len(lines) == 1 + UNLABELLED
    assert "digit" not in lines[0]
    assert len((project / "example/test.csv").read_text().splitlines()) == 1 + TESTS


def test_hospitals_hold_different_digits(project):
    held = []
    for name in HOSPITALS:
        lines = (project / "clients" / name / "owner/records.csv").read_text().splitlines()[1:]
        held.append({line.rpartition(",")[2] for line in lines})
    assert all(len(digits) < 10 for digits in held)
    assert set.union(*held) == set(map(str, range(10)))


# ---------------------------------------------------------------------- policies


def new_ledger(policy, folder):
    path = folder / f"{policy.client}.db"
    Ledger.create(path, **kept_for(policy), anchor=None)
    return Ledger.open(path, **kept_for(policy), anchor=None)


def test_every_owner_accepts_the_run_once(project, asked, tmp_path):
    for policy in policies(project).values():
        assert admission.refusal(policy, asked) is None
        plan = asked.job(policy.client).plan
        with new_ledger(policy, tmp_path) as ledger:
            told = {"document": asked.digest, "text": asked.text, "plan": plan, "by": "1", "queries": 1}
            assert ledger.reserve(asked.run, **told)
            assert not ledger.reserve("f" * 32, **told)  # the budget is for one run


def test_an_owner_enrols_the_run(project, asked, tmp_path):
    policy = policies(project)["hospital-c"]
    with new_ledger(policy, tmp_path) as ledger:
        desk = Desk(policy, ledger, records_of(policy), OwnerLog(tmp_path / "log"))
        assert isinstance(desk.enrol(Enrol(policy.client, asked.mapping, b"s" * 32), "1"), Accepted)
        other = document(project, 2, rounds=21)
        assert desk.enrol(Enrol(policy.client, other.mapping, b"s" * 32), "1") == Declined(Refusal.ROUNDS)


def test_a_masked_enrolment_that_comes_twice_has_one_introduction(project, asked, tmp_path):
    """The server takes the answer to any try, and others have met what it said."""
    policy = policies(project)["hospital-b"]
    with new_ledger(policy, tmp_path) as ledger:
        desk = Desk(policy, ledger, records_of(policy), OwnerLog(tmp_path / "log"))
        first = desk.enrol(Enrol(policy.client, asked.mapping, b"s" * 32), "1")
        trainer = desk._held[asked.run].trainer
        assert desk.enrol(Enrol(policy.client, asked.mapping, b"s" * 32), "1").introduction == first.introduction
        assert desk._held[asked.run].trainer is trainer
        assert desk.enrol(Enrol(policy.client, asked.mapping, b"t" * 32), "1").introduction != first.introduction
        assert desk._held[asked.run].trainer is not trainer


def noise_of(document):
    return document.jobs[0].plan.mechanism.noise_multiplier


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"rounds": 21}, Refusal.ROUNDS),
        ({"privacy.attempts": 5}, Refusal.ROUNDS),
        ({"privacy.clip_norm": 1.01}, Refusal.CLIP),
        ({"privacy.masks": False, "privacy.attempts": 0, "rounds": 24}, Refusal.MASKS),
        ({"model.name": "mlp"}, Refusal.MODEL),
        ({"rule.name": "fedprox", "rule.strength": 0.01}, Refusal.RULE),
    ],
)
def test_another_run_is_declined(project, changes, refusal):
    other = document(project, 2, **changes)
    assert all(admission.refusal(policy, other) == refusal for policy in policies(project).values())


def test_less_noise_is_declined_by_policy_and_budget(project, asked, tmp_path):
    noise = noise_of(asked) * 2 / 3
    other = document(project, 2, **{"privacy.target": {"mu": None}, "privacy.noise_multiplier": noise})
    assert noise_of(other) == noise
    for policy in policies(project).values():
        assert admission.refusal(policy, other) == Refusal.NOISE
        with new_ledger(policy, tmp_path) as ledger:
            plan = other.job(policy.client).plan
            assert not ledger.reserve(other.run, document=other.digest, text=other.text, plan=plan, by="1", queries=1)


def test_the_whole_roster_is_pinned_by_everybody(project):
    known = [pinned(policy) for policy in policies(project).values()]
    assert len(known) == 3
    assert known[0] == known[1] == known[2]
    assert set(known[0]) == set(HOSPITALS)
    assert len(set(known[0].values())) == 3


def test_the_check_of_an_owner_finds_nothing_wrong(project):
    policy = policies(project)["hospital-a"]
    Ledger.create(policy.path("ledger"), **kept_for(policy), anchor=None)
    try:
        assert {finding.what for finding in checkup(policy) if finding.status == "wrong"} <= {"socket"}  # a long path
    finally:
        policy.path("ledger").unlink()


# ---------------------------------------------------------------------- one's own config


def test_one_file_for_each_client_is_copied(tmp_path):
    source = written_config(tmp_path)
    written = made(tmp_path / "p", source, reply_seconds=3.5)
    assert {name: policy.source.records for name, policy in written.policies.items()} == CLIENTS
    asked = document(tmp_path / "p")
    for name, policy in policies(tmp_path / "p").items():
        assert (policy.folder / "records.csv").read_bytes() == (tmp_path / f"tables/{name}.csv").read_bytes()
        assert policy.replies.seconds == 3.5
        assert policy.data.columns == ("age", "sex", "dose")
        assert records_of(policy).description.shape == (4,)
        assert admission.refusal(policy, asked) is None
        assert policy.limits.participants == 2
        assert not policy.masks.required


@pytest.mark.parametrize(("reply", "question", "longest"), [(10.0, 60.0, 3600.0), (600.0, 1800.0, 6000.0)])
def test_all_wait_long_enough_for_replies_that_leave_late(tmp_path, reply, question, longest):
    """Else each question would be sent while the owner is still at it, and its answers come too late."""
    made(tmp_path / "p", written_config(tmp_path), reply_seconds=reply)
    places = ProjectPlaces(tmp_path / "p")
    waiting = server_settings(places.server.folder).waiting
    assert (waiting.question, waiting.round) == (question, longest)
    assert {site_settings(places.client(name).site).wait for name in CLIENTS} == {longest}
    assert {policy.replies.seconds for policy in policies(tmp_path / "p").values()} == {reply}


def test_a_client_whose_columns_have_another_order_has_the_same_inputs(tmp_path):
    source = written_config(tmp_path)
    turned = [line[::-1] for line in rows(40, 1)]
    table(tmp_path / "tables/south.csv", turned, ("label", "dose", "sex", "age"))
    held = prepare(load(source))
    made(tmp_path / "p", source)
    own = records_of(policies(tmp_path / "p")["south"])
    assert own.train.x.equal(next(each for each in held.held.clients if each.name == "south").train.x)


def test_one_file_for_all_is_divided(tmp_path):
    names = ["north"] * 30 + ["south"] * 40
    lines = [[name, *row] for name, row in zip(names, rows(70), strict=True)]
    table(tmp_path / "all.csv", lines, ("clinic", "age", "sex", "dose", "label"))
    text = BASE.replace('"tables"', '"all.csv"').replace("[local]", "[local]\nlocal_steps = 1")
    source = tmp_path / "run.toml"
    source.write_text(text.replace("classes = 2", 'classes = 2\nclient_column = "clinic"\npartition = "column"'))
    made(tmp_path / "p", source)
    assert {name: len(records_of(policy).train) for name, policy in policies(tmp_path / "p").items()} == CLIENTS
    held = {each.name: each.train.x for each in prepare(load(source)).held.clients}
    for name, policy in policies(tmp_path / "p").items():
        assert records_of(policy).train.x.equal(held[name])
    assert described(tmp_path / "p")[0].data.client_column == ""


def test_arrays_with_persons_are_divided(tmp_path):
    draw = np.random.default_rng(0)
    client = np.array([b"north"] * 20 + [b"south"] * 20)
    arrays = {"x": draw.random((40, 3)), "y": draw.integers(0, 2, 40), "client": client, "who": np.arange(40) // 2}
    np.savez(tmp_path / "all.npz", **arrays)
    text = """
    rounds = 3
    data = {source = "npz", path = "all.npz", classes = 2, test_fraction = 0.0, person = "who", rows_per_person = 4,
        person_clients = 2, ranges = {"*" = [0, 1]}}
    local = {batch = "full", learning_rate = 0.5}
    privacy = {clip_norm = 1.0, noise_multiplier = 8.0}
    """
    (tmp_path / "run.toml").write_text(" ".join(text.split()).replace(" data =", "\ndata =")
        .replace(" local =", "\nlocal =").replace(" privacy =", "\nprivacy ="))  # fmt: skip
    made(tmp_path / "p", tmp_path / "run.toml")
    asked = document(tmp_path / "p")
    for policy in policies(tmp_path / "p").values():
        own = records_of(policy)
        assert (policy.source.unit, policy.source.holders, own.train.units) == ("person", 2, 10)
        assert admission.refusal(policy, asked) is None
        with new_ledger(policy, tmp_path) as ledger:  # both owners of a person count
            told = {"document": asked.digest, "text": asked.text, "by": "1", "queries": 1}
            assert ledger.reserve(asked.run, plan=asked.job(policy.client).plan, **told)


def test_without_records_the_config_says_enough(tmp_path):
    text = BASE.replace("classes = 2", 'classes = 2\ncolumns = ["age", "sex", "dose"]').replace("tables", "elsewhere")
    text += "".join(f"[clients.{name}]\nrecords = {count}\n" for name, count in CLIENTS.items())
    (tmp_path / "run.toml").write_text(text)
    written = made(tmp_path / "p", tmp_path / "run.toml")
    assert not written.records
    beside = written_config(tmp_path / "held")
    made(tmp_path / "q", beside)
    assert document(tmp_path / "p").text == document(tmp_path / "q").text
    one, other = (ServerPlaces(tmp_path / name / "server").preprocessing.read_text() for name in "pq")
    assert one == other
    for client in CLIENTS:
        folder = tmp_path / "p/clients" / client
        assert not list(folder.rglob("records.csv"))
        assert "Put the " in (folder / "README.md").read_text()


def test_nominal_numbers_stand_for_private_ones(tmp_path):
    more = 'neighbours = "add-remove"\n[clients.north]\nrecords = 25\n[clients.south]\nrecords = 50\n'
    made(tmp_path / "p", written_config(tmp_path, BASE + more))
    found = policies(tmp_path / "p")
    assert {name: policy.source.records for name, policy in found.items()} == {"north": 25, "south": 50}
    assert all(policy.source.neighbours == "add-remove" for policy in found.values())
    asked = document(tmp_path / "p")
    assert all(admission.refusal(policy, asked) is None for policy in found.values())
    assert "30" not in json.dumps(tomllib.loads((tmp_path / "p/server/config.toml").read_text())["clients"])


def test_odd_names_are_folders_and_units(tmp_path):
    odd = "Klinik Süd 100% & more"
    made(tmp_path / "p", written_config(tmp_path, clients={odd: 30, "b": 30}))
    assert set(policies(tmp_path / "p")) == {odd, "b"}
    quoted = "Klinik%20S%C3%BCd%20100%25%20%26%20more"
    folder = tmp_path / "p/clients" / quoted
    assert site_settings(folder / "site").client == odd
    assert (tmp_path / "p/server/nodes" / f"{quoted}.pub").is_file()
    unit = (folder / "prifedsync-owner.service").read_text()
    assert f"/srv/prifedsync/{quoted.replace('%', '%%')}/owner/policy.toml" in unit


def test_what_only_a_simulation_has_is_changed_with_a_note(tmp_path):
    text = BASE.replace("test_fraction = 0.0", "test_fraction = 0.2").replace("rounds = 3", "rounds = 3\nlost = 0.1")
    written = made(tmp_path / "p", written_config(tmp_path, text + 'randomness = "seeded"\n'))
    assert [note.split(" is set")[0] for note in written.notes] == ["data.test_fraction", "privacy.randomness", "lost"]
    config, _ = described(tmp_path / "p")
    assert (config.data.test_fraction, config.privacy.randomness, config.lost) == (0.0, "system", 0.0)


def test_numbers_that_nobody_gave_are_chosen_and_written(tmp_path):
    text = BASE.replace("rounds = 3\n", "").replace("learning_rate = 0.5", "").replace("clip_norm = 1.0", "")
    written = made(tmp_path / "p", written_config(tmp_path, text))
    assert len(written.notes) == 3
    config, description = described(tmp_path / "p")
    assert prepare(config, description).jobs == prepare(prepare(config, description).config, description).jobs
    asked = document(tmp_path / "p")
    assert all(admission.refusal(policy, asked) is None for policy in policies(tmp_path / "p").values())


def test_batches_are_judged_by_the_exact_guarantee(tmp_path):
    made(tmp_path / "p", written_config(tmp_path, BASE.replace('batch = "full"', "batch = 5")))
    asked = document(tmp_path / "p")
    for policy in policies(tmp_path / "p").values():
        plan = asked.job(policy.client).plan
        assert plan.guarantee().mu(1e-5).upper <= policy.budget.mu <= plan.guarantee().mu(1e-5).upper + 0.002
        with new_ledger(policy, tmp_path) as ledger:
            assert ledger.reserve(asked.run, document=asked.digest, text=asked.text, plan=plan, by="1", queries=1)


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["data.source=digits", "data.path="], "data.source = digits cannot be deployed"),
        (["data.source=mnist"], "data.source = mnist cannot be deployed"),
        (["data.overlap=true"], "data.overlap = true draws records"),
        (["data.path=nowhere"], "data.path = nowhere cannot be read here"),
        (["privacy.mechanism=none"], "privacy.mechanism = none cannot be deployed: owners release nothing"),
        (["rule.name=alone"], "rule.name = alone cannot be deployed: its clients send nothing"),
        (["rule.name=own.py:Rule"], "rule.name"),
        (["local.optimiser=own.module:Update"], "optimiser"),
        (["model.layer_rules=own.module:rules"], "layer_rules"),
        (
            ["privacy.masks=true", "privacy.least_clients=2", "participation=0.5"],
            "participation = 0.5 must be 1 with privacy.masks",
        ),
        (["clients.north.records=31"], "clients.north.records = 31 must be 30"),
        (["clients.nort.batch=3"], "clients.nort is not a client of this data"),
        (["privacy.neighbours=add-remove"], "clients.north.records must be set with add-remove"),
        (["privacy.noise_multiplier=0.05", "rounds=1000"], "add more noise"),
    ],
)
def test_a_run_that_owners_cannot_take_is_refused_before_anything_is_written(tmp_path, overrides, text):
    source = written_config(tmp_path)
    with pytest.raises(BadValue) as refused:
        made(tmp_path / "p", source, *overrides)
    assert text in str(refused.value)
    assert refused.value.remedy
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.toml", "tables"]


def test_a_column_of_clients_that_is_not_there_is_refused(tmp_path):
    table(tmp_path / "all.csv", rows(40))
    text = BASE.replace('"tables"', '"all.csv"').replace("classes = 2", 'classes = 2\nclient_column = "clinic"')
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(BadValue, match=r"data\.client_column = 'clinic' is not a column of all\.csv"):
        made(tmp_path / "p", tmp_path / "run.toml")


@pytest.mark.parametrize("missing", ["y", "who"])
def test_an_array_that_is_not_there_is_refused(tmp_path, missing):
    arrays = {"x": np.zeros((40, 3)), "y": np.arange(40) % 2, "who": np.arange(40), "client": np.arange(40) // 20}
    np.savez(tmp_path / "all.npz", **{name: values for name, values in arrays.items() if name != missing})
    text = BASE.replace('"csv"', '"npz"').replace('"tables"', '"all.npz"').replace('categories = { sex = ["f", "m"] }', "")
    (tmp_path / "run.toml").write_text(text.replace("{ age = [0, 100], dose = [0, 1] }", '{ "*" = [0, 1] }'))
    with pytest.raises(BadValue, match=f"must include {missing}"):
        made(tmp_path / "p", tmp_path / "run.toml", "data.person=who", "data.rows_per_person=2")


def test_a_file_that_does_not_say_whose_its_records_are_is_refused(tmp_path):
    table(tmp_path / "all.csv", rows(40))
    (tmp_path / "run.toml").write_text(BASE.replace("tables", "all.csv"))
    with pytest.raises(BadValue, match="does not deal records to clients; name the column"):
        made(tmp_path / "p", tmp_path / "run.toml")


def test_a_folder_with_something_in_it_is_refused(tmp_path):
    (tmp_path / "p").mkdir()
    (tmp_path / "p/mine").touch()
    with pytest.raises(BadValue, match="is not empty"):
        made(tmp_path / "p")
    with pytest.raises(BadValue, match="is a file"):
        made(tmp_path / "p/mine")
    with pytest.raises(BadValue, match="lies in a folder that does not exist"):
        made(tmp_path / "no/p")


def test_an_empty_folder_is_filled_also_where_a_shell_stands_in_it(tmp_path, monkeypatch):
    source = written_config(tmp_path)
    (tmp_path / "p").mkdir()
    monkeypatch.chdir(tmp_path / "p")
    made(Path(), source)
    assert Path("README.md").is_file()
    assert mode(tmp_path / "p") == 0o700
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p", "run.toml", "tables"]


def test_nothing_is_left_where_writing_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(project_module, "_first_page", lambda project: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        made(tmp_path / "p", written_config(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.toml", "tables"]


@pytest.mark.parametrize(
    "host",
    [
        *("0.0.0.0", "fl.example.org:9092", "a b", "ä.example", "", "1.2.3", "-a.org", "[::]"),
        *("224.0.0.1", "fe80::1%eth0"),  # of many machines, and of an interface of one machine
    ],
)
def test_a_host_that_no_client_reaches_is_refused(tmp_path, host):
    with pytest.raises(BadValue, match="host = "):
        made(tmp_path / "p", hosts=(host,))


@pytest.mark.parametrize(
    ("hosts", "listen", "own"),
    [
        (("127.0.0.1",), "127.0.0.1", "127.0.0.1:9092"),
        (("::1",), "::1", "[::1]:9092"),
        (("2001:db8::7", "::1"), "::", "[::1]:9092"),
        (("fl.example.org", "2001:db8::7"), "0.0.0.0", "127.0.0.1:9092"),
        (("2001:db8::7", "fl.example.org"), "::", "[::1]:9092"),  # clients are told the first one
        (("10.0.0.7",), "0.0.0.0", "127.0.0.1:9092"),
    ],
)
def test_the_server_listens_where_clients_look_for_it(hosts, listen, own):
    reached = Reached(hosts=hosts)
    assert reached.listen == listen
    assert ServerSettings(listen=ListenConfig(host=listen)).place == own
    assert own.rpartition(":")[0].strip("[]") in ALWAYS


def test_an_insecure_project_is_for_one_machine_and_has_no_keys(tmp_path):
    source = written_config(tmp_path)
    with pytest.raises(BadValue, match=r"host = fl\.example\.org cannot be combined with --insecure"):
        made(tmp_path / "p", source, hosts=("fl.example.org",), insecure=True)
    made(tmp_path / "p", source, insecure=True)
    assert server_settings(tmp_path / "p/server").insecure
    assert site_settings(tmp_path / "p/clients/north/site").insecure
    names = {path.name for path in (tmp_path / "p").rglob("*")}
    assert not names & {"ca.key", "ca.crt", "server.key", "node.key", "nodes", "authority", "tls"}
    assert "insecure" in (tmp_path / "p/README.md").read_text()
    assert all(pinned(policy) for policy in policies(tmp_path / "p").values())


def test_what_the_program_alone_sets_is_not_suggested_as_a_field(tmp_path):
    (tmp_path / "server.toml").write_text('folder = "x"')
    with pytest.raises(BadValue, match=r'^folder = "x" is not a field; prifedsync deploy init DIR writes it'):
        server_settings(tmp_path)


@pytest.mark.parametrize("name", ["begin", "round", "question", "offline"])
def test_a_time_that_no_clock_takes_is_refused(name):
    with pytest.raises(BadValue, match=rf"^waiting\.{name} = 1e\+300 must be a number .* 1e\+07\]"):
        ServerSettings(waiting=WaitingConfig(**{name: 1e300}))
    with pytest.raises(BadValue, match=r"^wait = 1e\+300 must be a number in \(0, 1e\+07\]"):
        SiteSettings(client="a", server="fl:9092", wait=1e300)
