"""The engine whose random numbers are made on the device, against the slow twin: on the CPU, and on a GPU where one is."""

from dataclasses import replace

import pytest
import torch

from prifedsync.accounting import Sampling
from prifedsync.engines import Performance, Reference, Vectorised
from prifedsync.engines.widths import width_of
from prifedsync.local import Net, Optimiser, SeededDraws, losses
from prifedsync.local.device.stack import capacity_of
from prifedsync.local.net.precision import ONE_PIECE, OWN_SHARE
from prifedsync.rules import APFL, Ditto, FedAvg, FedProx, PFedMe, Server
from prifedsync.run.checkpoint import Checkpoint
from prifedsync.values import BadValue

from ..local.expanded import Expanded
from ..local.zoo import CASES
from .settings import (
    MLP,
    RULES,
    Proximal,
    ask,
    assert_same,
    gradients,
    jobs_of,
    jobs_under,
    perturbing,
    private,
    records_of,
    run,
    served,
    sums,
    unnoised,
    with_server,
)

CELL = 1e-4  # the twins' normals differ in their last bits, and may be rounded to neighbouring cells of the grid
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


class OnDevice(Vectorised):
    """Everything as on a GPU, wherever it runs."""

    @property
    def streams(self):
        return self.draws


def net_of(case, device="cpu", dtype=torch.float64):
    return Net(case.module(), losses.BY_TASK[case.task], *case.records(5, seed=99), dtype, device)


def twins(net, jobs, records, performance=None, seed=5, **options):
    fast = run(OnDevice, net, jobs, records, SeededDraws(seed), performance=performance, **options)
    slow = run(Reference, net, jobs, records, Expanded(net, SeededDraws(seed)), **options)
    return fast, slow


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_three_rounds_are_those_of_the_reference(name, device):
    case = CASES[name]
    assert_same(*twins(net_of(case, device), jobs_of(), records_of(case)), tolerance=CELL)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam", "adagrad", "rmsprop"])
@pytest.mark.parametrize(("batch", "sampling"), [(3, Sampling.POISSON), (3, Sampling.FIXED), ("full", Sampling.POISSON)])
def test_every_optimiser_and_batch(optimiser, batch, sampling, device):
    how = Optimiser(name=optimiser, learning_rate=0.05, stability=1e-3, weight_decay=0.1)
    jobs = jobs_of(batch=batch, sampling=sampling, optimiser=how, local_steps=3)
    assert_same(*twins(net_of(MLP, device), jobs, records_of(MLP)), tolerance=CELL)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("delivery", ["pull", "push"])
def test_a_rule_that_has_everything_with_averaging_and_chance(delivery, device):
    jobs = jobs_of(local_steps=4, averaging=0.5, participation=0.6)
    options = {"rule": Proximal(), "delivery": delivery, "participation": 0.6}
    assert_same(*twins(net_of(MLP, device), jobs, records_of(MLP), **options), tolerance=CELL)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_every_rule(rule, device):
    how = Optimiser(name="adam", learning_rate=0.05, stability=1e-3)
    jobs = jobs_under(rule, optimiser=how, local_steps=4)
    jobs = [replace(job, mixing=0.2 * i, strength=0.3 * i) for i, job in enumerate(jobs)]
    assert_same(*twins(net_of(MLP, device), jobs, records_of(MLP), rule=rule, server_rate=0.7), tolerance=CELL)


@pytest.mark.parametrize("device", DEVICES)
def test_without_noise_and_with_noise_at_the_end(device):
    net = net_of(MLP, device)
    assert_same(*twins(net, jobs_of(unnoised), records_of(MLP)), tolerance=1e-9)
    assert_same(*twins(net, jobs_of(unnoised, plan=perturbing()), records_of(MLP)), tolerance=1e-9)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("performance", [
    Performance(chunk=1), Performance(chunk=3), Performance(records_at_once=2), Performance(share=0.5),
    Performance(compile="off"), Performance(chunk=2, records_at_once=1),
])  # fmt: skip
def test_stacking_chunking_and_pieces_change_nothing(performance, device):
    net, records = net_of(MLP, device), records_of(MLP)
    for batch in (3, "full"):
        whole = run(OnDevice, net, jobs_of(batch=batch), records, SeededDraws(2))
        other = run(OnDevice, net, jobs_of(batch=batch), records, SeededDraws(2), performance=performance)
        assert_same(whole, other)


@pytest.mark.parametrize("device", DEVICES)
def test_clients_who_differ(device):
    sizes = (5, 9, 1, 7)
    jobs = [
        private("client 0", 5, batch=2, noise_multiplier=0.7, clip_norm=0.1),
        private("client 1", 9, batch=4, sampling=Sampling.FIXED, optimiser=Optimiser(name="adam", learning_rate=0.1)),
        private("client 2", 1, batch="full", local_steps=1),
        private("client 3", 7, batch=3, noise_multiplier=0.4, clip_norm=2.0, mixing=0.3),
    ]
    assert_same(*twins(net_of(MLP, device), jobs, records_of(MLP, sizes)), tolerance=CELL)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("factor", "right"), [(1, True), (2 / 3, False), (1.5, False)])
