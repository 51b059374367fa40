"""What `bench` says is what it measured, and its rivals do the same work."""

import json
import struct
import sys
from dataclasses import replace

import pytest
import torch

from prifedsync.bench import PRESETS, measure
from prifedsync.bench.measuring import LEAST, Rounds
from prifedsync.bench.rivals import opacus, optimiser_of, plain
from prifedsync.bench.timing import Spread, Variant, take_turns
from prifedsync.cli import main
from prifedsync.local import Optimiser
from prifedsync.report.bench import draw
from prifedsync.run import prepare
from prifedsync.values import BadValue

from ..engines.settings import noisy_queries

RATIOS = {  # field → the quotient it is
    "private_over_nonprivate": ("iteration_ms", "nonprivate_ms"),
    "speedup_over_opacus": ("opacus_ms", "iteration_ms"),
    "speedup_over_opacus_ghost": ("opacus_ghost_ms", "iteration_ms"),
    "speedup_over_plain_loop": ("plain_loop_ms", "iteration_ms"),
    "speedup_over_reference": ("reference_ms", "iteration_ms"),
}
QUICK = ["local.local_steps=2"]


@pytest.fixture(scope="module")
def found():
    pytest.importorskip("opacus")
    return measure("mlp", device="cpu", clients=[3, 2], overrides=QUICK, limit=0)


@pytest.fixture
def without_opacus(monkeypatch):
    for name in ("opacus", "opacus.grad_sample", "opacus.optimizers"):
        monkeypatch.setitem(sys.modules, name, None)


def prepared(preset, clients=1, records=None, overrides=()):
    work = PRESETS[preset]
    work = replace(work, records=records or work.records)
    return prepare(work.config("cpu", "cpu", overrides), work.federation(clients))


# ---------------------------------------------------------------------- what is said


def test_every_time_is_there_and_every_ratio_is_its_quotient(found):
    for ratio, (above, below) in RATIOS.items():
        assert found[above] > 0
        assert found[below] > 0
        assert found[ratio] == found[above] / found[below]
    assert found["round_ms"] == found["iteration_ms"] * found["local_steps"]
    assert found["client_step_ms"] == found["iteration_ms"] / found["clients"]
    assert found["first_round_s"] > 0
    assert found["peak_memory_mib"] > 0


def test_what_was_timed_is_described(found):
    assert (found["preset"], found["device"], found["clients"], found["local_steps"]) == ("mlp", "cpu", 3, 2)
    assert (found["batch"], found["parameters"], found["gradients"]) == (16, 64 * 64 + 64 + 64 * 10 + 10, "bookkeeping")
    assert found["repetitions"] == LEAST  # no time was left for more
    assert found["opacus_clients"] == 2  # of three
    assert any("scaled to 3" in note for note in found["notes"])
    assert found["versions"]["opacus"]
    assert found["versions"]["torch"] == torch.__version__
    for name, (low, high) in found["spread"].items():
        assert found["fastest"][name] <= low <= found[name] <= high
    json.dumps(found, allow_nan=False)


def test_the_first_number_of_clients_is_compared_and_all_are_in_the_scaling(found):
    assert [row["clients"] for row in found["scaling"]] == [2, 3]
    assert found["scaling"][1]["iteration_ms"] == found["iteration_ms"]
    for row in found["scaling"]:
        assert row["client_step_ms"] == row["iteration_ms"] / row["clients"]


def test_without_opacus_its_fields_are_null(without_opacus, tmp_path):
    found = measure("mlp", device="cpu", clients=[2], overrides=QUICK, limit=0)
    for name in ("opacus", "opacus_ghost"):
        assert found[f"{name}_ms"] is None
        assert found[f"speedup_over_{name}"] is None
    assert found["opacus_clients"] is None
    assert found["versions"]["opacus"] is None
    assert "Opacus is not installed" in found["notes"]
    assert found["iteration_ms"] > 0
    draw(found, tmp_path / "bench.png")
    assert (tmp_path / "bench.png").stat().st_size > 10_000


def test_without_cryptography_the_draws_are_seeded(monkeypatch):
    assert PRESETS["mlp"].config("cpu", None, []).privacy.randomness == "system"
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert PRESETS["mlp"].config("cpu", None, []).privacy.randomness == "seeded"


@pytest.mark.parametrize(
    ("preset", "given", "named"),
    [
        ("mnist-papr", {}, "did you mean mnist-paper?"),
        ("mlp", {"clients": [0]}, "clients"),
        ("mlp", {"overrides": ["data.clients=3"]}, "--clients"),
        ("mlp", {"overrides": ["privacy.mechanism=none"]}, "privacy.mechanism"),
        ("mlp", {"overrides": ["rounds=3"]}, "rounds"),
        ("mlp", {"overrides": ["local.bach=3"]}, "local.batch"),
    ],
)
def test_bad_input_is_refused(preset, given, named):
    with pytest.raises(BadValue, match=named):
        measure(preset, device="cpu", limit=0, **given)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(BadValue, match="is not there"):
        measure("mlp", device="cuda", limit=0)


