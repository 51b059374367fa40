"""What one round of a client releases, and how far one record can move it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Literal, Protocol

from ..fdp import Neighbours, TradeOff, fixed_size, gaussian, laplace, poisson_gaussian
from ..limits import CLIP_REMEDY, LEAST_CLIP, LEAST_NOISE, MOST_CLIP, MOST_NOISE, MOST_RECORDS, MOST_STEPS
from ..values import BadValue, choice, number, whole

NO_NOISE = "a plan without enough noise has no guarantee; add noise, or train without privacy and say so"


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
    def clip_norm(self) -> float:
        """The largest norm that one record's vector keeps."""

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
    """How a batch is drawn: each record independently with the same probability, or a subset of a fixed size."""

    POISSON = "poisson"
    FIXED = "fixed"

    def __repr__(self) -> str:
        return str(self)  # as it is written in Python, so that the repr of a plan can be copied


@dataclass(frozen=True, kw_only=True)
class NoisySteps:
    """A round takes `local_steps` noisy gradients, each on its own independent batch (Algorithm 2).

    noise_multiplier  the standard deviation of the noise divided by `clip_norm`; it is twice the paper's σ.
    records           a public nominal number of units: of records, or of persons where the plan is about persons. Under
                      replace-one adjacency the true number is public. Under add/remove adjacency the sampling rate, the
                      divisor and the noise must come from this number, never from len(data).
    clip_margin       how far, relative to clip_norm, rounding may carry a clipped vector beyond clip_norm.
    rows_per_unit     a public bound on the records of one unit: 1, or more where the plan is about persons.
    """

    noise_multiplier: float
    records: int
    batch: int | Literal["full"]
    local_steps: int
    sampling: Sampling = Sampling.POISSON
    clip_norm: float = 1.0
    clip_margin: float = 0.0
    rows_per_unit: int = 1

    def __post_init__(self) -> None:
        number("noise_multiplier", self.noise_multiplier, LEAST_NOISE, MOST_NOISE, remedy=NO_NOISE)
        whole("records", self.records, 1, MOST_RECORDS)
        whole("rows_per_unit", self.rows_per_unit, 1)
        whole("local_steps", self.local_steps, 1, MOST_STEPS)
        choice("sampling", self.sampling, Sampling)
        number("clip_norm", self.clip_norm, LEAST_CLIP, MOST_CLIP, remedy=CLIP_REMEDY)
        number("clip_margin", self.clip_margin, 0, 1)
        if self.batch != "full":
            whole("batch", self.batch, 1, remedy='or set batch = "full" to use all records in every step')
            if self.batch > self.records:
                remedy = 'set a smaller batch, or batch = "full"'
                raise BadValue("batch", self.batch, f"is larger than records = {self.records}", remedy)

    @property
    def rate(self) -> float:
        """The sampling rate: the probability that one record is in one batch."""
        return 1.0 if self.batch == "full" else self.batch / self.records

    @property
    def expected_batch(self) -> int:
        """The number of units that a batch is expected to have: what a clipped sum is divided by."""
        return self.records if self.batch == "full" else self.batch

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
        """The trade-off function of one noisy gradient.

        The sensitivity of the clipped sum is 2·clip_norm under replace-one adjacency and clip_norm under add/remove.
        """
        choice("neighbours", neighbours, Neighbours)
        spread = self.noise_multiplier / (1 + self.clip_margin)
        if self.sampling is Sampling.FIXED and self.rate < 1:
            if neighbours is Neighbours.ADD_REMOVE:
                rule = "cannot be combined with sampling = fixed, which needs a fixed number of records"
                raise BadValue("neighbours", neighbours.value, rule, "set neighbours = replace, or sampling = poisson")
            return fixed_size(gaussian(2 / spread), self.rate)
        if self.rate < 1:
            return poisson_gaussian(spread, self.rate, neighbours)
        return gaussian((2 if neighbours is Neighbours.REPLACE else 1) / spread)

    def one_round(self, neighbours: Neighbours) -> tuple[tuple[TradeOff, int], ...]:
        return ((self.one_step(neighbours), self.local_steps),)


@dataclass(frozen=True, kw_only=True)
class OutputPerturbation:
    """A round releases the change of the model, clipped to `clip_norm` and noised once.

    Two clipped changes differ by at most 2·clip_norm under either adjacency, and subsampling does not amplify. Gaussian
    noise goes with the L2 norm and has standard deviation `noise_scale`. Laplace noise goes with the L1 norm and has scale
    `noise_scale` in each entry.
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
