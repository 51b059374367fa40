"""Receipts: what a run was charged, for whoever asked or regulates. No record, no reply and no score is in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...accounting import Budget
from ...accounting.statement import Numbers, finite
from ...asking.questions import Head
from ...values import BadValue
from .chain import canonical
from .runs import Run

VERSION = 1
CONTEXT = b"prifedsync receipt\0"  # an identity signs introductions too; a signature of one must not pass for the other


def receipt_of(run: Run, source: str, head: Head, budget: Budget) -> dict[str, Any]:
    """The receipt of one run. The guarantee is that of all slots of the plan, whether or not they were asked."""
    plan = run.plan
    return {
        "version": VERSION,
        "source": source,
        "run": run.run,
        "document": run.document.hex(),
        "by": run.by,
        "begun": run.begun,
        "open": bool(run.open),
        "plan": run.plan_json,
        "slots": {"rounds": run.asked, "attempts": run.spare, "queries": run.queries},
        "guarantee": {"delta": budget.delta, **Numbers.of(plan.guarantee(), budget.delta).as_json()},
        "charged": {
            "unit": budget.unit,
            "order": budget.order,
            "amount": finite(run.spent),
            "alone": bool(run.alone),
        },
        "head": {"number": head.number, "hash": head.hash.hex()},
    }


def signed(receipt: Mapping[str, Any], identity: bytes) -> dict[str, Any]:
    """The receipt with the owner's signature (Ed25519) and the public identity that made it."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.from_private_bytes(identity)
    named = {**receipt, "identity": key.public_key().public_bytes_raw().hex()}
    return {**named, "signature": key.sign(_signed_bytes(named)).hex()}


def check_receipt(receipt: Mapping[str, Any]) -> str:
    """The public identity that signed the receipt. Refused if it is not signed, or not as it was signed."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if "signature" not in receipt:
        remedy = "ask the owner for a signed one: the policy must name masks.identity"
        raise BadValue("receipt", receipt.get("run"), "is not signed", remedy)
    named = {name: value for name, value in receipt.items() if name != "signature"}
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(receipt["identity"]))
        key.verify(bytes.fromhex(receipt["signature"]), _signed_bytes(named))
    except (InvalidSignature, ValueError, KeyError, TypeError):
        raise BadValue("receipt", receipt.get("run"), "is not as its owner signed it", "ask the owner again") from None
    return str(receipt["identity"])


def _signed_bytes(named: Mapping[str, Any]) -> bytes:
    return CONTEXT + canonical(named).encode()
