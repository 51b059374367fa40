"""What one round of a client releases, and how far one record can move it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Literal, Protocol

from ..fdp import Neighbours, TradeOff, fixed_size, gaussian, laplace, poisson_gaussian
from ..fdp.constructors import LEAST_NOISE, MOST_NOISE
from ..values import BadValue, choice, number, whole

MOST_STEPS = 10**9
MOST_RECORDS = 10**12
# Single precision holds numbers from 1e-38 to 3e38. Between these two, with MOST_RECORDS records and any noise multiplier,
# a clipped sum with its noise stays below 2e24 and the grid it is rounded to above 5e-18.
LEAST_CLIP = 1e-12
MOST_CLIP = 1e12
CLIP_REMEDY = "what lies outside cannot be computed with: scale the loss or the records"
NO_NOISE = "a plan without enough noise has no guarantee: train non-privately and say so"


NoiseLaw = Literal["gaussian", "laplace"]


class Mechanism(Protocol):
    """What one round of a client releases. Nothing outside this file asks which class a mechanism is.

    A frozen dataclass with these members is a mechanism; it need not inherit from anything.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def noise_multiplier(self) -> float:
        """The scale of the noise over `clip_norm`."""

    @property
    def clip_norm(self) -> float: ...

    @property
    def noise(self) -> NoiseLaw:
        """The distribution of the noise in each entry."""

    @property
    def noise_scale(self) -> float:
        """The noise in each entry: its standard deviation if it is Gaussian, its scale if it is Laplace."""

    @property
    def queries_per_round(self) -> int:
        """How often one round adds noise. The engine must report exactly this count."""

    @property
    def records(self) -> int | None:
        """The public number of records that the guarantee depends on; None if it depends on none."""

    @property
    def steps(self) -> NoisySteps | None:
        """The noisy local steps of a round; None if local steps are not noised one by one."""

    @property
    def output(self) -> OutputPerturbation | None:
        """How the change of a whole round is noised; None if it is not."""

    def one_round(self, neighbours: Neighbours) -> tuple[tuple[TradeOff, int], ...]:
        """The elementary trade-off functions of one round, each with its count."""


class Sampling(Enum):
    """How a batch is drawn: each record by its own coin, or a subset of exactly that size."""

    POISSON = "poisson"
    FIXED = "fixed"


@dataclass(frozen=True, kw_only=True)
class NoisySteps:
    """`local_steps` noisy gradients a round, each on its own independent batch (Algorithm 2).

    noise_multiplier is the noise's standard deviation over `clip_norm`: twice the paper's σ.
    records is a public nominal number: under replace-one neighbours n_j is public; under add/remove the rate, the divisor
    and the noise must come from this number and never from len(data).
    clip_margin is by how much (relative) rounding in the arithmetic used may carry a clipped vector over clip_norm.
    """

    noise_multiplier: float
    records: int
    batch: int | Literal["full"]
    local_steps: int
    sampling: Sampling = Sampling.POISSON
    clip_norm: float = 1.0
    clip_margin: float = 0.0

    def __post_init__(self) -> None:
        number("noise_multiplier", self.noise_multiplier, LEAST_NOISE, MOST_NOISE, remedy=NO_NOISE)
        whole("records", self.records, 1, MOST_RECORDS)
        whole("local_steps", self.local_steps, 1, MOST_STEPS)
        choice("sampling", self.sampling, Sampling)
        number("clip_norm", self.clip_norm, LEAST_CLIP, MOST_CLIP, remedy=CLIP_REMEDY)
        number("clip_margin", self.clip_margin, 0, 1)
        if self.batch != "full":
            whole("batch", self.batch, 1, remedy='or batch = "full" for one exact Gaussian step')
            if self.batch > self.records:
                raise BadValue(
                    "batch", self.batch, f"is larger than records = {self.records}", 'take fewer, or batch = "full"'
                )

    @property
    def rate(self) -> float:
        """The chance of one record to be in one batch."""
        return 1.0 if self.batch == "full" else self.batch / self.records

    @property
    def noise(self) -> NoiseLaw:
        return "gaussian"

    @property
    def noise_scale(self) -> float:
        return self.noise_multiplier * self.clip_norm

    @property
    def queries_per_round(self) -> int:
        return self.local_steps

    @property
    def steps(self) -> NoisySteps:
        return self

    @property
    def output(self) -> None:
        return None

    def one_step(self, neighbours: Neighbours) -> TradeOff:
        """What one noisy gradient tells about one record.

        Under replace-one the clipped sum moves by at most 2·clip_norm, under add/remove by clip_norm.
        """
        choice("neighbours", neighbours, Neighbours)
        spread = self.noise_multiplier / (1 + self.clip_margin)
        if self.sampling is Sampling.FIXED and self.rate < 1:
            if neighbours is Neighbours.ADD_REMOVE:
                raise BadValue(
                    "neighbours", neighbours.value, "cannot go with sampling = fixed: a batch of fixed size is drawn "
                    "from a number of records that must not change", "use replace, or sampling = poisson"
                )  # fmt: skip
            return fixed_size(gaussian(2 / spread), self.rate)
        if self.rate < 1:
            return poisson_gaussian(spread, self.rate, neighbours)
        return gaussian((2 if neighbours is Neighbours.REPLACE else 1) / spread)

    def one_round(self, neighbours: Neighbours) -> tuple[tuple[TradeOff, int], ...]:
        return ((self.one_step(neighbours), self.local_steps),)


@dataclass(frozen=True, kw_only=True)
class OutputPerturbation:
    """The change of the model in one round, clipped to norm `clip_norm` and noised once; protects all records at once.

    Any two changes are at most 2·clip_norm apart, whatever the neighbours, and no batch amplifies. Gaussian noise: norm
    L2, standard deviation noise_multiplier·clip_norm. Laplace: norm L1, scale noise_multiplier·clip_norm in each entry.
    """

    noise_multiplier: float
    clip_norm: float = 1.0
    noise: NoiseLaw = "gaussian"

    def __post_init__(self) -> None:
        number("noise_multiplier", self.noise_multiplier, LEAST_NOISE, MOST_NOISE, remedy=NO_NOISE)
        number("clip_norm", self.clip_norm, LEAST_CLIP, MOST_CLIP, remedy=CLIP_REMEDY)
        if self.noise not in ("gaussian", "laplace"):
            raise BadValue("noise", self.noise, "must be gaussian or laplace")

    @property
    def noise_scale(self) -> float:
        return self.noise_multiplier * self.clip_norm

    @property
    def queries_per_round(self) -> int:
        return 1

    @property
    def records(self) -> None:
        return None

    @property
    def steps(self) -> None:
        return None

    @property
    def output(self) -> OutputPerturbation:
        return self

    def one_round(self, neighbours: Neighbours) -> tuple[tuple[TradeOff, int], ...]:
        spread = self.noise_multiplier / 2
        return ((gaussian(1 / spread) if self.noise == "gaussian" else laplace(spread), 1),)
