"""What `train --show-config` prints: every field with the value that the run will have, and what each client gets."""

from __future__ import annotations

from collections.abc import Iterable

from ..accounting.planning import ClientAnswer
from ..config import EMBEDDED, Config, to_toml
from ..planning import settled
from ..values import BadValue

MOST_SHOWN = 20  # clients
HERE = (*EMBEDDED, "csv", "npz")  # sources whose data are read; others might have to be downloaded first


def as_it_runs(config: Config) -> str:
    """A TOML file that reads back as the config of the run. What follows from the data stands in comments."""
    return to_toml(settled(config), documented=True) + "\n".join(["", *_comments(config), ""])


def _comments(config: Config) -> Iterable[str]:
    from ..run import forecast

    if config.data.source not in HERE:
        return ["# What each client gets depends on the data: prifedsync plan prints it."]
    try:
        answers = forecast(config).answers
    except BadValue as reason:
        return [f"# What each client gets is not known: {reason}"]
    lines = ["# What each client gets, chosen from public numbers:"]
    lines += [f"#   {_line(answer)}" for answer in answers[:MOST_SHOWN]]
    more = len(answers) - MOST_SHOWN
    return lines + ([f"#   and {more} more; prifedsync plan prints all"] if more > 0 else [])


def _line(answer: ClientAnswer) -> str:
    if answer.plan is None:
        return answer.reason
    mechanism = answer.plan.mechanism
    steps = mechanism.steps
    numbers: dict[str, object] = {"records": answer.records}
    numbers |= {"batch": steps.batch, "local_steps": steps.local_steps} if steps else {}
    numbers |= {"clip_norm": mechanism.clip_norm, "noise_multiplier": mechanism.noise_multiplier}
    return f"{answer.client}: " + ", ".join(f"{name} = {value}" for name, value in numbers.items() if value is not None)
