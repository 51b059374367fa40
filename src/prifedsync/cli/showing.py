"""What `train --show-config` prints: every field with the value that the run will have, and what each client gets."""

from __future__ import annotations

import sys

from ..accounting.planning import ClientAnswer
from ..config import AUTO, EMBEDDED, Config, to_toml
from ..events import Event, Note
from ..planning import with_rule_defaults
from ..values import BadValue

MOST_SHOWN = 20  # clients
HERE = (*EMBEDDED, "csv", "npz")  # sources whose data are read; others might have to be downloaded first


def as_it_runs(config: Config) -> str:
    """A TOML file that reads back as the config of the run. What follows from the data stands in comments."""
    config, comments = _with_data(config)
    return to_toml(with_rule_defaults(config), documented=True) + "\n".join(["", *comments, ""])


def _with_data(config: Config) -> tuple[Config, list[str]]:
    """The config with the numbers that are chosen for its data, and what each client gets."""
    from ..run import forecast

    if config.data.source not in HERE:
        return config, ["# What each client gets depends on the data: prifedsync plan prints it."]
    reasons: list[str] = []

    def note(event: Event) -> None:
        if isinstance(event, Note):
            reasons.append(f"#   {'warning: ' * event.warning}{event.text}")

    try:
        found = forecast(config, note)
    except BadValue as reason:  # it may hold a cell of a record, which does not belong into a config
        print(f"prifedsync: {reason}", file=sys.stderr)
        return config, ["# What each client gets is not known: the error stream says why."]
    lines = ["# Settings that were chosen from public numbers:", *reasons] if reasons else []
    lines += ["# What each client gets, chosen from public numbers:"]
    clips = found.config.privacy.clip_norm != AUTO  # otherwise the data are elsewhere, and it is still to be chosen
    lines += [f"#   {_line(answer, clips)}" for answer in found.answers[:MOST_SHOWN]]
    more = len(found.answers) - MOST_SHOWN
    return found.config, lines + ([f"#   and {more} more; prifedsync plan prints all"] if more > 0 else [])


def _line(answer: ClientAnswer, clips: bool) -> str:
    if answer.plan is None:
        return answer.reason
    mechanism = answer.plan.mechanism
    steps = mechanism.steps
    numbers: dict[str, object] = {"records": answer.records}
    numbers |= {"batch": steps.batch, "local_steps": steps.local_steps} if steps else {}
    numbers |= {"clip_norm": mechanism.clip_norm} if clips else {}
    numbers["noise_multiplier"] = mechanism.noise_multiplier
    return f"{answer.client}: " + ", ".join(f"{name} = {value}" for name, value in numbers.items() if value is not None)
