"""f-differential privacy: trade-off functions, subsampling, mixtures and composition. It needs numpy and scipy only."""

from .bounds import Bound, Neighbours
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

__all__ = [
    "Answer",
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
