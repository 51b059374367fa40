"""A person as the unit: what one person adds, how persons are drawn and counted, and the engines side by side."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from scipy import stats
from torch import nn

from prifedsync.accounting import Neighbours, Sampling
from prifedsync.engines import ENGINES, Performance, Reference, Vectorised
from prifedsync.local import Job, Net, Optimiser, RecordedDraws, SeededDraws, SystemDraws, UnnoisedSteps, losses
from prifedsync.local.batches import packed
from prifedsync.local.net.persons import FLOOR
from prifedsync.rules import Ditto, FedAvg
from prifedsync.values import BadValue

from ..local.expanded import Expanded
from ..local.laws import ENOUGH, follows
from ..local.zoo import CASES, CLASSES, TOKENS, Case
from .settings import MLP, ask, assert_same, gradients, net_of, perturbing, private, run, sums
from .test_device import CELL, OnDevice

MOST = 30
ROWS = ((1, 3, 30, 2, 7), (4,), (1, 1, 1, 1, 1, 1), (30, 29, 2, 15, 1, 1, 8, 3))  # of the persons of each client
MARGIN = 1e-3  # more than any of these plans needs
KINDS = {**ENGINES, "on a device": OnDevice}
ENGINE = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def of_persons(job, most=MOST):
    """The same job, about persons."""
    mechanism = job.plan.mechanism
    if mechanism.steps:
        mechanism = replace(mechanism, rows_per_unit=most, clip_margin=MARGIN)
    return replace(job, plan=replace(job.plan, mechanism=mechanism, unit="person"))


def persons_of(rows):
    return torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(rows))


def federation(case, rows=ROWS):
    records = [case.records(sum(own), seed=10 + i) for i, own in enumerate(rows)]
    return records, {"persons": [persons_of(own) for own in rows], "rows_per_person": MOST}


def jobs_for(rows=ROWS, **changed):
    return [of_persons(private(f"client {i}", len(own), **changed)) for i, own in enumerate(rows)]


NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
GPU = pytest.param(OnDevice, "cuda", marks=NO_GPU)


# ---------------------------------------------------------------------- the engines side by side


def twins(net, jobs, case, kind=Vectorised, performance=None, rows=ROWS, **options):
    records, whose = federation(case, rows)
    if kind is OnDevice:
        fast = run(OnDevice, net, jobs, records, SeededDraws(5), performance=performance, **options, **whose)
        return fast, run(Reference, net, jobs, records, Expanded(net, SeededDraws(5)), **options, **whose)
    tape = RecordedDraws(SeededDraws(5))
    fast = run(Vectorised, net, jobs, records, tape, performance=performance, **options, **whose)
    slow = run(Reference, net, jobs, records, tape.replay(), **options, **whose)
    assert set(fast.draws.asked) == set(slow.draws.asked)
    return fast, slow


METHODS = [
    ("mlp", "bookkeeping"), ("mlp", "vmap"), ("mlp", "loop"), ("linear over time", "bookkeeping"),
    ("conv2d stride padding groups", "bookkeeping"), ("embedding with padding", "bookkeeping"), ("sequence", "bookkeeping"),
    ("group norm", "vmap"), ("recurrent", "loop"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "device"), [(Vectorised, "cpu"), (OnDevice, "cpu"), GPU])
@pytest.mark.parametrize(("name", "method"), METHODS)
def test_every_method_is_the_reference(name, method, kind, device):
    case = CASES[name]
    net = Net(case.module(), losses.BY_TASK[case.task], *case.records(5, seed=99), torch.float64, device, method)
    assert net.grad_method == method
    assert_same(*twins(net, jobs_for(), CASES[name], kind), tolerance=CELL if kind is OnDevice else 1e-9)


@pytest.mark.parametrize("kind", [Vectorised, OnDevice])
@pytest.mark.parametrize(("batch", "sampling"), [(3, Sampling.FIXED), ("full", Sampling.POISSON), (1, Sampling.POISSON)])
def test_every_way_to_draw_persons(batch, sampling, kind):
    jobs = jobs_for(batch=batch, sampling=sampling, local_steps=3)
    assert_same(*twins(net_of(MLP), jobs, MLP, kind), tolerance=CELL if kind is OnDevice else 1e-9)


def unnoised(rows=ROWS, plan=None, batch=3, **job):
    steps = [UnnoisedSteps(records=len(own), batch=min(batch, len(own)), local_steps=2) for own in rows]
    return [Job(client=f"client {i}", plan=plan, optimiser=Optimiser(learning_rate=0.5), unnoised_steps=each, **job)
            for i, each in enumerate(steps)]  # fmt: skip


@pytest.mark.parametrize("kind", [Vectorised, OnDevice])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "single"])
def test_steps_without_noise_weigh_persons_alike(kind, dtype):
    tolerance = 1e-9 if dtype == torch.float64 else 1e-5
    assert_same(*twins(net_of(MLP, dtype), unnoised(), MLP, kind), tolerance=tolerance)
    plan = replace(perturbing(), unit="person")
    if dtype == torch.float64:
        assert_same(*twins(net_of(MLP, dtype), unnoised(plan=plan), MLP, kind), tolerance=tolerance)


@pytest.mark.parametrize("kind", [Vectorised, OnDevice])
def test_kept_models_dropout_and_augmentation(kind):
    rule = Ditto()
    jobs = [replace(job, kept_steps=2, strength=0.1) for job in jobs_for()]
    tolerance = CELL if kind is OnDevice else 1e-9
    assert_same(*twins(net_of(MLP), jobs, MLP, kind, rule=rule), tolerance=tolerance)
    image = CASES["dropout"]
    assert net_of(image).dropouts
    assert_same(*twins(net_of(image), jobs_for(), image, kind), tolerance=tolerance)
    assert_same(*twins(net_of(MLP), jobs_for(), MLP, kind, augment="crop-flip"), tolerance=tolerance)


@pytest.mark.parametrize("kind", [Vectorised, OnDevice])
@pytest.mark.parametrize(
    "performance", [Performance(chunk=1), Performance(records_at_once=2), Performance(records_at_once=64)]
)
def test_stacking_and_pieces_change_nothing(performance, kind):
    records, whose = federation(MLP)
    net = net_of(MLP)
    for batch in (3, "full"):
        jobs = jobs_for(batch=batch)
        whole = run(kind, net, jobs, records, SeededDraws(2), **whose)
        assert_same(whole, run(kind, net, jobs, records, SeededDraws(2), performance=performance, **whose))


def test_persons_with_one_row_are_records():
    """To the last bit where the bound says so, and up to rounding where more would be allowed."""
    records, _ = federation(MLP, ((1,) * 5, (1,) * 9))
    persons = [torch.arange(len(y)) for _, y in records]
    net = net_of(MLP)
    plain = [private(f"client {i}", len(y)) for i, (_, y) in enumerate(records)]
    as_records = run(Vectorised, net, plain, records, SeededDraws(2))
    bound = [of_persons(job, 1) for job in plain]
    assert_same(as_records, run(Vectorised, net, bound, records, SeededDraws(2), persons=persons, rows_per_person=1), 0.0)
    more = [of_persons(job, 4) for job in plain]
    assert_same(as_records, run(Vectorised, net, more, records, SeededDraws(2), persons=persons, rows_per_person=4), 1e-9)


# ---------------------------------------------------------------------- how rows are packed


def random_rows(seed, shape, most):
    return torch.randint(0, most + 1, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("most", [1, 2, 7])
@pytest.mark.parametrize("width", [7, 13, 40])
def test_every_row_is_packed_once_and_no_person_is_split(most, width):
    rows = random_rows(most * width, (3, 2, 23), most)
    unit, row, valid, groups = packed(rows, width, most)
    assert unit.shape == (3, 2, unit.shape[2], width)
    for k in range(3):
        for c in range(2):
            here = valid[k, c]
            found = [(int(u), int(r)) for u, r in zip(unit[k, c][here], row[k, c][here], strict=True)]
            assert sorted(found) == [(u, r) for u in range(23) for r in range(int(rows[k, c, u]))]
            for piece in range(here.shape[0]):
                whose = {}
                for place in range(width):
                    group = int(groups[k, c, piece, place])
                    if here[piece, place]:
                        whose.setdefault(group, set()).add(int(unit[k, c, piece, place]))
                    else:
                        assert group == place
                        whose.setdefault(group, set()).add("padding")
                assert all(len(each) == 1 for each in whose.values())  # one person, or padding
                for u in {int(u) for u in unit[k, c, piece][here[piece]]}:
                    mine = here[piece] & (unit[k, c, piece] == u)
                    assert int(mine.sum()) == int(rows[k, c, u])


def test_nobody_needs_no_piece():
    assert packed(torch.zeros(2, 0, dtype=torch.long), 8, 3).valid.shape == (2, 0, 8)
    assert packed(torch.zeros(2, 5, dtype=torch.long), 8, 3).valid.shape == (2, 0, 8)


# ---------------------------------------------------------------------- sensitivity: all rows of one person replaced

CLIP = 0.3
ROUNDING = 1 + 1e-9
OTHERS = (3, 1, 30, 2)
PLACE = 2  # of the person who is replaced


@cache
def net_by(name, method, dtype):
    return net_of(CASES[name], dtype, method)


def hostile(case, count, seed):
    """Rows of one person, by name: as many as `count` of every kind."""
    x, y = case.records(count, seed=seed)
    yield "as they are", x, y
    yield "another label", x, (y + 1) % CLASSES
    if not x.is_floating_point():
        yield "one token", x * 0 + TOKENS - 1, y
        return
    yield "huge", 1e30 * x, y
    yield "tiny", 1e-30 * x, y
    yield "nan", x * float("nan"), y
    yield "all the same", x[:1].expand_as(x).clone(), y[:1].expand_as(y).clone()
    mixed = x.clone()
    mixed[0] *= 1e20
    yield "one huge row", mixed, y
    broken = x.clone()
    broken[-1] = float("inf")
    yield "one broken row", broken, y


def engine_with(kind, net, case, rows, x, y, **changed):
    """One client with the others' rows, and these in the middle."""
    before, after = sum(OTHERS[:PLACE]), sum(OTHERS)
    others_x, others_y = case.records(after, seed=4)
    x = torch.cat([others_x[:before], x, others_x[before:]])
    y = torch.cat([others_y[:before], y, others_y[before:]])
    counts = (*OTHERS[:PLACE], *rows, *OTHERS[PLACE:])
    job = of_persons(private("a", len(counts), batch="full", clip_norm=CLIP, **changed))
    return kind(net, [job], [(x, y)], FedAvg(), SeededDraws(1), persons=[persons_of(counts)], rows_per_person=MOST)


