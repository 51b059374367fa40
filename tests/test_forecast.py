"""What a config's run will be, before it is trained: the same as it is afterwards."""

import json
import tomllib

import pytest
import torch
from typer.testing import CliRunner

import prifedsync
from prifedsync import cli
from prifedsync.accounting import Neighbours, NoisySteps, PrivacyPlan
from prifedsync.config import from_mapping, load
from prifedsync.events import Planned, Working
from prifedsync.local import clip_margin
from prifedsync.planning import with_rule_defaults
from prifedsync.run import forecast
from prifedsync.run.forecast import _any_margin
from prifedsync.run.threads import SMALL, is_small
from prifedsync.values import BadValue

SMALL_RUN = ["data.clients=3", "rounds=2", "compare=[]", "local.batch=16"]
SIZES = {"a": 400, "b": 300, "c": 3}


def records(sizes=SIZES):
    draw = torch.Generator().manual_seed(3)
    return {
        name: (torch.randn(size, 4, generator=draw), torch.randint(0, 3, (size,), generator=draw))
        for name, size in sizes.items()
    }


def own(**changed):
    base = {"rounds": 2, "data": {"classes": 3, "test_fraction": 0.0}, "privacy": {"target": {"mu": 1.0}}}
    return from_mapping(base | changed)


def run_cli(*words):
    done = CliRunner().invoke(cli.app, [str(word) for word in words])
    return done, done.stdout


# ------------------------------------------------------------------ plans and guarantees


@pytest.mark.parametrize("noise", ["privacy.target.epsilon=2", "privacy.noise_multiplier=1.5"])
def test_it_states_what_the_run_states(noise):
    config = load("digits", [*SMALL_RUN, noise])
    expected = prifedsync.train(config).record
    said = forecast(config)
    assert [answer.plan.mechanism.noise_multiplier for answer in said.answers] == [
        client.plan["noise_multiplier"] for client in expected.clients
    ]
    assert said.statement().as_json()["epsilon"] == expected.guarantee["epsilon"]
    assert said.statement().simulation


def test_account_and_plan_read_a_config(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('preset = "digits"\nrounds = 2\ncompare = []\n[data]\nclients = 3\n[privacy.target]\nepsilon = 2.0\n')
    done, out = run_cli("account", file, "--json")
    assert done.exit_code == 0, done.output
    stated = json.loads(out)
    assert 1.99 < stated["epsilon"]["upper"] <= 2.0
    assert [client["records"] for client in stated["clients"]] == [479, 479, 479]
    done, out = run_cli("plan", file, "--json", "--set", "rounds=4")
    planned = json.loads(out)
    assert planned["rounds"] == 4
    assert planned["noise_multiplier"] == max(client["noise_multiplier"] for client in planned["clients"])
    assert sum(each["signal"] for each in planned["contributions"]) == pytest.approx(1)
    assert sum(each["noise"] for each in planned["contributions"]) == pytest.approx(1)
    done, out = run_cli("account", file)
    assert "How much one record of any client leaks" in out


def test_without_a_target_plan_shows_what_the_settings_cost():
    _, out = run_cli("plan", "digits-paper", "--set", "data.clients=3", "--set", "rounds=2")
    assert "What each client does, and what it costs" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["account", "digits", "--records", "5"], "records = 5 cannot be combined with the config digits"),
        (["account", "digits", "--delta", "1e-6"], "use --set privacy.delta=1e-06"),
        (["plan", "digits", "--target-mu", "1"], "use --set privacy.target.mu=1.0"),
        (["plan", "digits", "--solve", "rounds"], "solve = rounds cannot be combined with the config digits"),
        (["account", "--set", "rounds=2"], "records is missing; add --records, or give a config"),
        (["account", "digits", "--set", "privacy.mechanism=none"], "privacy.mechanism = none leaves no guarantee to state"),
    ],
)
def test_refusals(words, says):
    done, _ = run_cli(*words)
    assert isinstance(done.exception, BadValue)
    assert says in str(done.exception)


