"""The ledger of an owner: an append-only chain of what was reserved and charged, with the replies. It needs no torch."""

from .anchor import Anchor
from .book import Ledger
from .chain import LedgerFailed
from .runs import Run, Stored, Totals

__all__ = ["Anchor", "Ledger", "LedgerFailed", "Run", "Stored", "Totals"]