SENSITIVE = [("mlp", "bookkeeping"), ("mlp", "vmap"), ("mlp", "loop"), ("embedding with padding", "bookkeeping"),
             ("conv2d stride padding groups", "bookkeeping"), ("linear over time", "bookkeeping")]  # fmt: skip


@ENGINE
@pytest.mark.parametrize(("name", "method"), SENSITIVE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])
def test_all_rows_of_a_person_move_the_sum_by_no_more_than_accounted(kind, name, method, dtype):
    case, net = CASES[name], net_by(name, method, dtype)
    for strength in (1.0, 1e6):  # what a server sends may make gradients as large as it likes
        weights = strength * net.initial().expand(1, -1)
        x, y = case.records(1, seed=1)
        without = sums(engine_with(kind, net, case, (), x[:0], y[:0]), 0, 0, [0], weights)
        found = {}
        for count in (1, 2, MOST):  # a person may be replaced by one with more rows or fewer
            for adversary, x, y in hostile(case, count, seed=7 + count):
                total = sums(engine_with(kind, net, case, (count,), x, y), 0, 0, [0], weights)
                assert torch.isfinite(total).all(), adversary
                assert (total - without).norm() <= CLIP * ROUNDING, (adversary, count)  # added, or removed
                if adversary in ("nan", "one broken row"):
                    torch.testing.assert_close(total, without, rtol=1e-9, atol=1e-12)
                found[adversary, count] = total
        assert all((one - other).norm() <= 2 * CLIP * ROUNDING for one in found.values() for other in found.values())
        if strength > 1:  # and the bound is reached
            assert max((total - without).norm() for total in found.values()) >= CLIP * (1 - 1e-6)


