"""What is refused before the first step, in one line with the layer's name and the cure; and what is let in."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from prifedsync.local import Net, losses
from prifedsync.local.net.inspection import check_every_record
from prifedsync.values import BadValue

from .zoo import CLASSES, Tokens


def forward_of(function, **buffers):
    """A module with a linear layer `head` from 6 to CLASSES, and this forward."""

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(6, CLASSES)
            for name, value in buffers.items():
                self.register_buffer(name, value)

        def forward(self, x):
            return function(self, x)

    return Module()


def in_place(module, x):
    module.seen.mul_(0.9).add_(x.mean(0))
    return module.head(x)


def reassigned(module, x):
    module.seen = 0.9 * module.seen + x.mean(0)
    return module.head(x)


def at_first_sight(module, x):
    """Initialised from the first batch, and never again."""
    if not module.done:
        module.seen.copy_(x.mean(0))
        module.done.fill_(True)
    return module.head(x - module.seen)


def from_nothing(module, x):
    if module.seen is None:
        module.seen = x.mean(0)
    return module.head(x - module.seen)


def kept_in_an_attribute(module, x):
    """As above, but where no state_dict shows it."""
    if not hasattr(module, "first"):
        module.first = x.mean(0)
    return module.head(x - module.first)


def remembered(module, x):
    """State that is no buffer."""
    module.last = getattr(module, "last", 0) + x.mean()
    return module.head(x) + module.last


MIXES = "model = Module mixes records: changing one record moved the output of another; let forward treat each record"
TWO_ANSWERS = "model = Module gives two answers to one question; use nn.Dropout modules"
BUFFER = "model buffer = seen is updated in forward, without noise; keep no statistics of the records"
REMEMBERS = "model = Module remembers the records it saw first, without noise; let nothing in it depend on earlier calls"
NO_AXIS = "model output = (5,) for 4 records; the first axis must be the record"
ZEROS = torch.zeros(6)

MODULES = {
    "minus the mean": (lambda: forward_of(lambda m, x: m.head(x - x.mean(0))), MIXES),
    "softmax over records": (lambda: forward_of(lambda m, x: m.head(x).softmax(0)), MIXES),
    "sorted records": (lambda: forward_of(lambda m, x: m.head(x.sort(0).values)), MIXES),
    "records reversed": (lambda: forward_of(lambda m, x: m.head(x.flip(0))), MIXES),
    "the largest of all": (lambda: forward_of(lambda m, x: m.head(x / x.abs().max())), MIXES),
    "by how many there are": (lambda: forward_of(lambda m, x: m.head(x / len(x))), MIXES),
    "dropout in forward": (lambda: forward_of(lambda m, x: m.head(F.dropout(x, 0.5))), TWO_ANSWERS),
    "rare dropout in forward": (lambda: forward_of(lambda m, x: m.head(F.dropout(x, 1e-6))), TWO_ANSWERS),
    "noise in forward": (lambda: forward_of(lambda m, x: m.head(x) + torch.randn(1)), TWO_ANSWERS),
    "remembered": (lambda: forward_of(remembered), TWO_ANSWERS),
    "kept in an attribute": (lambda: forward_of(kept_in_an_attribute), REMEMBERS),
    "buffer in place": (lambda: forward_of(in_place, seen=ZEROS), BUFFER),
    "buffer reassigned": (lambda: forward_of(reassigned, seen=ZEROS), BUFFER),
    "buffer at first sight": (lambda: forward_of(at_first_sight, seen=ZEROS, done=torch.tensor(False)), BUFFER),
    "buffer from nothing": (lambda: forward_of(from_nothing, seen=None), BUFFER),
    "no axis of records": (lambda: forward_of(lambda m, x: m.head(x).sum(0)), NO_AXIS),
}


def layers(*between, shape=(6,)):
    width = torch.Size(shape).numel()
    return nn.Sequential(*between, nn.Flatten(), nn.Linear(width, CLASSES)), shape


NORMS = "mixes the records of a batch; use nn.GroupNorm, or freeze the layer"
STATISTICS = "keeps statistics of the records; use nn.GroupNorm, or freeze the layer"

LAYERS = {
    "BatchNorm1d": (lambda: layers(nn.BatchNorm1d(6)), f"0 (BatchNorm1d) {NORMS}"),
    "BatchNorm2d": (
        lambda: layers(nn.Sequential(nn.BatchNorm2d(2)), shape=(2, 3, 3)),
        f"0.0 (BatchNorm2d) {NORMS}",
    ),
    "BatchNorm without weights": (lambda: layers(nn.BatchNorm1d(6, affine=False)), f"0 (BatchNorm1d) {NORMS}"),
    "InstanceNorm": (
        lambda: layers(nn.InstanceNorm2d(2, affine=True, track_running_stats=True), shape=(2, 3, 3)),
        f"0 (InstanceNorm2d) {STATISTICS}",
    ),
    "AlphaDropout": (lambda: layers(nn.AlphaDropout(0.5)), "0 (AlphaDropout) is not supported; use nn.Dropout"),
}


def refusal_of(module, x, y=None):
    y = torch.arange(len(x)) % CLASSES if y is None else y
    with pytest.raises(BadValue) as refusal:
        Net(module, losses.classes, x, y, torch.float32)
    assert len(str(refusal.value).splitlines()) == 1
    return str(refusal.value)


@pytest.mark.parametrize("name", MODULES)
def test_a_forward_that_is_not_about_single_records_is_refused(name):
    make, says = MODULES[name]
    assert refusal_of(make(), torch.randn(5, 6, generator=torch.Generator().manual_seed(0))).startswith(says)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_that_is_not_about_single_records_is_refused_by_name(name):
    (module, shape), says = LAYERS[name][0](), LAYERS[name][1]
    assert refusal_of(module, torch.randn(5, *shape)) == f"model layer = {says}"


def test_two_dropouts_in_one():
    drop = nn.Dropout(0.5)
    module = nn.Sequential(nn.Linear(6, 6), drop, nn.Linear(6, CLASSES), drop)
    says = "is a dropout called twice; give each call its own nn.Dropout"
    assert refusal_of(module, torch.randn(5, 6)) == f"model layer = 1 {says}"
    twice = forward_of(lambda m, x: m.head(m.drop(m.drop(x))))
    twice.drop = nn.Dropout(0.5)
    assert refusal_of(twice, torch.randn(5, 6)) == f"model layer = drop {says}"


def test_dropout_whose_first_axis_is_not_the_record():
    module = forward_of(lambda m, x: m.head(m.drop(x.transpose(0, 1)).mean(0)))
    module.drop = nn.Dropout(0.5)
    assert refusal_of(module, torch.randn(5, 3, 6)).startswith("model layer = drop is a dropout whose first axis is not")
    as_many_as_the_probe = torch.randn(5, 4, 6)
    assert refusal_of(module, as_many_as_the_probe).startswith("model = Module fails on one record")


@pytest.mark.parametrize("table", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}, {"sparse": True}])
def test_an_embedding_that_rewrites_itself(table):
    refused = refusal_of(Tokens(**table), torch.zeros(5, 7, dtype=torch.long))
    assert refused.startswith("model layer = table (Embedding) rewrites its table or its gradients; leave max_norm")


def test_nothing_to_train_and_nothing_to_look_at():
    module, _ = layers()
    module.requires_grad_(False)
    assert refusal_of(module, torch.randn(5, 6)) == "model = Sequential has no trainable parameter; unfreeze at least one"
    module.requires_grad_(True)
    assert refusal_of(module, torch.randn(0, 6)).startswith("records = 0 are too few")


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_parameters_without_a_shape_or_that_are_no_real_numbers():
    lazy = nn.Sequential(nn.LazyLinear(CLASSES))
    says = "model parameter = 0.weight has no shape yet; call the model once before you give it"
    assert refusal_of(lazy, torch.randn(5, 6)) == says
    complex_numbers = forward_of(lambda m, x: m.head(x) * m.phase.abs())
    complex_numbers.phase = nn.Parameter(torch.ones(1, dtype=torch.complex64))
    assert refusal_of(complex_numbers, torch.randn(5, 6)).startswith("model parameter = phase is complex; write it as two")


def test_a_forward_that_fails_says_so_in_one_line():
    says = "model = Sequential fails on its first records: RuntimeError: "
    assert refusal_of(layers()[0], torch.randn(5, 7)).startswith(says)


def test_every_record_is_looked_at_once():
    """A token outside the table, in a record that no probe sees."""
    x = torch.zeros(3000, 7, dtype=torch.long)
    assert check_every_record(Tokens(), x) is None
    x[2999, 3] = 9
    assert check_every_record(Tokens(), x) == "IndexError: index out of range in self"


@pytest.mark.parametrize("count", [1, 2, 3])
def test_mixing_shows_even_with_few_records(count):
    """A single record alone cannot mix; that the model would mix others must be seen all the same."""
    make, says = MODULES["minus the mean"]
    assert refusal_of(make(), torch.randn(count, 6)).startswith(says)


def test_mixing_shows_when_all_records_are_alike():
    mixing = forward_of(lambda m, x: m.head(x) * (1 + x.mean()))
    assert refusal_of(mixing, torch.zeros(5, 6)).startswith(MIXES)

    class MixedTokens(Tokens):
        def forward(self, x):
            seen = self.table(x).mean(1)
            return self.head(seen) * (1 + seen.mean())

    same = torch.ones(5, 7, dtype=torch.long)
    assert "mixes records" in refusal_of(MixedTokens(), same, torch.zeros(5, dtype=torch.long))
    assert "mixes records" in refusal_of(MixedTokens(), 0 * same, torch.zeros(5, dtype=torch.long))


def test_a_layer_that_starts_at_zero_hides_nothing():
    """A head of zeros gives zeros whatever comes before it."""
    mixing = MODULES["minus the mean"][0]()
    nn.init.zeros_(mixing.head.weight)
    nn.init.zeros_(mixing.head.bias)
    assert refusal_of(mixing, torch.randn(5, 6)).startswith(MIXES)


FROZEN_NORMS = [nn.BatchNorm1d(3), nn.InstanceNorm1d(3, affine=True, track_running_stats=True)]


@pytest.mark.parametrize("layer", FROZEN_NORMS, ids=lambda layer: type(layer).__name__)
def test_frozen_statistics_stay_as_they_are(layer):
    """Used as they are, by training and evaluation alike, and never updated."""
    layer.running_mean.uniform_(-1, 1)
    layer.requires_grad_(False)
    x, y = torch.randn(5, 3, 4, dtype=torch.float64), torch.arange(5)
    net = Net(nn.Sequential(layer, nn.Flatten(), nn.Linear(12, CLASSES)), losses.classes, x, y, torch.float64)
    before = net.state_dict(net.initial())
    first = net.one_record(net.initial(), x[:1], y[:1], {})
    net.outputs(net.initial(), x)
    assert torch.equal(net.one_record(net.initial(), x[:1], y[:1], {}), first)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict(net.initial()).items())


def test_normalisation_within_a_record_is_let_in():
    module = nn.Sequential(nn.InstanceNorm1d(3), nn.Flatten(), nn.Linear(12, CLASSES))
    assert Net(module, losses.classes, torch.randn(5, 3, 4), torch.arange(5), torch.float32).grad_method == "bookkeeping"


def test_parts_that_do_not_take_part():
    """A layer that forward never calls has gradient zero, and its weights stay."""
    module = forward_of(lambda m, x: m.head(x))
    module.unused = nn.Linear(2, 2)
    x, y = torch.randn(5, 6, dtype=torch.float64), torch.arange(5)
    net = Net(module, losses.classes, x, y, torch.float64)
    sums = net.clipped_sums(
        net.initial()[None], x[None], y[None], torch.ones(1, 5, dtype=torch.bool), torch.tensor([1.0]), {}
    )
    unused = net.named(sums[0])["unused.weight"]
    assert net.why == "no layer rule for unused.bias"
    assert torch.equal(unused, torch.zeros_like(unused))


def test_a_way_that_was_asked_for_and_is_wrong_is_refused():
    tied = forward_of(lambda m, x: m.head(x) @ m.head.weight @ x.mean(1, keepdim=True).new_ones(6, CLASSES))
    with pytest.raises(BadValue, match=r"has no method for per-sample gradients: head.weight is used 2 times"):
        Net(tied, losses.classes, torch.randn(5, 6), torch.arange(5), torch.float32, grad_method="bookkeeping")
