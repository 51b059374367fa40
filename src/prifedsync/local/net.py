"""A module as a function of one flat vector of weights, and the clipped sums of its per-record gradients.

Three ways to the same sum; the first that agrees with plain autograd on a few records, one at a time, is taken:
    layers   book-keeping: every trainable parameter belongs to a layer with a rule of its own, called once (`layers.py`)
    general  torch.func maps the gradient over records
    loop     one record after another; before `general` for large nets on a CPU, where many gradients outgrow the caches
In which program it runs, and that this gives every record the same bits whoever else is there, is found by `invariance.py`.
Axis letters: C clients, B records of a batch, P trainable parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_map

from ..accounting import Neighbours, NoisySteps
from ..values import BadValue
from . import behaviour, invariance, layers, margins
from .inspection import KeyedDropout, Uses, adopt, check_forward, check_memory
from .margins import Arithmetic
from .programs import Program, Way

Loss = Callable[[Tensor, Tensor], Tensor]  # outputs [B, …], targets [B] → [B]
Masks = dict[str, Tensor]  # name of a dropout's buffer → [B, …]
SMALLEST_SCALE = torch.finfo(torch.float64).tiny
LARGE = 2**17  # parameters
AGREE = 1e-6  # relative, in double precision
DOUBLES_AT_ONCE = 1024  # records whose clipped gradients are summed at once in double precision


class Net:
    """A private copy of a module, inspected, with the way its gradients are taken."""

    def __init__(
        self, module: nn.Module, loss: Loss, x: Tensor, y: Tensor, dtype: torch.dtype, device: torch.device | str = "cpu",
        way: Way | None = None, arithmetic: Arithmetic | None = None,
    ) -> None:  # fmt: skip
        self.loss = loss
        self.arithmetic: Arithmetic = arithmetic or ("float64" if dtype == torch.float64 else "float32")
        self.code = behaviour.of(module, loss)  # before anything of ours is hung into it
        self.module = copy.deepcopy(module)
        adopt(self.module)
        self._fixed = [layer for layer in self.module.modules() if not layer.training]  # frozen batch statistics
        self.names = tuple(name for name, p in self.module.named_parameters() if p.requires_grad)
        if not self.names:
            raise BadValue("model", type(module).__name__, "has no trainable parameter", "unfreeze at least one")
        own = dict(self.module.named_parameters())
        for name, parameter in own.items():
            if isinstance(parameter, nn.UninitializedParameter):
                raise BadValue("model parameter", name, "has no shape yet", "call the model once before you give it")
            if parameter.is_complex():
                raise BadValue("model parameter", name, "is complex", "write it as two real ones")
        self.shapes = tuple(own[name].shape for name in self.names)
        self.sizes = tuple(shape.numel() for shape in self.shapes)
        self.count = sum(self.sizes)
        self._tape: _Tape | None = None
        self.sum_dtype = torch.float64  # what clipped vectors are added up in where speed decides
        self._compute = torch.float64
        self._cast: dict[str, Tensor] = {}  # what is not trained, in the arithmetic of the products
        self.dropouts: dict[str, tuple[float, tuple[int, ...]]] = {}  # buffer → rate, shape of one record's mask
        self._tapped: dict[str, nn.Module] = {}  # layers with a rule
        self.probes: dict[str, tuple[int, ...]] = {}  # layer → shape of one record's output
        self._unfolded: set[str] = set()  # convolutions that are products of patches
        self._answers = False  # while only outputs are computed
        self._aligned = 1  # what the program that runs pads linear layers to
        self._programs: dict[tuple[int, int, torch.dtype], Program] = {}
        self.module.to(device="cpu", dtype=torch.float64)
        if not len(x):
            raise BadValue("records", 0, "are too few to inspect a model with")
        few = torch.arange(4) % len(x)  # several even where there is one: a record alone hides that records mix
        probe_x = x[few].double() if x.is_floating_point() else x[few]
        probe_y = y[few].double() if y.is_floating_point() else y[few]
        try:
            self._inspect(probe_x.cpu(), probe_y.cpu())
        except BadValue:
            raise
        except Exception as error:  # a module of the user's may fail in any way
            said = f"fails on its first records: {type(error).__name__}: {_first_line(error)}"
            remedy = "its forward must take [n, …] and give [n, outputs], also in double precision"
            raise BadValue("model", type(module).__name__, said, remedy) from error
        self.examples = probe_x.cpu(), probe_y.cpu()
        self.takes_made_up = self._answers_made_up()
        one_by_one = torch.device(device).type == "cpu" and self.count >= LARGE
        self.way, self.why = self._choose(probe_x.cpu(), probe_y.cpu(), way, one_by_one)
        self.module.to(device=device, dtype=dtype)
        self.dtype, self.device = dtype, torch.device(device)
        # doubles are slow to multiply on a GPU; what singles round away there is in the clip margin
        self.sum_dtype = torch.float32 if self.device.type == "cuda" and dtype != torch.float64 else torch.float64
        self._compute = torch.bfloat16 if self.arithmetic == "bf16" else dtype
        if self._compute != dtype:
            state = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
            fixed = {name: value for name, value in state.items() if name not in self.names and name not in self.dropouts}
            self._cast = {n: v.detach().to(self._compute) for n, v in fixed.items() if v.is_floating_point()}
        for layer in self.module.modules():
            if type(layer) is nn.Linear:
                layer.forward = partial(self._multiply, layer)  # type: ignore[method-assign]
        if self.device.type == "cuda":
            for name, layer in self._tapped.items():
                if isinstance(layer, (nn.Conv1d, nn.Conv2d)):
                    self._unfolded.add(name)
                    layer.forward = partial(self._convolve, name, layer)  # type: ignore[method-assign]

    @property
    def record_bytes(self) -> int:
        """About what one record of a batch takes while the clipped sum is computed."""
        if self.way != "layers":
            return 24 * self.count
        values = sum(torch.Size(shape).numel() for shape in self.probes.values())
        for name, layer in self._tapped.items():
            if isinstance(layer, (nn.Conv1d, nn.Conv2d)):  # patches, and the gradient that is formed
                values += layer.weight[0].numel() * torch.Size(self.probes[name][1:]).numel() + 2 * layer.weight.numel()
            elif isinstance(layer, nn.Embedding):  # which tokens are equal, and their rows
                tokens = torch.Size(self.probes[name][:-1]).numel()
                values += tokens * (tokens + 4 * layer.embedding_dim)
            elif isinstance(layer, nn.Linear) and len(self.probes[name]) > 1:
                values += 2 * layer.weight.numel()
        return 24 * values

    # ------------------------------------------------------------------ weights

    def initial(self) -> Tensor:
        """The module's own weights as one vector [P]."""
        own = dict(self.module.named_parameters())
        return torch.cat([own[name].detach().flatten() for name in self.names])

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """The vector as named parameters."""
        parts = flat.split(self.sizes)
        return {name: part.view(shape) for name, part, shape in zip(self.names, parts, self.shapes, strict=True)}

    def state_dict(self, flat: Tensor) -> dict[str, Tensor]:
        """A plain state_dict of the user's module with these weights."""
        state = {name: value.detach().cpu().clone() for name, value in self.module.state_dict().items()}
        tied = {id(p): n for n, p in self.module.named_parameters()}
        new = {name: value.detach().cpu().clone() for name, value in self.named(flat).items()}
        for name, value in self.module.state_dict(keep_vars=True).items():
            state[name] = new.get(tied.get(id(value), name), state[name])
        return state

    # ------------------------------------------------------------------ forward

    def outputs(self, flat: Tensor, x: Tensor) -> Tensor:
        """What the model answers, dropout off: [P], [B, …] → [B, …]."""
        self.module.eval()
        self._answers = True
        try:
            answered: Tensor = functional_call(self.module, self.named(flat), (x,))
            return answered
        finally:
            self._answers = False
            self.module.train()
            for layer in self._fixed:
                layer.eval()

    def margin_for(self, steps: NoisySteps, neighbours: Neighbours) -> float:
        """By how much rounding can carry a clipped sum beyond what one record may move it, as a share of the clip norm."""
        return margins.clip_margin(steps, neighbours, self.arithmetic, self.count, self.sum_dtype)

    @property
    def most_at_once(self) -> int:
        """Records of a client that are looked at together at most."""
        return margins.PIECE if self.sum_dtype == torch.float32 else DOUBLES_AT_ONCE

    def program(self, clients: int, width: int, sums: torch.dtype | None = None) -> Program:
        """How so many clients' batches of so many rows are taken, so that no record's gradient depends on another's."""
        wanted = clients, width, sums or self.sum_dtype
        if wanted not in self._programs:
            self._programs[wanted] = invariance.invariant(self, *wanted)
        return self._programs[wanted]

    @property
    def gradients(self) -> str:
        """How per-record gradients were taken, in words."""
        ways = dict.fromkeys(str(program) for program in self._programs.values())
        return "; ".join(ways) or self.way

    @contextmanager
    def exact(self) -> Iterator[None]:
        """While it is open, products are as exact as the arithmetic says, and no less."""
        before = [(flag, _legacy(flag), [(each, each.fp32_precision) for each in kinds]) for flag, kinds in _products()]
        try:
            for flag, _, _ in before:
                flag.allow_tf32 = self.arithmetic in ("tf32", "bf16")
            yield
        finally:
            for flag, allowed, precisions in before:
                if allowed is not None:
                    flag.allow_tf32 = allowed
                for each, precision in precisions:
                    if each.fp32_precision != precision:
                        each.fp32_precision = precision

    def _losses_of(self, named: dict[str, Tensor], x: Tensor, y: Tensor, masks: Masks) -> Tensor:
        given = named | self._cast | {name: mask.to(self._compute) for name, mask in masks.items()}
        outputs = functional_call(self.module, given, (x.to(self._compute) if x.is_floating_point() else x,))
        return self.loss(outputs.float() if self._compute == torch.bfloat16 else outputs, y)

    def _multiply(self, layer: nn.Linear, a: Tensor) -> Tensor:
        """A linear layer; zeros are appended where the program wants them, which change no value."""
        inner = -layer.in_features % self._aligned
        outer = -layer.out_features % self._aligned
        if self._answers or not (inner or outer):
            return F.linear(a, layer.weight, layer.bias)
        weight = F.pad(layer.weight, (0, inner, 0, outer))
        product = F.linear(F.pad(a, (0, inner)), weight)[..., : layer.out_features]
        return product if layer.bias is None else product + layer.bias

    @property
    def convolves(self) -> bool:
        return any(isinstance(layer, (nn.Conv1d, nn.Conv2d)) for layer in self.module.modules())

    def _convolve(self, name: str, layer: nn.Conv1d | nn.Conv2d, a: Tensor) -> Tensor:
        if self._answers:  # one model, of which nothing but the outputs is wanted
            plain: Tensor = cast(Any, type(layer)).forward(layer, a)
            return plain
        unfolded = layers.patches(layer, a)
        if self._tape:
            self._tape.patches[name] = unfolded
        return layers.convolved(layer, a, unfolded)

    # ------------------------------------------------------------------ sums over a batch

    def clipped_sums(
        self, flat: Tensor, x: Tensor, y: Tensor, valid: Tensor, clip: Tensor, masks: Masks, program: Program | None = None
    ) -> Tensor:
        """Σ over valid records of v·min(1, clip/‖v‖) for each client: [C, P], [C, B, …], …, clip [C] → [C, P].

        A record whose gradient is not finite adds zero, and so does one that is only padding.
        """
        return torch.cat(self.clipped_parts(flat, x, y, valid, clip, masks, program), 1)

    def clipped_parts(
        self, flat: Tensor, x: Tensor, y: Tensor, valid: Tensor, clip: Tensor, masks: Masks, program: Program | None = None
    ) -> tuple[Tensor, ...]:
        """The clipped sums, one [C, size] a parameter; `program` is that of an engine, which makes records invariant."""
        program = program or Program(self.way, valid.shape[1], self.sum_dtype)
        if program.way == "loop":
            rows = [self._loop(*one, _row(masks, c)) for c, one in enumerate(zip(flat, x, y, valid, clip, strict=True))]
            return tuple(torch.stack([torch.cat(row) for row in rows]).split(self.sizes, 1))

        def one_client(flat: Tensor, x: Tensor, y: Tensor, valid: Tensor, clip: Tensor, masks: Masks) -> tuple[Tensor, ...]:
            gradients = self._gradients(program, flat, x, y, masks)
            return _clipped(gradients, valid, clip, program.sums)

        return _over_clients(one_client, flat, x, y, valid, clip, masks)

    def per_record(self, flat: Tensor, x: Tensor, y: Tensor, masks: Masks, program: Program) -> list[Tensor]:
        """All that the gradients of single records are made of, [C, B, …] each: what the invariance probe compares."""

        def one_client(flat: Tensor, x: Tensor, y: Tensor, masks: Masks) -> tuple[Tensor, ...]:
            gradients = zip(self.names, self._gradients(program, flat, x, y, masks), strict=True)
            return tuple(part for name, each in gradients if self._uses[name] for part in each.parts())

        return list(_over_clients(one_client, flat, x, y, masks))

    def _gradients(self, program: Program, flat: Tensor, x: Tensor, y: Tensor, masks: Masks) -> list[layers.PerRecord]:
        """One client's gradients, record by record, parameter by parameter."""
        self._aligned = program.aligned
        try:
            return (self._by_layers if program.way == "layers" else self._by_records)(flat, x, y, masks)
        finally:
            self._aligned = 1

    def plain_sums(self, flat: Tensor, x: Tensor, y: Tensor, valid: Tensor, masks: Masks) -> Tensor:
        """Σ over valid records of v for each client, no clipping: training without privacy."""
        return torch.cat(self.plain_parts(flat, x, y, valid, masks), 1)

    def plain_parts(self, flat: Tensor, x: Tensor, y: Tensor, valid: Tensor, masks: Masks) -> tuple[Tensor, ...]:
        """The plain sums, one [C, size] a parameter."""

        def total(weights: dict[str, Tensor], x: Tensor, y: Tensor, valid: Tensor, masks: Masks) -> Tensor:
            return torch.where(valid, self._losses_of(weights, x, y, masks), 0.0).sum()

        def one_client(flat: Tensor, *given: Any) -> tuple[Tensor, ...]:
            weights = self.named(flat.to(self._compute))
            found = _autograd(total, weights, *given) if self.way == "loop" else grad(total)(weights, *given)
            return tuple(found[name].flatten().to(flat.dtype) for name in self.names)

        if self.way == "loop":
            ones = zip(flat, x, y, valid, strict=True)
            rows = [one_client(*one, _row(masks, c)) for c, one in enumerate(ones)]
            parts = tuple(torch.stack(part) for part in zip(*rows, strict=True))
        else:
            parts = _over_clients(one_client, flat, x, y, valid, masks)
        some = valid.any(1, keepdim=True)  # all padding: zero times whatever the padding gave
        return tuple(torch.where(some, part, 0.0) for part in parts)

    def one_record(self, flat: Tensor, x: Tensor, y: Tensor, masks: Masks) -> Tensor:
        """The gradient of a single record by plain autograd: [P], [1, …], [1] → [P]."""
        x = x.clone()  # at an aligned address of its own: a kernel may begin otherwise where a row happens to lie
        found = _autograd(lambda *given: self._losses_of(*given).sum(), self.named(flat.to(self._compute)), x, y, masks)
        return torch.cat([found[name].flatten() for name in self.names]).to(flat.dtype)

    def _by_layers(self, flat: Tensor, x: Tensor, y: Tensor, masks: Masks) -> list[layers.PerRecord]:
        weights = self.named(flat.to(self._compute))

        def one(probes: dict[str, Tensor], x: Tensor, y: Tensor, masks: Masks) -> tuple[Tensor, dict[str, Tensor]]:
            # mapped over records like this, a record is alone in its forward whatever the module does with the first axis
            with _Tape(self, _alone(probes)) as tape:
                return self._losses_of(weights, x[None], y[None], _alone(masks)).sum(), tape.inputs

        zero = flat.new_zeros((), dtype=self._compute)
        probes = {name: zero.expand(len(x), *shape) for name, shape in self.probes.items()}
        d, a = vmap(grad(one, has_aux=True))(probes, x, y, masks)
        found: dict[str, layers.PerRecord] = {}
        for name, layer in self._tapped.items():
            if a[name].shape[1] != 1:
                raise ValueError(f"the first axis of what {name} sees is not the record")
            rule: layers.Rule = layers.of_patches if name in self._unfolded else layers.RULES[type(layer)]
            for parameter, gradients in rule(layer, a[name].squeeze(1), d[name]).items():
                found[f"{name}.{parameter}" if name else parameter] = gradients
        return [found[name] for name in self.names]

    def _by_records(self, flat: Tensor, x: Tensor, y: Tensor, masks: Masks) -> list[layers.PerRecord]:
        def one(weights: dict[str, Tensor], x: Tensor, y: Tensor, masks: Masks) -> Tensor:
            return self._losses_of(weights, x[None], y[None], _alone(masks)).sum()

        gradients = vmap(grad(one), in_dims=(None, 0, 0, 0))(self.named(flat.to(self._compute)), x, y, masks)
        return [layers.Formed(gradients[name]) for name in self.names]

    def _loop(self, flat: Tensor, x: Tensor, y: Tensor, valid: Tensor, clip: Tensor, masks: Masks) -> tuple[Tensor, ...]:
        total = flat.new_zeros(self.count, dtype=torch.float64)
        for i in torch.nonzero(valid).flatten().tolist():
            here = {name: mask[i : i + 1] for name, mask in masks.items()}
            gradient = self.one_record(flat, x[i : i + 1], y[i : i + 1], here)
            scale = clip_scale([layers.norm(gradient[None])], valid[i : i + 1], clip).item()
            if scale:  # otherwise it is not finite
                total.add_(gradient, alpha=scale)
        return tuple(total.split(self.sizes))

    # ------------------------------------------------------------------ before the first step

    def _inspect(self, x: Tensor, y: Tensor) -> None:
        """Refuse what cannot be clipped record by record; learn the shapes of masks and of layers' outputs."""
        weights = self._off_zero()
        calls: dict[str, int] = {}
        shapes: dict[str, tuple[int, ...]] = {}

        def noted(name: str, module: nn.Module, args: Any, output: Any) -> None:
            calls[name] = calls.get(name, 0) + 1
            shapes[name] = tuple(output.shape) if isinstance(output, Tensor) else ()

        named = self.named(weights)
        with torch.no_grad():
            fresh = copy.deepcopy(self.module)
            check_forward(self.module, x, lambda given: functional_call(self.module, named, (given,)))
            check_memory(fresh, x, named)
        hooks = [m.register_forward_hook(partial(noted, n)) for n, m in self.module.named_modules()]
        with torch.no_grad(), Uses(named) as uses:
            first = functional_call(self.module, named, (x,))
        self._uses = uses.of
        self.answers: Tensor = first  # in double precision: what a resumed run's module must answer too
        for hook in hooks:
            hook.remove()
        if not self._fits(first, y):
            raise BadValue("model output", tuple(first.shape), "does not fit the targets", "one row of outputs a record")
        for name, module in self.module.named_modules():
            if isinstance(module, KeyedDropout):
                if calls.get(name, 0) > 1:
                    raise BadValue("model layer", name, "is a dropout called twice", "give each call its own nn.Dropout")
                if name in calls:
                    if shapes[name][0] != len(x):
                        raise BadValue("model layer", name, "is a dropout whose first axis is not the record",
                                       "let the record be the first axis")  # fmt: skip
                    self.dropouts[f"{name}.mask"] = (module.rate, module.mask_shape(shapes[name]))
            elif type(module) in layers.RULES and calls.get(name, 0) == 1 and _trainable(module):
                self._tapped[name] = module
                self.probes[name] = shapes[name][1:]
                module.register_forward_hook(partial(self._tap, name))

    def _fits(self, outputs: Tensor, y: Tensor) -> bool:
        try:
            with torch.no_grad():
                return self.loss(outputs, y).shape == (len(y),)
        except (RuntimeError, ValueError, IndexError):
            return False

    def _tap(self, name: str, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        return self._tape.note(name, args[0], output) if self._tape else None

    def _off_zero(self) -> Tensor:
        """Weights that are nowhere zero: a layer that starts at zero would hide what lies before it."""
        start = self.initial()
        spread = torch.randn(start.shape, generator=torch.Generator().manual_seed(0), dtype=start.dtype)
        return start + 0.1 * spread

    def _choose(self, x: Tensor, y: Tensor, asked: Way | None, one_by_one: bool) -> tuple[Way, str]:
        """The first way that agrees with plain autograd, record by record, and why the earlier ones were not taken."""
        weights, reasons = self._off_zero(), []
        clip = torch.tensor(1e-3, dtype=torch.float64)  # small enough that records are clipped
        rows = torch.eye(len(x)).bool()
        try:
            truth = torch.stack([torch.cat(self._loop(weights, x, y, row, clip, self._no_masks(x))) for row in rows])
        except (RuntimeError, ValueError, IndexError) as error:
            raise BadValue("model", type(self.module).__name__, f"fails on one record: {_first_line(error)}") from error
        order: list[Way] = ["layers", "loop", "general"] if one_by_one else ["layers", "general", "loop"]
        for way in order:
            if asked not in (None, way):
                continue
            missing = set(self.names) - {f"{n}.{p}".lstrip(".") for n, m in self._tapped.items() for p, _ in _trainable(m)}
            if way == "layers" and missing:
                reasons.append(f"no layer rule for {sorted(missing)[0]}")
                continue
            shared_use = [name for name, uses in self._uses.items() if uses != 1]
            if way == "layers" and shared_use:  # a second use may be hidden from the few records by a ReLU or a where
                reasons.append(f"{shared_use[0]} is used {self._uses[shared_use[0]]} times")
                continue
            try:
                many = [given.expand(len(x), *given.shape) for given in (weights, x, y)]
                masks = {name: mask.expand(len(x), *mask.shape) for name, mask in self._no_masks(x).items()}
                program = Program(way, len(x), torch.float64)
                clips = clip.expand(len(x))
                seen = torch.cat(self.clipped_parts(many[0], many[1], many[2], rows, clips, masks, program), 1)
            except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
                reasons.append(f"{way}: {_first_line(error)}")
                continue
            if torch.allclose(seen, truth, rtol=AGREE, atol=AGREE * clip.item()):
                return way, "; ".join(reasons)
            reasons.append(f"{way}: differs from plain autograd")
        raise BadValue("model", type(self.module).__name__, "has no way to per-record gradients: " + "; ".join(reasons))

    def no_masks(self, clients: int, width: int) -> Masks:
        """Masks under which dropout drops nothing, [C, B, …] each."""
        shapes = {name: shape for name, (_, shape) in self.dropouts.items()}
        one = torch.ones((), dtype=self.dtype, device=self.device)
        return {name: one.expand(clients, width, *shape) for name, shape in shapes.items()}

    @property
    def tokens(self) -> int:
        """How many tokens all tables have; two where there is none."""
        tables = [layer for layer in self.module.modules() if isinstance(layer, (nn.Embedding, nn.EmbeddingBag))]
        return min((table.num_embeddings for table in tables), default=2)

    def _answers_made_up(self) -> bool:
        """Whether the module can be tried on made-up records; a GPU would not survive a token outside its table."""
        x = invariance.records_like(self.examples[0], self.tokens, invariance.TRIED)
        try:
            with torch.no_grad():
                functional_call(self.module, self.named(self._off_zero()), (x,))
        except Exception:  # a module of the user's may fail in any way
            return False
        return True

    def _no_masks(self, x: Tensor) -> Masks:
        return {name: x.new_ones(len(x), *shape, dtype=torch.float64) for name, (_, shape) in self.dropouts.items()}


def clip_scale(norms: list[Tensor], valid: Tensor, clip: Tensor, smallest: float = SMALLEST_SCALE) -> Tensor:
    """min(1, clip/‖v‖) for each record from the norms of its parts [B]; zero for padding and for what is not finite."""
    whole = layers.norm(torch.stack(norms, 1))
    scale = torch.clamp(clip.double() / whole, max=1.0)
    known = torch.isfinite(whole) & (scale >= smallest)  # a denormal scale would have lost its precision
    return torch.where(valid & known, scale, 0.0)


def _clipped(
    gradients: list[layers.PerRecord], valid: Tensor, clip: Tensor, sums: torch.dtype = torch.float64
) -> tuple[Tensor, ...]:
    """The clipped sum over records, one vector a parameter, added up in `sums`."""
    smallest = torch.finfo(sums).tiny  # below it a scale is rounded, perhaps up
    scale = clip_scale([each.norms() for each in gradients], valid, clip, smallest).to(sums)
    return tuple(each.total(scale).flatten() for each in gradients)


def _products() -> list[tuple[Any, list[Any]]]:
    """torch's two flags about products, and for each the newer settings that it stands for."""
    cudnn: Any = torch.backends.cudnn
    return [(torch.backends.cuda.matmul, [torch.backends.cuda.matmul]), (cudnn, [cudnn.conv, cudnn.rnn])]


def _legacy(flag: Any) -> bool | None:
    """Whether products may be rounded; None where that was set the newer way, and torch refuses to answer."""
    try:
        allowed: bool = flag.allow_tf32
    except RuntimeError:
        return None
    return allowed


class _Tape:
    """While it is open, layers note their inputs and add a probe to their outputs."""

    def __init__(self, net: Net, probes: dict[str, Tensor]) -> None:
        self.net, self.probes, self.inputs = net, probes, dict[str, Tensor]()
        self.patches = dict[str, Tensor]()  # of convolutions that are products of them: noted instead of the input

    def __enter__(self) -> _Tape:
        self.net._tape = self
        return self

    def __exit__(self, *_: object) -> None:
        self.net._tape = None

    def note(self, name: str, seen: Tensor, output: Tensor) -> Tensor:
        if name in self.inputs:
            raise ValueError(f"{name} was called twice for one record")
        self.inputs[name] = self.patches.get(name, seen)
        return output + self.probes[name]


def _trainable(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, p) for name, p in module.named_parameters(recurse=False) if p.requires_grad]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _alone(values: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value[None] for name, value in values.items()}


def _over_clients(one_client: Callable[..., tuple[Tensor, ...]], *given: Any) -> tuple[Tensor, ...]:
    """The function mapped over the first axis; one client alone is spared the mapping, which has its price."""
    if len(given[0]) > 1:
        parts: tuple[Tensor, ...] = vmap(one_client)(*given)
        return parts
    return tuple(part.unsqueeze(0) for part in one_client(*tree_map(lambda tensor: tensor[0], given)))


def _row(masks: Masks, c: int) -> Masks:
    return {name: mask[c] for name, mask in masks.items()}


def _autograd(total: Callable[..., Tensor], weights: dict[str, Tensor], *given: Any) -> dict[str, Tensor]:
    leaves = {name: value.detach().requires_grad_() for name, value in weights.items()}
    with torch.enable_grad():
        found = torch.autograd.grad(total(leaves, *given), list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, found, strict=True))
