"""What `prifedsync owner check` looks at, for the owner alone: whether data, models, files and policy fit together."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from .. import named
from ..accounting.statement import down
from ..rules import RULES
from ..rules.outside import checked_class
from ..values import BadValue, counted
from .keys import pinned
from .ledger.pages import open_ledger
from .listening import user_ids
from .permissions import check_private
from .policy import Policy
from .records import records_of
from .trial import Trial, tried

LONGEST_SOCKET = 107  # bytes of a path that a Unix socket can have
ROOM = 3  # a reply should leave after so many times what its training takes


class Finding(NamedTuple):
    """One line of the table. "wrong": the daemon would refuse to start, or every run, or others can read the records."""

    what: str
    status: Literal["ok", "warn", "wrong"]
    said: str
    remedy: str = ""


def checkup(policy: Policy) -> tuple[Finding, ...]:
    """All findings about a policy that could be read."""
    checks = (_files, _records, _rules, _names, _users, _socket, _ledger, _anchor, _replies)
    return tuple(finding for check in checks for finding in check(policy))


def _wrong(what: str, error: BadValue) -> Finding:
    return Finding(what, "wrong", str(BadValue(error.field, error.value, error.rule)), error.remedy)


# ---------------------------------------------------------------------- records and what is trained on them


def _files(policy: Policy) -> Iterator[Finding]:
    """Who may read the files of records, where the policy names them."""
    named_by_path = policy.data.source in ("csv", "npz")
    path = policy.folder / policy.data.path
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    for file in files if named_by_path and path.exists() else ():
        try:
            check_private("data.path", file)
        except BadValue as error:
            yield _wrong("records", error)


def _records(policy: Policy) -> Iterator[Finding]:
    try:
        own = records_of(policy)
    except BadValue as error:
        yield _wrong("records", error)
        return
    found = f"{counted(own.train.units, policy.source.unit)} of shape {own.description.shape} to train on"
    yield Finding("records", "ok", f"{found}, {counted(len(own.test), 'record')} held out")
    yield from (Finding("records", "warn", note, "look at the file") for note in own.notes)
    if len(own.test) and not policy.replies.metrics:
        said = "records are held out, and their scores may not leave"
        yield Finding("records", "warn", said, "set data.test_fraction = 0, so that they are trained on")
    trials = []
    for model in policy.limits.models:
        try:
            trials.append(tried(policy, own, model))
            yield _model(policy, trials[-1])
            yield from (Finding(f"model {model}", "warn", note, "look at the records") for note in trials[-1].notes)
        except BadValue as error:
            yield _wrong(f"model {model}", error)._replace(remedy="remove it from limits.models, or change the records")
    if trials:
        yield _time(policy, max(trials, key=lambda trial: trial.seconds))


def _model(policy: Policy, trial: Trial) -> Finding:
    said = f"{trial.parameters:,} parameters; gradients by {trial.gradients}"
    if trial.parameters > policy.limits.parameters:
        remedy = f"raise limits.parameters to {trial.parameters}, or remove the model"
        return Finding(f"model {trial.model}", "wrong", f"{said}, more than limits.parameters allow", remedy)
    return Finding(f"model {trial.model}", "ok", said)


def _time(policy: Policy, slowest: Trial) -> Finding:
    """The longest round that the policy allows, against the time after which a reply leaves."""
    longest = slowest.seconds * policy.limits.local_steps
    steps = counted(policy.limits.local_steps, "step")
    said = f"a round of {steps} on all records takes about {longest:.2g} s with {slowest.model}"
    if ROOM * longest <= policy.replies.seconds:
        return Finding("time", "ok", f"{said}; replies leave after {policy.replies.seconds:g} s")
    remedy = f"set replies.seconds to at least {ROOM * longest:.2g}, or lower limits.local_steps"
    return Finding("time", "warn", f"{said}, and replies leave after {policy.replies.seconds:g} s", remedy)


def _rules(policy: Policy) -> Iterator[Finding]:
    for name in policy.limits.rules:
        what = f"rule {name}"
        try:
            rule = RULES[name] if name in RULES else checked_class(named.function("limits.rules", name), what, name, RULES)
        except BadValue as error:
            yield _wrong(what, error)._replace(remedy="remove it; prifedsync rules lists the built-in ones")
            continue
        if rule.uploads:
            yield Finding(what, "ok", f"sends {rule.leaves}")
        else:
            yield Finding(what, "wrong", "its clients send nothing, so there is nothing to ask for", "remove it")


# ---------------------------------------------------------------------- who takes part, and who may ask


def _names(policy: Policy) -> Iterator[Finding]:
    """Keys of the owners that this one shares sums with."""
    masks = policy.masks
    if not masks.identity:
        yield Finding("masks", "ok", "runs with masks are refused: masks.identity is not set")
        return
    try:
        pinned(policy)
    except BadValue as error:
        yield _wrong("masks", error)
        return
    together = 1 + len(masks.peers)
    said = f"this owner's key, and {counted(len(masks.peers), 'pinned key')} of others"
    if together < max(2, policy.limits.participants):
        remedy = "pin the keys of the others in masks.peers, or lower limits.participants"
        status: Literal["warn", "wrong"] = "wrong" if masks.required else "warn"
        yield Finding("masks", status, f"{said}, too few for limits.participants", remedy)
    else:
        yield Finding("masks", "ok", said)


def _users(policy: Policy) -> Iterator[Finding]:
    try:
        user_ids(policy.users)
    except BadValue as error:
        yield _wrong("users", error)
        return
    if not policy.users:
        user = pwd.getpwuid(os.geteuid()).pw_name
        said = f"only the daemon's own user ({user}) may ask, and can read the records as well"
        yield Finding("users", "warn", said, "name another user in users, under which the network side runs")
    else:
        yield Finding("users", "ok", f"{', '.join(policy.users)} may ask")


def _socket(policy: Policy) -> Iterator[Finding]:
    path = policy.path("socket")
    if len(os.fsencode(path)) > LONGEST_SOCKET:
        remedy = "choose a shorter one, as in /run/prifedsync/owner.sock"
        yield Finding("socket", "wrong", f"{path} is longer than {LONGEST_SOCKET} bytes", remedy)
    elif not path.parent.is_dir():
        remedy = "make it, or let systemd make it (docs/owner.md)"
        yield Finding("socket", "wrong", f"there is no folder {path.parent}", remedy)
    else:
        yield Finding("socket", "ok", str(path))


# ---------------------------------------------------------------------- ledger and replies


def _ledger(policy: Policy) -> Iterator[Finding]:
    try:
        ledger = open_ledger(policy, readonly=True)
    except BadValue as error:
        yield _wrong("ledger", error)
        return
    try:
        totals = ledger.totals()
        runs = counted(len(ledger.runs()), "run")
    finally:
        ledger.close_file()
    yield Finding("ledger", "ok", f"whole, with {runs}")
    left = f"{down(100 * totals.left / totals.limit) if totals.limit else 0} % of the budget is left"
    if totals.left > 0:
        yield Finding("budget", "ok", left)
    else:
        yield Finding(
            "budget", "warn", "nothing of the budget is left: new runs are refused", "see prifedsync owner status"
        )


def _anchor(policy: Policy) -> Iterator[Finding]:
    path = policy.path("anchor")
    if path is None:
        said = "there is none: a ledger that was rolled back to an older copy would not be noticed here"
        yield Finding("anchor", "warn", said, "set files.anchor to a file on another disk or machine")
    elif not path.parent.is_dir():
        yield Finding("anchor", "wrong", f"there is no folder {path.parent}", "make it, or mount it")
    elif _same_disk(path.parent, policy.path("ledger").parent):
        said = "it lies on the disk of the ledger, and one backup would bring back both"
        yield Finding("anchor", "warn", said, "set files.anchor to a file on another disk or machine")
    else:
        yield Finding("anchor", "ok", str(path))


def _same_disk(one: Path, other: Path) -> bool:
    return other.is_dir() and one.stat().st_dev == other.stat().st_dev


def _replies(policy: Policy) -> Iterator[Finding]:
    if policy.replies.metrics:
        said = "scores on this owner's test records leave without noise, and no guarantee covers them"
        yield Finding("metrics", "warn", said, "set replies.metrics = false")
    if policy.budget.epsilon is not None and policy.budget.delta * policy.source.records >= 1:
        said = f"delta = {policy.budget.delta:g} is not below 1/{policy.source.records}: it allows to publish whole records"
        yield Finding("delta", "warn", said, "set a smaller budget.delta")
