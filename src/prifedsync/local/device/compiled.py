"""A function of tensors as one compiled program, where there is a compiler.

The function is traced once, down to plain tensor operations (torch.compile cannot look through torch.func by itself), and
the trace is compiled. Equal traces share what was compiled: the rows of a sweep, which differ in numbers only, pay once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

_ready: dict[tuple[object, ...], Callable[..., Any]] = {}
_said: set[str] = set()  # why something was not compiled


def compiled(function: Callable[..., Any], *example: Any) -> Callable[..., Any]:
    """The function, compiled for tensors like these; as it is, with one line about it, where that cannot be done."""
    try:
        graph = make_fx(lambda *given: function(*given))(*example)  # tracing miscounts the arguments of a method
        leaves = [leaf for leaf in tree_leaves(example) if isinstance(leaf, Tensor)]
        inside = [value for _, value in sorted(vars(graph).items()) if isinstance(value, Tensor)]
        inside += [*graph.buffers(), *graph.parameters()]  # kept alive by the program, so that no other has their ids
        cudnn: Any = torch.backends.cudnn
        precision = torch.backends.cuda.matmul.fp32_precision, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision
        like = tuple((tuple(t.shape), t.stride(), t.dtype, str(t.device)) for t in leaves)
        key = (graph.print_readable(print_output=False), like, precision, *map(id, inside))
        if key not in _ready:
            ready = torch.compile(graph, fullgraph=True, dynamic=False)
            ready(*example)  # compiles now, so that a missing compiler shows now
            _ready[key] = ready
        return _ready[key]
    except Exception as error:  # a compiler can fail in any way, and nothing depends on it
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        if why not in _said:
            _said.add(why)
            print(f"prifedsync: not compiled, so slower: {why}", file=sys.stderr)
        return function
