"""f-differential privacy in numbers: trade-off functions, subsampling, mixtures, composition. numpy and scipy only."""

from .tradeoff import (
    Answer,
    Neighbours,
    TradeOff,
    compose,
    epsilon_delta,
    fixed_size,
    from_points,
    gaussian,
    identity,
    laplace,
    leak,
    maximum,
    minimum,
    participating,
    poisson_gaussian,
)
from .values import BadValue, Bound

__all__ = [
    "Answer",
    "BadValue",
    "Bound",
    "Neighbours",
    "TradeOff",
    "compose",
    "epsilon_delta",
    "fixed_size",
    "from_points",
    "gaussian",
    "identity",
    "laplace",
    "leak",
    "maximum",
    "minimum",
    "participating",
    "poisson_gaussian",
]
