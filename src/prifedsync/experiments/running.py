"""Runs of experiments in a folder. A finished run is not run again, and an interrupted one is resumed."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..accounting import PrivacyPlan
from ..config import PUBLIC, Config, as_mapping, from_mapping
from ..files import write_file
from ..record import plan_as_json, plan_from_json
from ..rules import RULES
from ..run import Prepared, RoundDone, Trace, Watch, trace
from ..values import BadValue

VERSION = 1  # of the files of finished runs


@dataclass(frozen=True)
class Run:
    """A finished run: the mean accuracy of the clients' own models and of the global model after each round."""

    config: dict[str, Any]
    personal: list[float]
    released: list[float]
    plans: list[dict[str, Any]]  # all different plans; empty without privacy
    seconds: float  # since the run was last started or resumed
    device: str
    versions: dict[str, str]
    version: int = VERSION

    @property
    def privacy_plans(self) -> list[PrivacyPlan]:
        return [plan_from_json(plan) for plan in self.plans]

    def reached(self, target: float) -> int | None:
        """The first round after which the clients' own models reach the target accuracy."""
        for round, accuracy in enumerate(self.personal, start=1):
            if accuracy >= target:
                return round
        return None


@dataclass
class Runs:
    """A folder of finished runs. A run is found by its config, without the device and the place of the data."""

    folder: Path
    watch: Watch = lambda event: None
    told: Callable[[str], None] = lambda title: None  # called with the title of each run that starts
    only_finished: bool = False  # return finished runs, and start none
    last: Prepared | None = None  # the next run can reuse parts of it: most runs of a sweep have the same data set

    def private(self, config: Config, target: float, title: str) -> Run | None:
        """The private run, until the target is reached or all planned rounds are over."""

        def reached(done: RoundDone) -> bool:
            mean = done.personal.mean if done.personal else None
            return mean is not None and mean >= target

        _check(config)
        return self._run(config, {"target": target, "rounds": config.rounds}, title, reached)

    def open(self, config: Config, rounds: int, title: str) -> Run | None:
        """The same without privacy, for at least this many rounds: a longer run begins with the rounds of a shorter one."""
        bare = config.changed(**{"privacy.mechanism": "none", "rounds": rounds})
        if bare.local.schedule == "cosine" or bare.averaging:  # here the number of rounds changes the first round
            return self._run(bare, {"rounds": rounds}, title)
        return self._run(bare, {}, title, at_least=rounds)

    def _run(
        self, config: Config, more: dict[str, Any], title: str, until: Callable[[RoundDone], bool] = lambda done: False,
        at_least: int = 0,
    ) -> Run | None:  # fmt: skip
        path = self._path(config, more)
        finished = self._read(path)
        if finished and len(finished.personal) >= at_least:
            return finished
        if self.only_finished:
            return None
        self.told(title)
        begun = time.perf_counter()
        work = self.folder / "unfinished" / f"{path.stem}-{config.rounds}"
        work.mkdir(parents=True, exist_ok=True)
        traced = trace(config, work, until=until, watch=self.watch, like=self.last)
        self.last = traced.prepared
        finished = _finished(config, traced, time.perf_counter() - begun)
        path.parent.mkdir(exist_ok=True)
        content = json.dumps(asdict(finished), allow_nan=False)
        write_file(path, f"{content}\n".encode())
        shutil.rmtree(work, ignore_errors=True)  # files that cannot be removed do no harm
        return finished

    def _path(self, config: Config, more: dict[str, Any]) -> Path:
        content = json.dumps([_identity(config), more, VERSION], sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()
        kind = "private" if "target" in more else "open"
        return self.folder / "runs" / f"{config.data.source}-{kind}-{digest[:16]}.json"

    def _read(self, path: Path) -> Run | None:
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            if "plan" in saved:
                raise ValueError("an earlier version saved one client's plan, which need not be the worst")
            return Run(**saved)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            remedy = "remove that file, then the run is repeated"
            raise BadValue("out", path, f"cannot be read: {error}", remedy) from None


def _identity(config: Config) -> dict[str, Any]:
    """The fields that identify a run. Defaults are left out, so that a field added later changes no file name."""
    defaults = as_mapping(from_mapping({"privacy": {"mechanism": "none"}}))
    identity = {
        name: _changed(value, defaults[name]) if isinstance(value, dict) else value
        for name, value in _without_place(config).items()
        if name != "rounds"
    }
    if identity["merge"] == "equal":  # as all runs were that finished before there was another way
        del identity["merge"]
    for later in ("lost", "server"):  # fields that came later, where they change nothing
        if not identity[later]:
            del identity[later]
    del identity["chosen"]  # the numbers themselves are there
    del identity["report"]  # the owner's words decide nothing
    del identity["metrics"]
    identity["metric"] = config.metrics[0]  # as the field was called when runs were first saved; others decide nothing
    performance = identity.pop("performance")
    arithmetic = {key: value for key, value in performance.items() if key in ("dtype", "engine")}
    return identity | ({"performance": arithmetic} if arithmetic else {})


def _changed(table: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """The fields that differ from their defaults."""
    return {key: value for key, value in table.items() if value != defaults.get(key)}


def _without_place(config: Config) -> dict[str, Any]:
    """The config without the place of the data: a published data set is the same everywhere."""
    mapping = as_mapping(config)
    return mapping | {"data": mapping["data"] | {"path": ""}}


def _check(config: Config) -> None:
    """Refuse a config whose run cannot be compared with the paper."""
    omit = "leave the override out"
    if config.evaluate_every != 1:
        rule = "must be 1, because rounds are counted until a score is reached"
        raise BadValue("evaluate_every", config.evaluate_every, rule, omit)
    if not config.data.test_records:
        rule = "must be at least 1, because rounds are counted until a score is reached"
        raise BadValue("data.test_records", 0, rule, omit)
    if config.data.source not in PUBLIC:
        rule = f"must be one of {', '.join(PUBLIC)}"
        remedy = "use prifedsync train for your own records"
        raise BadValue("data.source", config.data.source, rule, remedy)
    if config.metrics[0] not in ("auto", "accuracy"):
        rule = "must be accuracy, because the paper counts rounds until an accuracy is reached"
        raise BadValue("metrics", config.metrics[0], rule, omit)
    if config.rule.name in RULES and not RULES[config.rule.name].uploads:
        rule = "sends no upload, so there is no global model to compare"
        raise BadValue("rule.name", config.rule.name, rule, "choose a rule that sends uploads")
    if config.privacy.randomness != "seeded":
        rule = "must be seeded, so that a finished run can be repeated"
        raise BadValue("privacy.randomness", config.privacy.randomness, rule, omit)
    if config.privacy.mechanism != "noisy-steps":
        rule = "must be noisy-steps, as in the paper"
        raise BadValue("privacy.mechanism", config.privacy.mechanism, rule, omit)


def _finished(config: Config, traced: Trace, seconds: float) -> Run:
    return Run(
        config=_without_place(config),
        personal=[_mean(line["personal"]) for line in traced.rounds],
        released=[_mean(line["released"]) for line in traced.rounds],
        plans=[plan_as_json(plan) for plan in traced.plans],
        seconds=seconds,
        device=traced.device,
        versions=traced.versions,
    )


def _mean(score: dict[str, float | None]) -> float:
    """The mean score. Models that diverged have none, and count as 0."""
    return round(score["mean"] or 0.0, 9)
