"""The public description of a whole run: the same bytes for every owner, and all that an owner has to know to take part.

It has no path, no source of data and no code. A name of code, "module:function", may stand as the model or as the rule, and
whoever trains loads it only if the owner's policy lists exactly that text. Jobs are explicit. So an owner checks the very
plan that is trained, and never calibrates one.

`of` makes a document, `read` and `parsed` take one from outside. Whatever is wrong with it is one `BadValue`.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NoReturn, cast, get_args

from ..config import Config, ModelConfig
from ..config import reading as config_reading
from ..config.declaring import keys_of
from ..data import Description, Task
from ..local import Job
from ..local.sums import Sums
from ..metrics import METRICS
from ..rules import RULES, Rule
from ..rules.fields import own_values, with_fields
from ..values import NOT_GIVEN, BadValue, whole
from .plain import check_size, table, written
from .plain import read as plain_read
from .questions import VERSION

Arithmetic = Literal["float32", "float64"]
Augment = Literal["none", "crop-flip"]
RUN = re.compile(r"[0-9a-f]{32}")
CODE = re.compile(r"(?!python:)[^\W\d]\w*(\.[^\W\d]\w*)*(?<!\.py):[^\W\d]\w*")  # "module:function", and no path of a file
KEYS = (
    "version", "run", "rule", "model", "task", "shape", "tokens", "seed", "arithmetic", "augment", "metrics", "summed",
    "masks", "attempts", "least", "clients",
)  # fmt: skip
MOST_CLIENTS = 10_000
MOST_BYTES = 8 * 2**20  # of the text
MOST_ENTRIES = 10**8  # of one record
MOST_AXES = 8
MOST_CLASSES = 10**6
MOST_LAYERS = 64  # hidden ones
MOST_SEED = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class RunDocument:
    """A run as its owners see it. All of it is public."""

    run: str  # 32 hexadecimal digits, chosen by whoever asks
    jobs: tuple[Job, ...]  # of all clients, in the order of the server; each has a plan
    rule_name: str
    rule_fields: Mapping[str, Any]  # the values of the rule's own fields
    model: ModelConfig
    task: Task
    shape: tuple[int, ...]  # of one record, before features
    tokens: int  # vocabulary size; 0: records are numbers
    seed: int  # of the first weights
    arithmetic: Arithmetic
    augment: Augment
    metrics: tuple[str, ...]  # built-in ones, in which scores are given where the owner lets them leave
    summed: bool  # clients send messages that are added up, not models
    masks: bool
    attempts: int  # spare ones, of the whole run
    least: int  # number of clients in a sum

    def __post_init__(self) -> None:
        if not RUN.fullmatch(self.run):
            raise BadValue("document.run", self.run, "must be 32 hexadecimal digits in lower case")
        _check_code("rule.name", self.rule_name, tuple(RULES))
        if self.rule_name in RULES:
            with_fields(RULES[self.rule_name], self.rule_fields)
        _check_model(self.model)
        _check_records(self)
        whole("document.seed", self.seed, 0, MOST_SEED)
        _check_choice("arithmetic", self.arithmetic, get_args(Arithmetic))
        _check_choice("augment", self.augment, get_args(Augment))
        for metric in self.metrics:
            _check_choice("metrics", metric, tuple(METRICS))
        _check_jobs(self)
        _check_sums(self)
        if len(self.text) > MOST_BYTES:
            raise BadValue("document", f"{len(self.text)} bytes", f"must have at most {MOST_BYTES}", "ask fewer clients")

    def job(self, client: str) -> Job | None:
        """What this client is asked to do; None if it is not in the roster."""
        return self._by_name.get(client)

    @cached_property
    def _by_name(self) -> dict[str, Job]:
        return {job.client: job for job in self.jobs}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(job.client for job in self.jobs)

    @property
    def rounds(self) -> int:
        plan = self.jobs[0].plan
        assert plan is not None  # _check_jobs
        return plan.rounds

    @property
    def description(self) -> Description:
        """What is public about the records, as the plans have it."""
        sizes = {job.client: job.steps.records for job in self.jobs}
        return Description(sizes, self.shape, self.task, tokens=self.tokens)

    @cached_property
    def mapping(self) -> Mapping[str, Any]:
        """The document as JSON has it."""
        model = {key: list(it) if isinstance(it, tuple) else it for key, it in keys_of(self.model).items()}
        del model["layer_rules"]
        return {
            "version": VERSION,
            "run": self.run,
            "rule": {"name": self.rule_name, "fields": {key: _listed(it) for key, it in self.rule_fields.items()}},
            "model": model,
            "task": {"kind": self.task.kind, "classes": self.task.classes},
            "shape": list(self.shape),
            "tokens": self.tokens,
            "seed": self.seed,
            "arithmetic": self.arithmetic,
            "augment": self.augment,
            "metrics": list(self.metrics),
            "summed": self.summed,
            "masks": self.masks,
            "attempts": self.attempts,
            "least": self.least,
            "clients": [written(Job, job) for job in self.jobs],
        }

    @cached_property
    def text(self) -> str:
        """The one text of this document."""
        return canonical(self.mapping)

    @cached_property
    def digest(self) -> bytes:
        """Names the document: blake2b of its text, 32 bytes."""
        return hashlib.blake2b(self.text.encode(), digest_size=32).digest()


def of(
    config: Config, description: Description, jobs: Sequence[Job], rule: Rule, *, run: str, arithmetic: str,
    metrics: Sequence[str], sums: Sums | None,
) -> RunDocument:  # fmt: skip
    """The document of a prepared run. `description` is of the records as they are, before the model's features."""
    if config.model.layer_rules:
        raise BadValue("model.layer_rules", config.model.layer_rules, "is code, which an owner does not take from outside")
    return RunDocument(
        run=run,
        jobs=tuple(jobs),
        rule_name=config.rule.name,
        rule_fields=own_values(rule),
        model=config.model,
        task=description.task,
        shape=tuple(description.shape),
        tokens=description.tokens,
        seed=config.seed,
        arithmetic=cast(Arithmetic, arithmetic),
        augment=config.local.augment,
        metrics=tuple(metrics),
        summed=sums is not None,
        masks=sums is not None and sums.masked,
        attempts=sums.attempts if sums else 0,
        least=sums.least if sums else 1,
    )