def test_sizes_come_from_the_config_where_the_data_are_elsewhere(tmp_path):
    numbers = 'rounds = 30\nlocal.learning_rate = 1.0\nlocal.batch = "full"\n'
    head = numbers + '[data]\nsource = "csv"\npath = "{}"\nclasses = 2\n[privacy]\nclip_norm = 1.0\ntarget.mu = 1.0\n'
    text = head + "[clients.a]\nrecords = 40\n[clients.b]\n{}\n"
    file = tmp_path / "far.toml"
    file.write_text(text.format(tmp_path / "not-here", "records = 60"))
    said = forecast(load(file))
    assert [(answer.client, answer.records) for answer in said.answers] == [("a", 40), ("b", 60)]
    assert 0.999 <= said.statement().mu.upper <= 1.0
    with pytest.raises(BadValue, match="rounds = auto is chosen where the data can be read, and here it cannot; give"):
        forecast(load(file, ["rounds=auto"]))
    with pytest.raises(BadValue, match=r"^rounds and local.batch = auto are chosen where .* they cannot; give numbers$"):
        forecast(load(file, ["rounds=auto", "local.batch=auto"]))
    auto = ["local.learning_rate=auto", "privacy.clip_norm=auto"]
    chosen = forecast(load(file, auto))  # no guarantee depends on these two
    assert chosen.statement() == said.statement()
    assert (chosen.config.local.learning_rate, chosen.config.privacy.clip_norm) == ("auto", "auto")
    shown = run_cli("train", file, "--show-config", *(word for each in auto for word in ("--set", each)))[1]
    assert "a: records = 40, batch = full, local_steps = 1, noise_multiplier = " in shown
    with pytest.raises(BadValue, match=r"privacy.clip_norm = auto is chosen where"):  # b's share of the noise depends on it
        forecast(load(file, [*auto, "clients.b.clip_norm=2"]))
    with pytest.raises(BadValue, match=r"data.overlap = true needs the data: how many clients hold one record"):
        forecast(load(file, ["data.overlap=true"]))
    file.write_text(text.format(tmp_path / "not-here", "batch = 5"))  # one number is missing
    with pytest.raises(BadValue, match="not-here"):
        forecast(load(file))


FAR = """
rounds = 4
[data]
source = "csv"
path = "{path}"
person = "patient"
person_clients = {copies}
task = "binary"
ranges = {{ "*" = [-1, 1] }}
test_fraction = 0.0
[local]
learning_rate = 1.0
batch = {batch}
[privacy]
noise_multiplier = 3.0
clip_norm = 1.0
[clients]
a.records = 12
b.records = 12
c.records = 12
"""


@pytest.mark.parametrize("device", ["cpu", "auto"])
@pytest.mark.parametrize(("copies", "batch"), [(1, '"full"'), (3, '"full"'), (3, 4)])
def test_without_the_files_no_less_is_stated_of_persons(tmp_path, copies, batch, device):
    for name in "abc":
        rows = [f"{name}{i % 12},{i / 24},{i % 2}" for i in range(24)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["patient,x,label", *rows]) + "\n")
    stated = {}
    for path in (tmp_path, tmp_path / "elsewhere"):
        file = tmp_path / "far.toml"
        file.write_text(FAR.format(path=path, copies=copies, batch=batch))
        said = forecast(load(file, [f"performance.device={device}"]))
        stated[path.name] = said.statement()
        assert {(job.plan.unit, job.plan.copies) for job in said.jobs} == {("person", copies)}
    near, far = stated[tmp_path.name].honest.epsilon.upper, stated["elsewhere"].honest.epsilon.upper
    assert near <= far <= near * 1.001


@pytest.mark.parametrize("neighbours", list(Neighbours))
@pytest.mark.parametrize("rows", [1, 32])
@pytest.mark.parametrize("arithmetic", ["float64", "float32", "tf32", "bf16"])
def test_without_the_files_the_margin_covers_every_device(tmp_path, arithmetic, rows, neighbours):
    config = own(clients={"a": {"records": 9}}, data={"source": "csv", "path": "far", "classes": 2})
    for records, batch in ((200, "full"), (200, 20), (60_000, 300), (60_000, "full")):
        steps = NoisySteps(noise_multiplier=1.0, records=records, batch=batch, local_steps=1, rows_per_unit=rows)
        for fastest in (torch.float64,) if arithmetic == "float64" else (torch.float64, torch.float32):
            needed = clip_margin(steps, neighbours, arithmetic, 10**9, fastest, 10**6)
            assert _any_margin(config)(steps, neighbours) >= needed


