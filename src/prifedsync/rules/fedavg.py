"""FedAvg: h_i = w_glob, and training starts from it (McMahan, Moore, Ramage, Hampson, Agüera y Arcas 2017)."""

from __future__ import annotations

from .rule import Rule


class FedAvg(Rule):
    name = "fedavg"
    client_does = "starts from it"
