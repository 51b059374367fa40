"""All that an owner ever says when it declines. Each text is a constant: it depends on no record and quotes no value."""

from __future__ import annotations

from enum import Enum


class Refusal(Enum):
    """Why an owner declines a question. What decides is the policy, the ledger and the question alone."""

    MALFORMED = "the question is not one that this owner understands"
    VERSION = "the question is of another version"
    RUN = "this run is not enrolled here"
    CHANGED = "this run is enrolled with another document"
    CLOSED = "this run is closed"
    CLIENT = "this owner is not in the roster"
    NAME = "this is the owner of another client"
    MODEL = "the model is not allowed by the policy"
    RULE = "the rule is not allowed by the policy"
    TRAINING = "the local training is not one that this owner can run"
    RECORDS = "the plan is about other records than the policy names"
    NOISE = "the plan has less noise than the policy asks for"
    CLIP = "the clip norm is above that of the policy"
    STEPS = "the plan has more local steps than the policy allows"
    ROUNDS = "the plan has more rounds than the policy allows"
    BUDGET = "the budget does not cover the plan"
    PARTICIPANTS = "the roster has fewer participants than the policy asks for"
    MASKS = "the policy asks for masks"
    PEERS = "a client of the roster has no pinned key"
    SESSION = "the session is not the one that was enrolled last"
    INTRODUCTION = "an introduction is not signed by a pinned key"
    SLOT = "this slot was answered before, to another question or in a run that is closed now"
    ORDER = "this slot comes too late"
    BEYOND = "this slot is beyond the plan"
    LIST = "the list of the sum is not allowed"
    HELPER = "the helper does not have the shape of the model"
    ANCHOR = "the head is not in this owner's ledger"
    BUSY = "this owner is busy"
    FAILED = "this owner cannot answer now"