def test_who_cannot_meet_the_target_is_an_answer_of_plan_and_a_refusal_of_account():
    config = load("digits", ["data.clients=2", "privacy.target.mu=0.0001", "rounds=200"])
    said = forecast(config)
    assert "client client-00 cannot meet μ = 0.0001 in 200 rounds" in said.reasons[0]
    assert said.contributions is None
    with pytest.raises(BadValue, match="cannot be met by all"):
        said.statement()


# ------------------------------------------------------------------ what each client adds


def test_before_training_a_tiny_client_is_warned_of(capsys):
    """With merge = "equal" it drowns the others; weighed by its records it does not."""
    events = []
    config = own(merge="equal")
    result = prifedsync.train(config, clients=records(), watch=events.append, progress=True)
    first = [type(event).__name__ for event in events].index("Planned")
    assert not any(hasattr(event, "round") for event in events[:first])
    (planned,) = [event for event in events if isinstance(event, Planned)]
    assert planned.contributions == result.contributions
    (said,) = result.contributions.warnings
    assert said.startswith("client c adds 100.0% of the noise and 33.3% of the signal")
    assert said in result.record.warnings
    shown = capsys.readouterr().err
    assert "What each client adds to the mean (3 clients)" in shown
    assert said in " ".join(shown.split())
    by_records = prifedsync.train(own(), clients=records())
    assert by_records.contributions.warnings == ()
    assert by_records.contributions.clients[2].signal == pytest.approx(3 / 703)


def test_clients_that_are_alike_are_one_sentence(capsys):
    prifedsync.train(own(), clients=records(dict.fromkeys("abcd", 20)), progress=True)
    assert "Each of the 4 clients adds about 25.0% of the signal and of the noise." in capsys.readouterr().err


def test_without_noise_or_without_a_mean_there_is_no_table():
    for changed in ({"privacy": {"mechanism": "none"}}, {"rule": {"name": "alone"}}):
        events = []
        assert prifedsync.train(own(**changed), clients=records(), watch=events.append).contributions is None
        assert not any(isinstance(event, Planned) for event in events)


# ------------------------------------------------------------------ progress


def test_planning_and_checking_many_clients_is_told_one_by_one():
    sizes = {f"c{i}": 20 + i for i in range(5)}
    events = []
    prifedsync.train(own(local={"batch": 4}), clients=records(sizes), watch=events.append)
    for what in ("planning clients", "checking plans"):
        assert [event.done for event in events if isinstance(event, Working) and event.what == what] == [1, 2, 3, 4, 5]


def test_full_batches_are_accounted_once_for_all_sizes(monkeypatch):
    """The number of records does not enter: five clients cost as much as one."""
    composed = []
    right = PrivacyPlan._composed

    def counted(self, *given):
        composed.append((self, given))
        return right(self, *given)

    monkeypatch.setattr(PrivacyPlan, "_composed", counted)
    config = own(privacy={"noise_multiplier": 2.0})
    record = prifedsync.train(config, clients=records({f"c{i}": 20 + i for i in range(5)})).record
    views = 3  # readers, one client, and two: each with noise of its own, and all five clients alike
    assert len(composed) == 1 + views  # the bound before the first round is that of the statement
    assert len({json.dumps(client.planned) for client in record.clients}) == 1
    assert [client.plan["records"] for client in record.clients] == [20, 21, 22, 23, 24]
    assert all(client.taken["epsilon"] == client.planned["epsilon"] for client in record.clients)


# ------------------------------------------------------------------ threads


def threads_during(config, **given):
    seen = []
    prifedsync.train(config, watch=lambda event: seen.append((event, torch.get_num_threads())), **given)
    return {count for event, count in seen if hasattr(event, "round")}


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_a_small_model_takes_one_thread_and_gives_the_others_back(two_threads, monkeypatch):
    assert threads_during(own(), clients=records()) == {1}
    assert torch.get_num_threads() == 2
    assert threads_during(own(performance={"threads": 3}), clients=records()) == {3}
    assert torch.get_num_threads() == 2
    monkeypatch.setattr("prifedsync.run.threads.SMALL", 1.0)
    assert threads_during(own(), clients=records()) == {2}
    assert torch.get_num_threads() == 2


