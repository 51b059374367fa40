"""Personalisation rules: F_i, and what the client does with it. One small file a rule."""

from .alone import Alone
from .fedavg import FedAvg
from .interpolate import Interpolate
from .rule import Noised, OnlyHere, Rule, Server, Unprotected

RULES: dict[str, type[Rule]] = {"fedavg": FedAvg, "interpolate": Interpolate}

__all__ = ["RULES", "Alone", "FedAvg", "Interpolate", "Noised", "OnlyHere", "Rule", "Server", "Unprotected"]
