"""Programs are compiled once for equal traces, and a missing compiler costs one line."""

import pytest
import torch
from torch import nn

from prifedsync.local import Net, losses
from prifedsync.local.device import compiled


def test_equal_traces_share_a_program(compiler):
    x = torch.randn(3, 4)
    for _ in range(3):
        ready = compiled.compiled(lambda x: (x * 2 + 1).sum(0), x)
        torch.testing.assert_close(ready(x + 1), ((x + 1) * 2 + 1).sum(0))
    assert len(compiler) == 1


@pytest.mark.parametrize("other", ["constant", "shape", "dtype", "flags", "inside"])
def test_whatever_makes_a_difference_has_its_own(compiler, other, request):
    x, inside = torch.ones(3, 4), torch.ones(4)
    first = compiled.compiled(lambda x: x * 2 + inside, x)
    factor = 3 if other == "constant" else 2
    if other == "shape":
        x = torch.ones(2, 4)
    if other == "dtype":
        x = x.double()
    if other == "flags":
        was = torch.backends.cuda.matmul.allow_tf32
        request.addfinalizer(lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", was))
        torch.backends.cuda.matmul.allow_tf32 = not was
    if other == "inside":
        inside = torch.full((4,), 5.0)
    second = compiled.compiled(lambda x: x * factor + inside, x)
    assert len(compiler) == 2
    torch.testing.assert_close(second(x), x * factor + inside)
    torch.testing.assert_close(first(torch.ones(3, 4)), torch.full((3, 4), 3.0))


def test_a_missing_compiler_costs_one_line(nothing_compiled, monkeypatch, capsys):
    def broken(graph, **_):
        def fails(*given):
            raise RuntimeError("no compiler here\nand much more about it")

        return fails

    monkeypatch.setattr(torch, "compile", broken)
    x = torch.ones(2)
    for _ in range(2):
        assert compiled.compiled(lambda x: x + 1, x)(x).tolist() == [2, 2]
    assert capsys.readouterr().err == "prifedsync: not compiled, so slower: no compiler here\n"


def test_two_nets_of_one_kind_share_their_gradients(compiler):
    """The rows of a sweep differ in weights and numbers, not in what is computed."""
    x, y = torch.randn(2, 3, 5), torch.randint(0, 2, (2, 3))
    valid, clip = torch.ones(2, 3).bool(), torch.ones(2).double()
    for seed in range(2):
        torch.manual_seed(seed)
        net = Net(nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)), losses.classes, x[0], y[0], torch.float32)
        given = net.initial().expand(2, -1).contiguous(), x, y, valid, clip, {}
        ready = compiled.compiled(net.clipped_parts, *given)
        for found, expected in zip(ready(*given), net.clipped_parts(*given), strict=True):
            torch.testing.assert_close(found, expected)
    assert len(compiler) == 1
