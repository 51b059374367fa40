"""f-differential privacy in numbers: trade-off functions, subsampling, mixtures, composition. numpy and scipy only."""

from .constructors import (
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
from .tradeoff import Answer, TradeOff
from .values import BadValue, Bound, Neighbours

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