def test_threads_are_given_back_where_a_run_fails(two_threads):
    def fail(event):
        if hasattr(event, "round"):
            raise KeyError

    with pytest.raises(KeyError):
        prifedsync.train(own(performance={"threads": 1}), clients=records(), watch=fail)
    assert torch.get_num_threads() == 2


def test_what_is_small_follows_from_public_numbers():
    from prifedsync.data import Description, Task
    from prifedsync.planning import jobs_of

    def jobs(config, **sizes):
        return jobs_of(config, Description(sizes, (4,), Task("classes", 3)), lambda steps, neighbours: 0.0)

    most = int(SMALL) // 100
    assert is_small(100, jobs(own(), a=most - 10, b=10))
    assert not is_small(100, jobs(own(), a=most - 10, b=11))
    assert is_small(100, jobs(own(local={"batch": 10}), a=most, b=most))
    secret = {"mechanism": "output-gaussian", "noise_multiplier": 2.0, "neighbours": "add-remove"}
    assert not is_small(100, jobs(own(merge="equal", privacy=secret), a=5, b=5))  # 5 is not public


# ------------------------------------------------------------------ --show-config, --resume


def test_show_config_is_what_this_config_gets(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'preset = "digits"\n[data]\nclients = 2\n[rule]\nname = "apfl"\nshare = 0.25\n[clients.client-01]\nbatch = 7\n'
    )
    done, out = run_cli("train", file, "--show-config")
    assert done.exit_code == 0, done.output
    shown = tomllib.loads(out)
    assert (shown["rule"]["share"], shown["rule"]["share_rate"], shown["rule"]["publish"]) == (0.25, 0.1, False)
    assert shown["compare"] == ["alone", "alone-private", "non-private"]
    assert shown["privacy"]["randomness"] == "seeded"
    assert shown["merge"] == "records"
    (tmp_path / "again.toml").write_text(out)
    assert load(tmp_path / "again.toml") == with_rule_defaults(load(file))
    plans = forecast(load(file)).answers
    for answer in plans:
        assert f"{answer.client}: records = {answer.records}, batch = {answer.plan.mechanism.batch}" in out
        assert f"noise_multiplier = {answer.plan.mechanism.noise_multiplier}" in out
    assert plans[0].plan.mechanism.noise_multiplier != plans[1].plan.mechanism.noise_multiplier


def test_show_config_downloads_nothing_and_says_what_it_could_not_read(tmp_path):
    assert "prifedsync plan prints it" in run_cli("train", "mnist-paper", "--show-config")[1]
    own_data = ["--set", "data.source=csv", "--data", tmp_path / "nowhere", "--set", "data.classes=2"]
    done, out = run_cli("train", "digits", "--show-config", *own_data)
    assert done.exit_code == 0
    shown = tomllib.loads(out)
    assert shown["compare"] == []  # with your own data nothing is compared
    assert shown["privacy"]["randomness"] == "system"
    assert "# What each client gets is not known: the error stream says why.\n" in out


def test_show_config_puts_no_cell_of_a_record_on_the_output(tmp_path):
    (tmp_path / "a.csv").write_text("age,label\nZebra-17,0\n")
    words = ["--set", "data.source=csv", "--data", tmp_path, "--set", "data.classes=2", "--set", "data.ranges.age=[0,9]"]
    done, out = run_cli("train", "digits", "--show-config", *words)
    assert done.exit_code == 0
    assert "Zebra-17" not in out
    assert "prifedsync: client 'a', a.csv line 2, column 'age' = 'Zebra-17' must be a number" in done.stderr


def test_resuming_a_finished_run_says_so_and_is_no_error(tmp_path):
    folder = tmp_path / "run"
    result = prifedsync.train(load("digits", [*SMALL_RUN]), out=folder)
    done, out = run_cli("train", "--resume", folder)
    assert (done.exit_code, out) == (0, f"{folder} is finished; its record is {folder / 'record.json'}\n")
    done, out = run_cli("train", "--resume", folder, "--quiet")
    assert (done.exit_code, out) == (0, f"{folder}\n")
    done, out = run_cli("train", "--resume", folder, "--json")
    assert done.exit_code == 0
    assert json.loads(out)["guarantee"] == json.loads(json.dumps(result.record.guarantee))
