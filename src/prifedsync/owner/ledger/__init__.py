"""The ledger of an owner: an append-only chain of what was reserved and charged, with the replies. It needs no torch."""

from .anchor import Anchor
from .book import Ledger
from .chain import LedgerFailed
from .protected import Protected
from .receipts import check_receipt, signed
from .restoring import Restored, restore
from .runs import Run, Stored, Totals
from .verifying import Verified, verify

__all__ = [
    "Anchor",
    "Ledger",
    "LedgerFailed",
    "Protected",
    "Restored",
    "Run",
    "Stored",
    "Totals",
    "Verified",
    "check_receipt",
    "restore",
    "signed",
    "verify",
]
