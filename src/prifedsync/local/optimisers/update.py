"""How one kind of optimiser is declared.

C clients are stacked: weights, gradients and slots are [C, P], numbers and the count of steps are [C, 1].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .optimiser import Optimiser

NUMBERS = ("rate", "momentum", "decay", "beta1", "beta2", "stability", "weight_decay")  # what an update can be told


class Update(ABC):
    """One kind of optimiser: the vectors it keeps for each client, and the step it takes with a noisy gradient.

    An update is post-processing of noisy gradients. It sees no record, so it costs no privacy. It cannot change the number
    of noisy queries either: the engine takes and counts them, and calls the update once for each.

    `step` must be a pure function that treats every row by itself. What it remembers it keeps in its slots: an attribute
    that remembers gradients could carry some without noise, of a model that stays with its client, into an upload.

    A subclass inherits neither `kernel` nor the right to another class' torch twin: `checked` compares the two.
    """

    name: ClassVar[str]
    slots: ClassVar[tuple[str, ...]] = ()  # names of the vectors it keeps for each client; they start as zeros
    reads: ClassVar[tuple[str, ...]] = ()  # the numbers of [local] that `step` reads besides the rate
    proportional: ClassVar[bool] = False  # whether a gradient twice as long makes a step twice as long
    kernel: ClassVar[str | None] = None  # its name in the fused GPU kernel; None: the kernel does not know it
    torch_slots: ClassVar[Mapping[str, str]] = MappingProxyType({})  # slot → its name in the state of the torch twin

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kernel" not in vars(cls):
            cls.kernel = None  # a changed `step` must not be run as the one it was derived from

    @abstractmethod
    def step(self, w: Tensor, g: Tensor, slots: dict[str, Tensor], numbers: Mapping[str, Tensor], count: Tensor) -> Tensor:
        """The new weights [C, P]. `g` may be used up and `slots` change; `w` must not.

        `numbers` holds the rate and what `reads` names. `count`: how many steps the state has seen, this one too.
        Weight decay is in `g` already, unless `reads` names it: then this update applies it.
        """

    def torch_twin(self, optimiser: Optimiser, parameters: Iterable[Tensor], rate: float) -> torch.optim.Optimizer | None:
        """The same optimiser as torch has it, for the reference engine and the benchmark; None: torch does not have it."""
        return None

    def momentum_of(self, optimiser: Optimiser) -> float:
        """The share of the last step that is taken again in this one; 0 where steps do not add up."""
        return 0.0
