"""Models of every kind, records for them, and an oracle: one record at a time, no code of the package."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

CLASSES, TOKENS = 5, 9


@dataclass(frozen=True)
class Case:
    """A model, the shape of one record (None: seven tokens), the kind of target, and the method for its gradients."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...] | None = (1, 4, 4)
    task: str = "classes"
    grad_method: str = "bookkeeping"

    def module(self, seed=7):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.make()

    def records(self, count, seed=0):
        """Records and targets; tokens repeat, and some are padding."""
        dice = torch.Generator().manual_seed(seed)
        if self.shape is None:
            x = torch.randint(0, TOKENS, (count, 7), generator=dice)
        else:
            x = torch.randn(count, *self.shape, generator=dice, dtype=torch.float64)
        if self.task == "classes":
            return x, torch.randint(0, CLASSES, (count,), generator=dice)
        values = torch.randn(count, generator=dice, dtype=torch.float64)
        return x, (values > 0).double() if self.task == "binary" else values


PLAIN_LOSS = {
    "classes": F.cross_entropy,
    "binary": lambda outputs, y: F.binary_cross_entropy_with_logits(outputs.flatten(), y),
    "regression": lambda outputs, y: F.mse_loss(outputs.flatten(), y) / 2,
}


def gradient_of(module, task, x, y, masks=None):
    """The gradient of one record's loss [P]: a deep copy, one backward pass. `masks`: one for each nn.Dropout, in order."""
    model = copy.deepcopy(module).to(x.dtype if x.is_floating_point() else torch.float64)
    model.eval()  # dropout off, frozen statistics fixed; masks are multiplied in by hand
    dropouts = [layer for layer in model.modules() if isinstance(layer, (nn.Dropout, nn.Dropout2d))]
    for layer, mask in zip(dropouts, masks or [], strict=masks is not None):
        layer.register_forward_hook(lambda layer, given, output, mask=mask: output * mask)
    PLAIN_LOSS[task](model(x[None]), y[None]).backward()
    trained = [p for p in model.parameters() if p.requires_grad]
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in trained]).double()


def clipped_sum(module, task, x, y, clip, masks=None):
    """Σ v·min(1, clip/‖v‖), record after record; `masks[i]` are those of record i."""
    total = torch.zeros(sum(p.numel() for p in module.parameters() if p.requires_grad), dtype=torch.float64)
    for i in range(len(x)):
        v = gradient_of(module, task, x[i], y[i], masks and masks[i])
        if torch.isfinite(v).all():
            total += v * min(1.0, clip / max(float(v.norm()), 1e-300))
    return total


def with_weights(module, flat):
    """A copy of the module with these trainable weights."""
    model = copy.deepcopy(module).to(flat.dtype)
    trained = [p for p in model.parameters() if p.requires_grad]
    with torch.no_grad():
        for p, part in zip(trained, flat.split([p.numel() for p in trained]), strict=True):
            p.copy_(part.view(p.shape))
    return model


class Tokens(nn.Module):
    """Embedding, then the mean over the tokens."""

    def __init__(self, **table):
        super().__init__()
        self.table, self.head = nn.Embedding(TOKENS, 4, **table), nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.head(self.table(x).mean(1))


class Sequence(nn.Module):
    """Linear and LayerNorm at each place of a sequence, then a convolution along it."""

    def __init__(self):
        super().__init__()
        self.table, self.each, self.norm = nn.Embedding(TOKENS, 4), nn.Linear(4, 6), nn.LayerNorm(6)
        self.along, self.head = nn.Conv1d(6, 4, 3, padding=1, groups=2), nn.Linear(4, CLASSES)

    def forward(self, x):
        seen = torch.tanh(self.norm(self.each(self.table(x))))
        return self.head(torch.tanh(self.along(seen.transpose(1, 2))).mean(2))


class OverTime(nn.Module):
    """The same linear layer at each of six places, the mean of which is the answer."""

    def __init__(self):
        super().__init__()
        self.each = nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.each(x).mean(1)


class Bare(nn.Module):
    """A parameter of its own beside a layer."""

    def __init__(self):
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.randn(16)), nn.Linear(16, CLASSES)

    def forward(self, x):
        return self.head(x.flatten(1) * self.scale)


class Tied(nn.Module):
    """One table that reads and writes; `direct` uses it as a function's argument, without a second layer."""

    def __init__(self, direct=False):
        super().__init__()
        self.table = nn.Embedding(CLASSES + 4, 4)
        self.head = None if direct else nn.Linear(4, CLASSES + 4, bias=False)
        if self.head:
            self.head.weight = self.table.weight

    def forward(self, x):
        seen = self.table(x).mean(1)
        return self.head(seen) if self.head else F.linear(seen, self.table.weight)


