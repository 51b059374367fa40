"""A module ready for private training: inspected, with a method for its clipped per-sample gradients.

`methods.py` has the three methods, `agreement.py` chooses one, `invariance.py` finds a program in which every record has
the same bits whoever else is in the batch. Axis letters: C clients, B records of a batch, P trainable parameters.
"""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ...accounting import Neighbours, NoisySteps
from ...values import BadValue
from .. import behaviour
from . import agreement, invariance, methods, precision
from .flat import FlatModule, Loss, Masks
from .inspection import FirstForward, check_forward, check_memory, dropout_masks, first_forward, first_line
from .layer_rules import LayerRules, checked, trainable
from .precision import Arithmetic
from .programs import GradMethod, Program

LARGE = 2**17  # parameters


class Net(FlatModule):
    """A private copy of a module, inspected, with the method that computes its per-sample gradients."""

    def __init__(
        self, module: nn.Module, loss: Loss, x: Tensor, y: Tensor, dtype: torch.dtype, device: torch.device | str = "cpu",
        grad_method: GradMethod | None = None, arithmetic: Arithmetic | None = None,
        layer_rules: LayerRules | None = None,
    ) -> None:  # fmt: skip
        """Refuses a module whose gradients cannot be clipped record by record.

        x, y         a few records to inspect it with
        grad_method  tries this method alone
        layer_rules  rules of your own for module classes of your own (`layer_rules.py`)
        """
        own_rules = checked(layer_rules)
        used = {type(layer): own_rules[type(layer)] for layer in module.modules() if type(layer) in own_rules}
        self.code = behaviour.of(module, loss, used)  # of the user's module, before it is copied and changed
        self.arithmetic: Arithmetic = arithmetic or ("float64" if dtype == torch.float64 else "float32")
        super().__init__(module, loss, own_rules)
        self._programs: dict[tuple[int, int, torch.dtype], Program] = {}
        self.examples = _few_records(x, y)
        seen = self._inspected(type(module).__name__)
        self.answers = seen.outputs  # in double precision: a resumed run's module must give the same
        self._uses = seen.uses
        self.takes_made_up = self._takes_made_up()
        loop_first = torch.device(device).type == "cpu" and self.count >= LARGE
        self.grad_method, self.why = agreement.choose(self, seen, *self.examples, grad_method, loop_first)
        self.place(dtype, torch.device(device), torch.bfloat16 if self.arithmetic == "bf16" else dtype)
        self.sum_dtype = precision.fastest_sums(dtype, self.device)

    # ------------------------------------------------------------------ inspection, before the first step

    def _inspected(self, kind: str) -> FirstForward:
        """Refuse what cannot be clipped record by record; learn the shapes of masks and of layers' outputs."""
        try:
            seen = self._first_forward()
            self.dropouts = dropout_masks(self.module, seen, len(self.examples[0]))
        except BadValue:
            raise
        except Exception as error:  # a module of the user's may fail in any way
            rule = f"fails on its first records: {type(error).__name__}: {first_line(error)}"
            remedy = "its forward must take [n, …] and give [n, outputs], also in double precision"
            raise BadValue("model", kind, rule, remedy) from error
        for name, layer in self.module.named_modules():
            once = seen.calls.get(name, 0) == 1
            if once and self.bookkeeping.has_rule(layer) and trainable(layer):
                self.bookkeeping.follow(name, layer, seen.shapes[name][1:])
        return seen

    def _first_forward(self) -> FirstForward:
        x, y = self.examples
        weights = self.named(self.off_zero())
        with torch.no_grad():
            fresh = copy.deepcopy(self.module)
            check_forward(self.module, x, lambda given: functional_call(self.module, weights, (given,)))
            check_memory(fresh, x, weights)
        seen = first_forward(self.module, weights, x, self.bookkeeping.own_rules)
        if not self._fits(seen.outputs, y):
            shape = tuple(seen.outputs.shape)
            raise BadValue("model output", shape, "does not fit the targets", "one row of outputs a record")
        return seen

    def _fits(self, outputs: Tensor, y: Tensor) -> bool:
        try:
            with torch.no_grad():
                return self.loss(outputs, y).shape == (len(y),)
        except (RuntimeError, ValueError, IndexError):
            return False

    def _takes_made_up(self) -> bool:
        """Whether the module runs on made-up records; on a GPU a token outside its table would end the process."""
        x = invariance.records_like(self.examples[0], self.tokens, invariance.TRIED)
        try:
            with torch.no_grad():
                functional_call(self.module, self.named(self.off_zero()), (x,))
        except Exception:  # a module of the user's may fail in any way
            return False
        return True

    # ------------------------------------------------------------------ how it computes

    @property
    def gradients(self) -> str:
        """How per-sample gradients were computed, in words; with the reason if layer rules of the user's were not used."""
        programs = dict.fromkeys(str(program) for program in self._programs.values())
        said = "; ".join(programs) or self.grad_method
        if self.bookkeeping.own_rules and self.grad_method != "bookkeeping" and self.why:
            return f"{said} (layer rules not used: {self.why})"
        return said

    @property
    def record_bytes(self) -> int:
        """About how much memory one record of a batch takes while the clipped sum is computed."""
        by_layer = self.grad_method == "bookkeeping"
        return 24 * (self.bookkeeping.values_a_record() if by_layer else self.count)

    @property
    def most_at_once(self) -> int:
        """How many records of a client are summed together at most."""
        return precision.PIECE if self.sum_dtype == torch.float32 else precision.DOUBLES_AT_ONCE

    def margin_for(self, steps: NoisySteps, neighbours: Neighbours) -> float:
        """How far rounding can carry a clipped sum beyond what one unit may move it, as a share of the clip norm."""
        return precision.clip_margin(
            steps, neighbours, self.arithmetic, self.count, self.sum_dtype, self._longest_sum(steps.rows_per_unit)
        )

    def _longest_sum(self, rows_per_unit: int) -> int:
        """How many products one number of a person's norm sums up: a public bound on `PerRecord.terms`."""
        one = self.examples[0][0]
        tokens = 0 if one.is_floating_point() else precision.most_rows_at_once(rows_per_unit) * one.numel()
        return max(tokens, *(sum(shape) for shape in self.shapes))

    def exact(self) -> AbstractContextManager[None]:
        """While it is open, matrix products are as exact as the arithmetic says."""
        return precision.exact(self.arithmetic)

    def program(self, clients: int, width: int, sums: torch.dtype | None = None) -> Program:
        """A program for so many clients and rows in which no record's gradient depends on another record."""
        wanted = clients, width, sums or self.sum_dtype
        if wanted not in self._programs:
            self._programs[wanted] = invariance.invariant(self, *wanted)
        return self._programs[wanted]

    # ------------------------------------------------------------------ sums over a batch

    def clipped_sums(
        self, flat: Tensor, x: Tensor, y: Tensor, valid: Tensor, clip: Tensor, masks: Masks,
        program: Program | None = None, groups: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Σ over valid records of v·min(1, clip/‖v‖) for each client: [C, P], [C, B, …], …, clip [C] → [C, P].

        A record whose gradient is not finite adds zero, and so does padding. With `groups` [C, B], v is the mean over the
        records of a person, those with the same group (`persons.py`).
        """
        return torch.cat(self.clipped_parts(flat, x, y, valid, clip, masks, program, groups), 1)

    def clipped_parts(
        self, flat: Tensor, x: Tensor, y: Tensor, valid: Tensor, clip: Tensor, masks: Masks,
        program: Program | None = None, groups: Tensor | None = None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """The clipped sums, one [C, size] a parameter; an engine gives a program in which records are invariant."""
        program = program or Program(self.grad_method, valid.shape[1], self.sum_dtype)
        return methods.clipped_sums(self, program, flat, x, y, valid, clip, masks, groups)

    def plain_sums(
        self, flat: Tensor, x: Tensor, y: Tensor, valid: Tensor, masks: Masks, share: Tensor | None = None
    ) -> Tensor:
        """Σ over valid records of v, or of share·v, for each client, not clipped: training without privacy."""
        return torch.cat(self.plain_parts(flat, x, y, valid, masks, share), 1)

    def plain_parts(
        self, flat: Tensor, x: Tensor, y: Tensor, valid: Tensor, masks: Masks, share: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """The plain sums, one [C, size] a parameter."""
        return methods.plain_sums(self, self.grad_method, flat, x, y, valid, masks, share)

    def per_record(self, flat: Tensor, x: Tensor, y: Tensor, masks: Masks, program: Program) -> list[Tensor]:
        """All numbers that per-sample gradients are made of, [C, B, …] each: the invariance probe compares them."""

        def one_client(flat: Tensor, x: Tensor, y: Tensor, masks: Masks) -> tuple[Tensor, ...]:
            gradients = zip(self.names, methods.gradients(self, program, flat, x, y, masks), strict=True)
            return tuple(part for name, each in gradients if self._uses[name] for part in each.parts())

        return list(methods.over_clients(one_client, flat, x, y, masks))

    def by_own_rules(self, flat: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
        """What layer rules of the user's make of these records; empty if none is used. [P], [B, …], [B] → [1, B, …] each.

        Secret draws are bound to these bits: a rule may read a value that no digest of its code covers.
        """
        if not self.bookkeeping.own_rules or self.grad_method != "bookkeeping":
            return []
        program = Program("bookkeeping", len(x), self.sum_dtype)
        return self.per_record(flat[None], x[None], y[None], self.no_masks(1, len(x)), program)

    def one_record(self, flat: Tensor, x: Tensor, y: Tensor, masks: Masks) -> Tensor:
        """The gradient of a single record by plain autograd: [P], [1, …], [1] → [P]."""
        return methods.one_record(self, flat, x, y, masks)


def _few_records(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Four records in double precision; one record is repeated, since a single one would hide that records mix."""
    if not len(x):
        raise BadValue("records", 0, "are too few to inspect a model with")
    few = torch.arange(4) % len(x)
    probe_x = x[few].double() if x.is_floating_point() else x[few]
    probe_y = y[few].double() if y.is_floating_point() else y[few]
    return probe_x.cpu(), probe_y.cpu()
