"""Optimisers: what is done with a noisy gradient. Post-processing, so it costs no privacy and may carry state over rounds.

`Update` declares one kind of optimiser. The built-in ones are in `OPTIMISERS`; `outside.py` admits those of a user.
"""

from .builtin import OPTIMISERS
from .optimiser import Optimiser
from .outside import by_name, checked
from .schedule import Schedule
from .single import Single, single, torch_twin
from .stacked import Stacked
from .update import Update

__all__ = [
    "OPTIMISERS",
    "Optimiser",
    "Schedule",
    "Single",
    "Stacked",
    "Update",
    "by_name",
    "checked",
    "single",
    "torch_twin",
]
