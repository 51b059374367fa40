"""Runs of experiments, kept by what was run: one that is finished is not run again, one that was stopped goes on."""

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

VERSION = 1  # of the files below


@dataclass(frozen=True)
class Run:
    """A finished run: mean accuracy of the clients' own models and of the global one, round by round."""

    config: dict[str, Any]
    personal: list[float]
    released: list[float]
    plans: list[dict[str, Any]]  # all that differ; none without privacy
    seconds: float  # of the last sitting
    device: str
    versions: dict[str, str]
    version: int = VERSION

    @property
    def privacy_plans(self) -> list[PrivacyPlan]:
        return [plan_from_json(plan) for plan in self.plans]

    def reached(self, target: float) -> int | None:
        """The first round after which the clients' own models are that good."""
        return next((round for round, value in enumerate(self.personal, start=1) if value >= target), None)


@dataclass
class Runs:
    """A folder of finished runs. What a run is kept by is its config, without where it ran and where the data lay."""

    folder: Path
    watch: Watch = lambda event: None
    told: Callable[[str], None] = lambda title: None  # what is run next
    only_finished: bool = False  # run nothing, give what is there
    last: Prepared | None = None  # what the next run may share: most of a sweep has one data set

    def private(self, config: Config, target: float, title: str) -> Run | None:
        """Until the target is reached, or for all rounds planned."""

        def reached(done: RoundDone) -> bool:
            return done.personal is not None and done.personal.mean is not None and done.personal.mean >= target

        _check(config)
        return self._run(config, {"target": target, "rounds": config.rounds}, title, reached)

    def open(self, config: Config, rounds: int, title: str) -> Run | None:
        """The same without privacy, for at least so many rounds; a longer run of the same begins with a shorter one."""
        bare = config.changed(**{"privacy.mechanism": "none", "rounds": rounds})
        if bare.local.schedule == "cosine" or bare.averaging:  # except here, where the last round decides about the first
            return self._run(bare, {"rounds": rounds}, title)
        return self._run(bare, {}, title, at_least=rounds)

    def _run(
        self, config: Config, more: dict[str, Any], title: str, until: Callable[[RoundDone], bool] = lambda done: False,
        at_least: int = 0,
    ) -> Run | None:  # fmt: skip
        path = self._path(config, more)
        found = self._read(path)
        if found and len(found.personal) >= at_least:
            return found
        if self.only_finished:
            return None
        self.told(title)
        begun = time.perf_counter()
        work = self.folder / "unfinished" / f"{path.stem}-{config.rounds}"
        work.mkdir(parents=True, exist_ok=True)
        traced = trace(config, work, until=until, watch=self.watch, like=self.last)
        self.last = traced.prepared
        found = _kept(config, traced, time.perf_counter() - begun)
        path.parent.mkdir(exist_ok=True)
        write_file(path, f"{json.dumps(asdict(found), allow_nan=False)}\n".encode())
        shutil.rmtree(work, ignore_errors=True)  # a leftover is in nobody's way
        return found

    def _path(self, config: Config, more: dict[str, Any]) -> Path:
        digest = hashlib.sha256(json.dumps([_told(config), more, VERSION], sort_keys=True).encode()).hexdigest()
        return self.folder / "runs" / f"{config.data.source}-{'private' if 'target' in more else 'open'}-{digest[:16]}.json"

    def _read(self, path: Path) -> Run | None:
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            if "plan" in kept:
                raise ValueError("an earlier version kept one client's plan, which need not be the worst")
            return Run(**kept)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise BadValue("out", path, f"cannot be read: {error}", "remove that file, and it is run again") from None


def _told(config: Config) -> dict[str, Any]:
    """What makes a run another run. Defaults are left out, so that a field added later changes no name."""
    given, defaults = _without_place(config), as_mapping(from_mapping({"privacy": {"mechanism": "none"}}))
    told = {
        name: {key: v for key, v in value.items() if v != defaults[name].get(key)} if isinstance(value, dict) else value
        for name, value in given.items()
        if name != "rounds"
    }
    arithmetic = {key: value for key, value in told.pop("performance").items() if key in ("dtype", "engine")}
    return told | ({"performance": arithmetic} if arithmetic else {})


def _without_place(config: Config) -> dict[str, Any]:
    """The config, but for where the data lay: a published set is the same everywhere."""
    mapping = as_mapping(config)
    return mapping | {"data": mapping["data"] | {"path": ""}}


def _check(config: Config) -> None:
    """Refuse what leaves nothing to compare."""
    if config.evaluate_every != 1:
        raise BadValue("evaluate_every", config.evaluate_every, "must be 1: rounds are counted until a score is reached")
    if not config.data.test_records:
        raise BadValue("data.test_records", 0, "must be at least 1: rounds are counted until a score is reached")
    if config.data.source not in PUBLIC:
        raise BadValue("data.source", config.data.source, f"must be one of {', '.join(PUBLIC)}", "train your own records")
    if config.metric not in ("auto", "accuracy"):
        raise BadValue("metric", config.metric, "must be accuracy: the paper counts rounds until one is reached")
    if config.rule.name in RULES and not RULES[config.rule.name].uploads:
        raise BadValue("rule.name", config.rule.name, "sends nothing: there is no global model to compare")
    if config.privacy.randomness != "seeded":
        raise BadValue("privacy.randomness", config.privacy.randomness, "must be seeded: what is kept can be repeated")
    if config.privacy.mechanism != "noisy-steps":
        raise BadValue("privacy.mechanism", config.privacy.mechanism, "must be noisy-steps, as in the paper")


def _kept(config: Config, traced: Trace, seconds: float) -> Run:
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
    """Models that diverged have no score, and get nothing right."""
    return round(score["mean"] or 0.0, 9)
