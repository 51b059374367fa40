"""Personalisation rules: F_i, and what the client does with it. Each rule has a small file, and one line here."""

from .alone import Alone
from .apfl import APFL
from .attentive import Attentive
from .ditto import Ditto
from .fedavg import FedAvg
from .fedprox import FedProx
from .fields import field
from .interpolate import Interpolate
from .mean_regularised import MeanRegularised
from .mixture import Mixture
from .pfedme import PFedMe
from .rule import Kept, LocalOnly, Noised, Numbers, Pulled, Rule, Server, Steps, Unprotected

RULES: dict[str, type[Rule]] = {
    "fedavg": FedAvg,
    "interpolate": Interpolate,
    "fedprox": FedProx,
    "mean-regularised": MeanRegularised,
    "pfedme": PFedMe,
    "mixture": Mixture,
    "attentive": Attentive,
    "apfl": APFL,
    "ditto": Ditto,
    "alone": Alone,
}

__all__ = [
    "APFL",
    "RULES",
    "Alone",
    "Attentive",
    "Ditto",
    "FedAvg",
    "FedProx",
    "Interpolate",
    "Kept",
    "LocalOnly",
    "MeanRegularised",
    "Mixture",
    "Noised",
    "Numbers",
    "PFedMe",
    "Pulled",
    "Rule",
    "Server",
    "Steps",
    "Unprotected",
    "field",
]