class Twice(nn.Module):
    """One layer called twice."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(16, 16), nn.Linear(16, CLASSES)

    def forward(self, x):
        return self.head(torch.tanh(self.inner(torch.tanh(self.inner(x.flatten(1))))))


class HiddenUse(nn.Module):
    """A second use of a weight that no ordinary record shows: behind a ReLU that is off but for huge inputs."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(16, CLASSES), nn.Linear(CLASSES, CLASSES)

    def forward(self, x):
        x = x.flatten(1)
        return self.head(torch.tanh(self.inner(x))) + torch.relu(F.linear(x, self.inner.weight) - 1e3)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.state, self.head = nn.Embedding(TOKENS, 4), nn.LSTM(4, 3, batch_first=True), nn.Linear(3, CLASSES)

    def forward(self, x):
        return self.head(self.state(self.table(x))[0][:, -1])


class TimeFirst(nn.Module):
    """The record is the second axis of what the inner layer sees."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.head(torch.tanh(self.inner(x[:, 0].transpose(0, 1))).mean(0))


class Branching(nn.Module):
    """Control flow by the record's values."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(16, CLASSES), nn.Linear(16, CLASSES)

    def forward(self, x):
        return torch.stack([self.one(row) if row.sum() > 0 else self.other(row) for row in x.flatten(1)])


def mlp(*between, out=CLASSES):
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.Tanh(), *between, nn.Linear(6, out))


def pictures(*between, **options):
    """A convolution over two channels, what comes between, and a head; `between` makes layers."""

    def make():
        body = nn.Sequential(nn.Conv2d(2, 4, 3, **options), *[layer() for layer in between], nn.Tanh(), nn.Flatten())
        return nn.Sequential(body, nn.Linear(body(torch.zeros(1, 2, 6, 5)).shape[1], CLASSES))

    return Case(make, (2, 6, 5))


def signals():
    along = nn.Conv1d(2, 4, 3, stride=2, dilation=2, padding=1, groups=2)
    return nn.Sequential(along, nn.Flatten(), nn.Linear(16, CLASSES))


def frozen_extractor():
    """Batch statistics that are used as they are, under a head that is trained."""
    extractor = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU())
    extractor[1].running_mean.uniform_(-1, 1)
    extractor[1].running_var.uniform_(0.5, 2)
    extractor.requires_grad_(False)
    return nn.Sequential(extractor, nn.Flatten(), nn.Linear(12, CLASSES))


def partly_frozen():
    module = mlp()
    module[1].weight.requires_grad_(False)
    module[3].bias.requires_grad_(False)
    return module


CASES = {
    "linear": Case(lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, CLASSES))),
    "linear without bias": Case(lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, CLASSES, bias=False))),
    "mlp": Case(mlp),
    "binary": Case(lambda: mlp(out=1), task="binary"),
    "regression": Case(lambda: mlp(out=1), task="regression"),
    "conv2d": pictures(),
    "conv2d stride padding groups": pictures(stride=2, padding=(1, 2), groups=2),
    "conv2d dilation valid": pictures(dilation=(2, 1), padding="valid", bias=False),
    "conv2d same reflect": pictures(padding="same", padding_mode="reflect"),
    "conv2d circular": pictures(padding=1, padding_mode="circular"),
    "conv1d": Case(signals, (2, 10)),
    "linear over time": Case(OverTime, (6, 4)),
    "group norm": pictures(lambda: nn.GroupNorm(2, 4)),
    "dropout": Case(lambda: mlp(nn.Dropout(0.4))),
    "dropout of channels": pictures(lambda: nn.Dropout2d(0.5)),
    "embedding": Case(Tokens, None),
    "embedding with padding": Case(lambda: Tokens(padding_idx=0), None),
    "sequence": Case(Sequence, None),
    "layer norm": Case(lambda: nn.Sequential(nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, CLASSES))),
    "frozen extractor": Case(frozen_extractor),
    "partly frozen": Case(partly_frozen),
    "bare parameter": Case(Bare, grad_method="vmap"),
    "tied": Case(Tied, None, grad_method="vmap"),
    "used directly": Case(lambda: Tied(direct=True), None, grad_method="vmap"),
    "called twice": Case(Twice, grad_method="vmap"),
    "hidden use": Case(HiddenUse, grad_method="vmap"),
    "time first": Case(TimeFirst, grad_method="vmap"),
    "recurrent": Case(Recurrent, None, grad_method="loop"),
    "branching": Case(Branching, grad_method="loop"),
}
