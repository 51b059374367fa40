"""FedAvg (McMahan, Moore, Ramage, Hampson, Agüera y Arcas 2017): h_i = w_glob, and training starts from it."""

from __future__ import annotations

from dataclasses import dataclass

from .rule import Rule


@dataclass(frozen=True)
class FedAvg(Rule):
    name = "fedavg"
    client_does = "starts from it"