def read(given: Any) -> RunDocument:
    """The document that these JSON values are, rebuilt through the checks of all its parts. It raises `BadValue` only."""
    check_size(given)
    if isinstance(given, Mapping) and given.get("version") != VERSION:
        raise BadValue("document.version", str(given.get("version"))[:20], f"must be {VERSION}", "use the same version")
    values = table(given, KEYS, "document")
    document = _built(values)
    if document.text != canonical(values):
        rule = "has values that are not written as `asking.document` writes them"
        raise BadValue("document", NOT_GIVEN, rule, "send the text that it writes")
    return document


def parsed(text: str) -> RunDocument:
    """The document with this text."""
    if len(text) > MOST_BYTES:
        raise BadValue("document", f"{len(text)} characters", f"must have at most {MOST_BYTES}")
    try:
        given = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        if isinstance(error, BadValue):
            raise
        raise BadValue("document", f"{len(text)} characters", "is not JSON") from None
    return read(given)


def canonical(values: Mapping[str, Any]) -> str:
    """JSON with one text for each value."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _built(values: Mapping[str, Any]) -> RunDocument:
    rule = table(values["rule"], ("name", "fields"), "rule")
    clients = _list(values["clients"], "clients", MOST_CLIENTS)
    text = {key: plain_read(str, values[key], key) for key in ("run", "arithmetic", "augment")}
    truth = {key: plain_read(bool, values[key], key) for key in ("summed", "masks")}
    number = {key: plain_read(int, values[key], key) for key in ("tokens", "seed", "attempts", "least")}
    return RunDocument(
        jobs=tuple(plain_read(Job, client, "clients") for client in clients),
        rule_name=plain_read(str, rule["name"], "rule.name"),
        rule_fields=_rule_fields(rule["fields"]),
        model=_model(values["model"]),
        task=plain_read(Task, values["task"], "task"),
        shape=plain_read(tuple[int, ...], values["shape"], "shape"),
        metrics=plain_read(tuple[str, ...], values["metrics"], "metrics"),
        **text,
        **truth,
        **number,
    )


def _model(given: Any) -> ModelConfig:
    keys = tuple(key for key in keys_of(ModelConfig()) if key != "layer_rules")
    return ModelConfig(**config_reading.values(ModelConfig, table(given, keys, "model"), "model", ModelConfig))


def _rule_fields(given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise BadValue("rule.fields", type(given).__name__, "must be a table")
    return {key: _rule_value(key, value) for key, value in given.items()}


def _rule_value(key: Any, value: Any) -> Any:
    """What TOML has for numbers, text, truth values and lists of them."""
    if not (isinstance(key, str) and key.isidentifier()) or value is None or isinstance(value, Mapping):
        raise BadValue("rule.fields", str(key), "must be a number, a text, a truth value or a list of these")
    return tuple(_rule_value(key, item) for item in value) if isinstance(value, list) else value


def _listed(value: Any) -> Any:
    return [_listed(item) for item in value] if isinstance(value, tuple) else value


def _list(value: Any, name: str, most: int) -> list[Any]:
    if not isinstance(value, list) or not 1 <= len(value) <= most:
        raise BadValue(name, type(value).__name__, f"must be a list of 1 to {most}")
    return value


def _check_model(model: ModelConfig) -> None:
    _check_code("model.name", model.name, ("softmax", "linear", "mlp", "mnist-cnn", "cifar-cnn"))
    if len(model.hidden) > MOST_LAYERS:
        raise BadValue("model.hidden", f"{len(model.hidden)} layers", f"must be at most {MOST_LAYERS}")


def _check_code(field: str, name: str, built_in: Sequence[str]) -> None:
    """Refuse what is neither built in nor an installed function; code that was given from Python has no name elsewhere."""
    if name in built_in or CODE.fullmatch(name):
        return
    remedy = f'the built-in ones are {", ".join(built_in)}; "module:function" names installed code'
    raise BadValue(field, name, "is not a name that an owner could know", remedy)


def _check_records(document: RunDocument) -> None:
    shape = document.shape
    for length in shape:
        whole("document.shape", length, 1, MOST_ENTRIES)
    if not 1 <= len(shape) <= MOST_AXES or math.prod(shape) > MOST_ENTRIES:
        raise BadValue("document.shape", str(shape), f"must have 1 to {MOST_AXES} axes and at most {MOST_ENTRIES} entries")
    whole("document.tokens", document.tokens, 0, MOST_ENTRIES)
    if document.task.classes > MOST_CLASSES:
        raise BadValue("task.classes", document.task.classes, f"must be at most {MOST_CLASSES}")


def _check_choice(field: str, value: str, among: Sequence[str]) -> None:
    if value not in among:
        raise BadValue(f"document.{field}", value, f"must be one of {', '.join(among)}")


def _check_jobs(document: RunDocument) -> None:
    """Refuse clients without a plan, of one name, or with plans of other lengths than the run's."""
    if not 1 <= len(document.jobs) <= MOST_CLIENTS:
        raise BadValue("clients", len(document.jobs), f"must be 1 to {MOST_CLIENTS}")
    names = [job.client for job in document.jobs]
    if len(set(names)) < len(names):
        raise BadValue("clients", len(names), "share a name", "two clients of one name would share their noise")
    lengths = set()
    for job in document.jobs:
        if job.plan is None:
            raise BadValue("clients", job.client, "has no plan", "an owner releases nothing without noise")
        if job.optimiser.own is not None:
            raise BadValue("optimiser", job.optimiser.name, "is code, which an owner does not take from outside")
        lengths.add((job.plan.rounds, job.plan.attempts))
    if lengths != {(document.rounds, document.attempts)}:
        rule = "must have as many rounds as each other, and the attempts of the run"
        raise BadValue("clients", len(names), rule, "plan one run")
    document.description  # noqa: B018  # its checks are those of names


def _check_sums(document: RunDocument) -> None:
    if document.masks and not document.summed:
        raise BadValue("document.masks", "true", "is about sums, and this run has none")
    if document.attempts and not document.masks:
        raise BadValue("document.attempts", document.attempts, "is about masked sums, and this run has none")
    whole("document.least", document.least, 2 if document.masks else 1, len(document.jobs))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A table whose names are all different."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise BadValue("document", len(pairs), "names in a table are not all different")
    return found


def _no_number(text: str) -> NoReturn:
    raise BadValue("document", text, "is not a number")