class Transparent(nn.Module):
    """The gradient of a record is the record itself, times the output's: a row can have any gradient it likes."""

    def __init__(self, width=5, outputs=1):
        super().__init__()
        self.layer = nn.Linear(width, outputs, bias=False)
        nn.init.zeros_(self.layer.weight)

    def forward(self, x):
        return self.layer(x)


def transparent(method, dtype, width=5):
    x = torch.randn(4, width, generator=torch.Generator().manual_seed(0))
    return Net(Transparent(width), losses.BY_TASK["regression"], x, torch.ones(4), dtype, grad_method=method)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])
@pytest.mark.parametrize("method", ["bookkeeping", "vmap", "loop", "reference", "device"])
@pytest.mark.parametrize("size", [1e3, 1e15, 1e30])
def test_rows_that_cancel_neither_escape_the_clip_nor_swallow_the_others(method, dtype, size):
    """Rows g and −g + tiny. Their mean is short, so that a careless clip would leave rows of any length in the sum."""
    width = 5
    net = transparent(None if method in ("reference", "device") else method, dtype, width)
    kind = {"reference": Reference, "device": OnDevice}.get(method, Vectorised)
    draw = torch.Generator().manual_seed(3)
    others = torch.randn(40, width, generator=draw, dtype=torch.float64)
    pair = size * torch.randn(1, width, generator=draw, dtype=torch.float64)
    small = torch.randn(1, width, generator=draw, dtype=torch.float64)

    def total(person):
        x = torch.cat([others[:20], person, others[20:]]).to(dtype)
        counts = (1,) * 20 + ((len(person),) if len(person) else ()) + (1,) * 20
        job = of_persons(private("a", len(counts), batch="full", clip_norm=CLIP))
        whose = {"persons": [persons_of(counts)], "rows_per_person": MOST}
        engine = kind(net, [job], [(x, torch.ones(len(x), dtype=dtype))], FedAvg(), SeededDraws(1), **whose)
        return sums(engine, 0, 0, [0], torch.zeros(1, net.count, dtype=dtype))

    without = total(others[:0])
    for person in ([pair, -pair], [pair, small - pair], [pair, pair, -2 * pair], [pair, -pair] * 15):
        assert (total(torch.cat(person)) - without).norm() <= CLIP * ROUNDING