def test_the_noise_has_the_planned_scale(factor, right, device):
    """Entries of a step without records, over what the plan says, against the law of a mean of squares."""
    net = net_of(MLP, device)
    jobs = jobs_of(sizes=(40,) * 8, batch=1, local_steps=1, rounds=1, noise_multiplier=5.0)
    engine = OnDevice(net, jobs, records_of(MLP, (40,) * 8), FedAvg(), SeededDraws(8))
    weights = engine.start.expand(8, -1)
    left = gradients(engine, 0, 0, range(8), weights).double() - sums(engine, 0, 0, range(8), weights)
    seen = (left / (5.0 * 0.3 * factor)).square().mean().item()
    sigma = (2 / left.numel()) ** 0.5
    assert (abs(seen - 1) < 5 * sigma) == right


def test_a_client_draws_the_same_whoever_is_beside_it():
    net = net_of(MLP)
    engine = OnDevice(net, jobs_of(), records_of(MLP), FedAvg(), SeededDraws(1))
    together = gradients(engine, 1, 1, [0, 1, 3], engine.start.expand(3, -1))
    alone = gradients(engine, 1, 1, [3], engine.start.expand(1, -1))
    torch.testing.assert_close(together[2:], alone, rtol=1e-12, atol=1e-12)
    assert not torch.isclose(together[0], together[1]).any()


def test_how_many_are_stacked_is_decided_once():
    assert capacity_of(100, 1.0, 1000) == 100
    assert capacity_of(1000, 1.0, 190) == 167
    assert 10 <= capacity_of(100, 0.1, 100) <= 20
    assert capacity_of(3, 0.5, 2) <= 2
    widths = {width_of([private("a", 600, batch=16, sampling=how)], 64) for how in (Sampling.POISSON, Sampling.FIXED)}
    assert widths == {32, 16}
    assert width_of([private("a", 600, batch="full")], 64) == 64


# ---------------------------------------------------------------------- programs


def test_rounds_of_changing_size_share_their_programs(compiler):
    """Poisson cohorts and Poisson batches: nothing is compiled after the first round."""
    sizes = (9,) * 12
    jobs, net = jobs_of(sizes=sizes, participation=0.4, rounds=8), net_of(MLP)
    how = Performance(share=0.4, compile="on")
    seen = run(OnDevice, net, jobs, records_of(MLP, sizes), SeededDraws(3), rounds=8, participation=0.4, performance=how)
    assert len({len(uploads.senders) for uploads in seen.uploads}) > 2
    assert len(compiler) == 2  # gradients and optimiser
    slow = run(Reference, net, jobs, records_of(MLP, sizes), Expanded(net, SeededDraws(3)), rounds=8, participation=0.4)
    assert_same(seen, slow, tolerance=CELL)


def test_compiled_is_as_traced(compiler):
    for case in (MLP, CASES["conv2d"]):
        net, records = net_of(case), records_of(case)
        for rule in (FedAvg(), Proximal(), PFedMe(inner_steps=2), APFL()):
            jobs = jobs_under(rule, averaging=1.0, strength=0.5)
            plain = run(OnDevice, net, jobs, records, SeededDraws(2), rule=rule)
            how = Performance(compile="on")
            assert_same(plain, run(OnDevice, net, jobs, records, SeededDraws(2), rule=rule, performance=how))
    assert compiler


@pytest.mark.parametrize(("rounds", "compiles"), [(1, False), (10**6, True)])
def test_it_is_compiled_where_the_run_wins_it_back(rounds, compiles):
    how = Performance(rounds=rounds)
    engine = OnDevice(net_of(MLP), jobs_of(), records_of(MLP), FedAvg(), SeededDraws(1), performance=how)
    assert engine.compiles == compiles
    for asked in ("on", "off"):
        how = Performance(rounds=rounds, compile=asked)
        engine = OnDevice(net_of(MLP), jobs_of(), records_of(MLP), FedAvg(), SeededDraws(1), performance=how)
        assert engine.compiles == (asked == "on")


@pytest.mark.parametrize("device", DEVICES)
def test_a_resumed_run_is_the_same_and_compiled_as_it_was_begun(tmp_path, device):
    net, records, jobs = net_of(MLP, device), records_of(MLP), jobs_of(rounds=6, optimiser=Optimiser(name="adam"))
    whole = run(OnDevice, net, jobs, records, SeededDraws(4), rounds=6)
    first = run(OnDevice, net, jobs, records, SeededDraws(4), rounds=3, folder=tmp_path)
    first.engine.compiles = True
    Checkpoint(tmp_path).save(first.servers[-1], first.engine, first.aggregator, {})
    engine = OnDevice(net, jobs, records, FedAvg(), SeededDraws(4), folder=tmp_path)
    server, _ = Checkpoint(tmp_path).load(engine, served(engine))
    assert engine.compiles
    engine.compiles = False
    for round in range(3, 6):
        server = FedAvg().merge(server, ask(engine, round, range(len(jobs)), server.weights).rows, 1.0).next_round(False)
        assert torch.equal(server.weights, whole.servers[round].weights)