@pytest.fixture
def command(monkeypatch, capsys):
    """`prifedsync bench …` in this process: importing torch again would take longer than the rest."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["prifedsync", "bench", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        seen = capsys.readouterr()
        return ended.value.code or 0, seen.out, seen.err

    return call


def test_the_command_prints_json_alone_and_leaves_json_and_a_picture(command, without_opacus, tmp_path):
    words = ["mlp", "--device", "cpu", "--clients", "2,1", "--set", "local.local_steps=1"]
    code, said, told = command(*words, "--out", tmp_path / "new", "--json")
    assert (code, told) == (0, "")
    assert json.loads(said) == json.loads((tmp_path / "new/bench.json").read_text())
    picture = (tmp_path / "new/bench.png").read_bytes()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", picture[16:24])
    assert width > 1.5 * height > 600
    assert len(picture) > 10_000


def test_in_words_it_is_a_table(command, found, monkeypatch):
    monkeypatch.setattr("prifedsync.bench.measure", lambda *given, **named: found)
    code, said, told = command("mlp")
    assert (code, told) == (0, "")
    for expected in (
        "ours, private",
        "Opacus with ghost clipping",
        "against ours",
        "ms a client",
        "3 repetitions",
        "scaled to 3",
    ):
        assert expected in " ".join(said.split())


def test_the_command_refuses_in_one_line(command):
    refusal = "prifedsync: clients = ten must be whole numbers between commas; for example 1,10,100\n"
    assert command("--clients", "ten") == (2, "", refusal)
    code, _, told = command("nosuch")
    assert (code, told.count("\n")) == (2, 1)


# ---------------------------------------------------------------------- the same work


@pytest.mark.parametrize("way", ["hooks", "ghost"])
def test_opacus_clips_to_the_same_sum_as_we_do(way):
    pytest.importorskip("opacus")
    full = ["local.batch=full", "local.local_steps=1", "local.learning_rate=1.0", "privacy.clip_norm=0.5"]
    ready = prepared("mlp", records=12, overrides=full)
    net, client = ready.net, ready.federation.clients[0].train
    rival = opacus(ready, 1, way, noise_multiplier=0.0)
    rival()
    after = torch.cat([p.detach().flatten() for p in rival.clients[0].model.parameters()])
    theirs = (net.initial() - after) * len(client)  # one step of SGD at rate 1 undone
    valid, clip = torch.ones(1, len(client), dtype=torch.bool), torch.tensor([0.5], dtype=torch.float64)
    ours = net.clipped_sums(net.initial()[None], client.x[None], client.y[None], valid, clip, {})[0]
    unclipped = net.plain_sums(net.initial()[None], client.x[None], client.y[None], valid, {})[0]
    assert torch.allclose(theirs, ours.float(), atol=2e-5)
    assert (ours - unclipped).norm() > 0.5  # clipping did something


def test_rivals_take_as_many_steps_with_as_much_noise():
    pytest.importorskip("opacus")
    ready = prepared("mlp", clients=3, overrides=["local.local_steps=4", "local.optimiser=adam", "privacy.clip_norm=0.5"])
    for rival in (opacus(ready, 2, "hooks"), opacus(ready, 2, "ghost"), plain(ready, 2)):
        rival()
        rival()
        assert len(rival.clients) == 2
        for one in rival.clients:
            states = one.optimiser.state.values()
            assert {int(state["step"]) for state in states} == {8}
    dp = opacus(ready, 1, "hooks").clients[0].optimiser
    assert (dp.noise_multiplier, dp.max_grad_norm, dp.expected_batch_size) == (2.0, 0.5, 16)


def test_our_own_rounds_are_real():
    ready = prepared("pfl-cifar10", clients=5, records=10, overrides=["local.local_steps=1"])
    rounds = Rounds(ready, 2)
    rounds()
    rounds()
    assert sum(noisy_queries(rounds.cohort)) == 4  # two clients, two rounds, one noisy gradient each
    assert ready.net.count == 1_626_442


def test_the_optimisers_are_those_of_the_config():
    net = torch.nn.Linear(2, 2)
    for name, kind in (
        ("sgd", "SGD"),
        ("momentum", "SGD"),
        ("adam", "Adam"),
        ("adagrad", "Adagrad"),
        ("rmsprop", "RMSprop"),
    ):
        made = optimiser_of(Optimiser(name=name, learning_rate=0.1, weight_decay=0.5), net)
        assert type(made).__name__ == kind
        assert (made.defaults["lr"], made.defaults["weight_decay"]) == (0.1, 0.5)


def test_the_general_preset_has_no_fast_rule_and_opacus_takes_it():
    ready = prepared("general", records=4, overrides=["local.batch=2", "local.local_steps=1"])
    assert ready.net.grad_method != "bookkeeping"
    assert ready.net.count == 1_199_882 + 32 + 64 + 128 + 10
    pytest.importorskip("opacus")
    from opacus.validators import ModuleValidator

    assert ModuleValidator.validate(ready.module) == []
    rival = opacus(ready, 1, "hooks")
    before = [p.detach().clone() for p in rival.clients[0].model.parameters()]
    rival()
    after = rival.clients[0].model.parameters()
    assert all(not torch.equal(old, new) for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_has_a_config(preset, kind):
    work = PRESETS[preset]
    config = work.config(kind, None, [])
    assert config.local.sampling == "fixed"
    assert config.local.local_steps == (work.cpu_steps if kind == "cpu" and work.cpu_steps else config.local.local_steps)
    assert work.config(kind, None, ["local.local_steps=7"]).local.local_steps == 7


# ---------------------------------------------------------------------- the clock


def test_variants_take_turns():
    order = []
    runs = {name: Variant(lambda name=name: order.append(name), 1.0) for name in "ab"}
    runs["slow"] = Variant(lambda: order.append("slow"), 1.0, most=1)
    spreads = take_turns(runs, torch.device("cpu"), limit=0.0, least=3, most=9)
    assert order == ["a", "b", "slow", "a", "b", "a", "b"]
    assert [spread.count for spread in spreads.values()] == [3, 3, 1]


def test_a_spread_is_made_of_quartiles():
    assert Spread.of([4.0, 1.0, 3.0, 2.0, 5.0]) == Spread(3.0, 2.0, 4.0, 1.0, 5)