def test_a_person_whose_rows_cancel_counts_as_longer():
    """By the same rule in all methods: at least a 64th of the mean norm of its rows."""
    net = transparent("bookkeeping", torch.float64)
    x = torch.zeros(1, 4, 5, dtype=torch.float64)
    x[0, 0, 0], x[0, 1, 0], x[0, 1, 1] = 1000.0, -1000.0, 2.0  # mean (0, 1), mean norm 1000
    groups, valid = torch.tensor([[0, 0, 2, 3]]), torch.tensor([[True, True, False, False]])
    given = torch.zeros(1, net.count, dtype=torch.float64), x, torch.ones(1, 4, dtype=torch.float64), valid
    for method in ("bookkeeping", "vmap", "loop"):
        own = transparent(method, torch.float64)
        found = own.clipped_sums(*given, torch.tensor([1.0]), {}, groups=groups)
        assert found.norm().item() == pytest.approx(1 / (FLOOR * 1000), rel=1e-5)
        assert own.clipped_sums(*given, torch.tensor([100.0]), {}, groups=groups).norm().item() == pytest.approx(
            1, rel=1e-6
        )


@NO_GPU
@pytest.mark.parametrize("arithmetic", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize("size", [1e3, 1e15])
@pytest.mark.parametrize("compile", ["on", "off"])  # each takes half a minute to compile
def test_on_a_gpu_a_person_moves_the_sum_no_further_than_planned(arithmetic, size, compile):
    """Rows that cancel, and an ordinary person, among forty others."""
    net = Net(Transparent(8, 3), losses.BY_TASK["classes"], torch.randn(4, 8), torch.tensor([0, 1, 2, 0]), torch.float32,
              "cuda", None, arithmetic)  # fmt: skip
    draw = torch.Generator().manual_seed(3)
    others, pair, usual = torch.randn(40, 8, generator=draw), size * torch.randn(1, 8, generator=draw), torch.randn(9, 8)

    def total(person):
        x = torch.cat([others[:20], person, others[20:]])
        counts = (1,) * 20 + ((len(person),) if len(person) else ()) + (1,) * 20
        job = of_persons(private("a", len(counts), batch="full", clip_norm=CLIP))
        whose = {"persons": [persons_of(counts)], "rows_per_person": MOST}
        y = torch.zeros(len(x), dtype=torch.long)
        engine = Vectorised(
            net, [job], [(x, y)], FedAvg(), SeededDraws(1), performance=Performance(compile=compile), **whose
        )
        return sums(engine, 0, 0, [0], torch.zeros(1, net.count, device="cuda")).cpu(), job.noisy.clip_margin

    without, margin = total(others[:0])
    broken = [torch.full_like(pair, value) for value in (torch.nan, torch.inf)]
    for person in (
        [pair, -pair],
        [pair, pair, -2 * pair],
        [pair, -pair] * 15,
        [usual],
        *([usual, each] for each in broken),
    ):
        assert (total(torch.cat(person))[0] - without).norm() <= CLIP * (1 + margin)


@ENGINE
def test_ten_rows_add_no_more_than_one(kind):
    """The mean of a person's gradients: ten equal rows are one."""
    net = net_by("mlp", "bookkeeping", torch.float64)
    x, y = MLP.records(1, seed=9)
    weights = 30 * net.initial().expand(1, -1)
    one = sums(engine_with(kind, net, MLP, (1,), x, y), 0, 0, [0], weights)
    ten = sums(engine_with(kind, net, MLP, (10,), x.expand(10, *x.shape[1:]), y.expand(10)), 0, 0, [0], weights)
    torch.testing.assert_close(one, ten, rtol=1e-9, atol=1e-9)


# ---------------------------------------------------------------------- sampling and noise

WIDE = Case(lambda: nn.Linear(400, 256), (400,))
wide = cache(lambda: net_of(WIDE))
FOUR = (3, 1, 30, 2)
RATE = 0.5


@ENGINE
@pytest.mark.parametrize("sampling", list(Sampling))
def test_persons_are_drawn_at_the_planned_rate_with_all_their_rows(kind, sampling):
    """One-hot persons: the sum of a step shows who was in the batch. Failing by accident: below 10⁻⁹."""
    rows = tuple(1 + i % 7 for i in range(60))
    net = transparent("bookkeeping", torch.float64, len(rows))
    x = torch.eye(len(rows), dtype=torch.float64)[persons_of(rows)]
    job = of_persons(private("a", len(rows), batch=15, clip_norm=1.0, sampling=sampling, rounds=40, local_steps=1))
    whose = {"persons": [persons_of(rows)], "rows_per_person": MOST}
    y = torch.full((len(x),), -1e6, dtype=torch.float64)
    engine = kind(net, [job], [(x, y)], FedAvg(), SeededDraws(8), **whose)
    weights = torch.zeros(1, net.count, dtype=torch.float64)
    seen = torch.cat([sums(engine, round, 0, [0], weights) for round in range(40)])
    torch.testing.assert_close(seen, seen.round(), rtol=0, atol=1e-6)  # all of a person, or nothing
    assert set(seen.round().flatten().tolist()) == {0.0, 1.0}
    assert stats.binomtest(int(seen.round().sum()), seen.numel(), 15 / 60).pvalue > 1e-9
    by_rows = [int(seen.round()[:, torch.tensor(rows) == count].sum()) for count in (1, 7)]
    for count, drawn in zip((1, 7), by_rows, strict=True):  # a person with seven rows is drawn as often as one with one
        assert stats.binomtest(drawn, 40 * rows.count(count), 15 / 60).pvalue > 1e-9
    if sampling is Sampling.FIXED:
        assert (seen.round().sum(1) == 15).all()
    else:
        assert len(set(seen.round().sum(1).tolist())) > 1


def noisy_job(**changed):
    changed = {"batch": "full", "local_steps": 1, "optimiser": Optimiser(learning_rate=RATE), **changed}
    return of_persons(private("a", len(FOUR), clip_norm=CLIP, **changed))


@ENGINE
@pytest.mark.parametrize("draws", [lambda: SeededDraws(17), SystemDraws], ids=["seeded", "secret"])
def test_the_noise_is_that_of_the_plan_and_counts_persons(kind, draws):
    """The noise of a step, and what it is divided by: four persons with 36 rows. Noise at 2/3 and 1.5 is found."""
    assert wide().count >= ENOUGH
    (x, y), whose = WIDE.records(sum(FOUR), seed=10), {"persons": [persons_of(FOUR)], "rows_per_person": MOST}

    def noise(factor):
        engine = kind(wide(), [noisy_job(noise_multiplier=2.0 * factor)], [(x, y)], FedAvg(), draws(), **whose)
        start = engine.start.expand(1, -1)
        clipped = sums(engine, 0, 0, [0], start)
        assert clipped.norm() <= len(FOUR) * CLIP
        sent = (start - ask(engine, 0, [0], engine.start).rows.value).double() * len(FOUR) / RATE - clipped
        assert engine.clients[0].queries == 1
        return sent

    assert follows(noise(1.0), stats.norm, 2.0 * CLIP)
    assert not any(follows(noise(factor), stats.norm, 2.0 * CLIP) for factor in (2 / 3, 1.5))


# ---------------------------------------------------------------------- plans, binding, refusals


def test_a_plan_about_something_else_is_refused():
    records, whose = federation(MLP)
    net, plain = net_of(MLP), [private(f"client {i}", len(own)) for i, own in enumerate(ROWS)]
    thin = [replace(job, plan=job.plan.changed(clip_margin=1e-9)) for job in jobs_for()]
    split = {"persons": [torch.arange(len(y)) % 2 for _, y in records]}
    by_row = [of_persons(private(f"client {i}", len(y))) for i, (_, y) in enumerate(records)]
    for said, jobs, given in (
        ("unit = record", plain, whose),
        ("unit = person", by_row, {}),
        ("rows_per_unit = 30", jobs_for(), whose | {"rows_per_person": MOST + 1}),
        (
            "30 has more records than rows_per_person = 29",
            [of_persons(job, 29) for job in plain],
            whose | {"rows_per_person": 29},
        ),
        ("side by side", jobs_for(), whose | split),
        ("but the client has 5", by_row, whose),  # a plan counts persons, not rows
        ("does not cover rounding", thin, whose),
    ):
        with pytest.raises(BadValue, match=said):
            Vectorised(net, jobs, records, FedAvg(), SeededDraws(1), **given)


def test_secret_draws_are_bound_to_who_is_who():
    """The same records in other hands: other noise and other batches, and a resumed run is refused."""
    (x, y), net, secret = MLP.records(sum(FOUR), seed=10), net_of(MLP), SystemDraws(bytes(32))

    def engine(rows):
        whose = {"persons": [persons_of(rows)], "rows_per_person": MOST}
        return Vectorised(net, [noisy_job()], [(x, y)], FedAvg(), secret, **whose)

    one, other = engine(FOUR), engine((2, 2, 30, 2))
    assert one.context != other.context
    assert one.context == engine(FOUR).context
    with pytest.raises(BadValue, match="persons"):
        other.load(one.save())


@ENGINE
def test_under_add_remove_a_nominal_number_of_persons_is_public(kind):
    """More persons than planned: the rate and the divisor stay."""
    net, rows = net_by("mlp", "bookkeeping", torch.float64), (2,) * 9
    x, y = MLP.records(18, seed=1)
    job = of_persons(private("a", 5, batch=2, neighbours=Neighbours.ADD_REMOVE, clip_norm=CLIP))
    whose = {"persons": [persons_of(rows)], "rows_per_person": MOST}
    engine = kind(net, [job], [(x, y)], FedAvg(), SeededDraws(2), **whose)
    found = gradients(engine, 0, 0, [0], engine.start.expand(1, -1))
    assert torch.isfinite(found).all()