def test_a_run_is_not_resumed_where_other_noise_would_be_drawn(tmp_path):
    """The same key stands for other numbers on a host and on a device."""
    net, records, jobs = net_of(MLP), records_of(MLP), jobs_of()
    begun = Vectorised(net, jobs, records, FedAvg(), SeededDraws(4), folder=tmp_path)
    Checkpoint(tmp_path).save(Server(begun.start), begun, served(begun), {})
    with pytest.raises(BadValue, match="differs from the run that was begun: arithmetic"):
        Checkpoint(tmp_path).load(*with_server(OnDevice(net, jobs, records, FedAvg(), SeededDraws(4), folder=tmp_path)))


# ---------------------------------------------------------------------- on a GPU alone

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@on_gpu
@pytest.mark.parametrize("arithmetic", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize("name", ["mlp", "conv2d", "group norm", "linear over time"])
def test_one_record_moves_a_sum_no_further_than_the_margin_says(name, arithmetic):
    """Records whose gradients are far too long, all in one direction: the clipped sum is as long as it can be."""
    case = CASES[name]
    x, y = case.records(1, seed=3)
    net = Net(case.module(), losses.BY_TASK[case.task], x, y, torch.float32, "cuda", arithmetic=arithmetic)
    width, clip = net.most_at_once, 1e-3
    xs, ys = (t.cuda().expand(2, width, *t.shape[1:]).contiguous() for t in (x, y))
    valid = torch.ones(2, width, dtype=torch.bool, device="cuda")
    valid[1, -1] = False
    masks = {n: torch.ones(2, width, *shape, device="cuda") for n, (_, shape) in net.dropouts.items()}
    start, clips = net.initial().expand(2, -1).contiguous(), torch.full((2,), clip, dtype=torch.float64, device="cuda")
    with net.exact():
        sums = net.clipped_sums(start, xs, ys, valid, clips, masks).double()
    assert sums[0].norm() > 0.9 * width * clip
    assert (sums[0] - sums[1]).norm() <= clip * (1 + OWN_SHARE[arithmetic] + ONE_PIECE[arithmetic])


@on_gpu
@pytest.mark.parametrize("arithmetic", ["tf32", "bf16"])
def test_compiled_eager_whole_and_chunked_agree_on_a_gpu(arithmetic):
    case = CASES["conv2d"]
    net = Net(
        case.module(), losses.BY_TASK[case.task], *case.records(5, seed=9), torch.float32, "cuda", arithmetic=arithmetic
    )
    jobs = jobs_of(sizes=(20,) * 5, batch=6, clip_margin=2e-3, optimiser=Optimiser(name="adam", learning_rate=0.01))
    records = records_of(case, (20,) * 5)
    hows = [Performance(compile="on"), Performance(compile="off"), Performance(compile="on", chunk=2)]
    runs = [run(Vectorised, net, jobs, records, SeededDraws(3), performance=how) for how in hows]
    assert runs[0].engine.streams is not None
    for other in runs[1:]:
        assert_same(runs[0], other, tolerance=2e-2)


@on_gpu
@pytest.mark.parametrize("rule", [FedProx(), PFedMe(inner_steps=2), APFL(), Ditto(publish=True)], ids=str)
def test_compiled_and_eager_rules_agree_on_a_gpu(rule):
    case, sizes = CASES["conv2d"], (20,) * 5
    net = Net(case.module(), losses.BY_TASK[case.task], *case.records(5, seed=9), torch.float32, "cuda", arithmetic="tf32")
    adam = Optimiser(name="adam", learning_rate=0.01)
    options = {"batch": 6, "clip_margin": 2e-3, "strength": 0.5, "optimiser": adam}
    jobs = jobs_under(rule, sizes=sizes, local_steps=4, **options)
    hows = [Performance(compile="on"), Performance(compile="off")]
    runs = [run(Vectorised, net, jobs, records_of(case, sizes), SeededDraws(3), rule=rule, performance=how) for how in hows]
    assert_same(*runs, tolerance=2e-2)


@pytest.mark.parametrize("device", DEVICES)
def test_sums_of_a_kept_model_are_taken_where_they_are_asked_for(device):
    """Not at the rule's point of it: whoever asks has made that already."""
    net, rule = net_of(MLP, device), APFL(publish=True)
    jobs, records = jobs_under(rule, batch="full"), records_of(MLP)
    group, step = list(range(len(jobs))), jobs[0].kept.first
    points = net.initial() + torch.linspace(0, 1, len(group), dtype=net.dtype, device=net.device).unsqueeze(1)
    there, here = (kind(net, jobs, records, rule, SeededDraws(1)) for kind in (OnDevice, Reference))
    ask(there, 0, group, net.initial())  # anchors and shares are those of a round
    found = sums(there, 1, step, group, points, "kept")
    truth = sums(here, 1, step, group, points, "kept")
    torch.testing.assert_close(found, truth)
