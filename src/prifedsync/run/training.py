"""Config in, result out: `prifedsync.train` and `prifedsync.resume`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from ..accounting import PrivacyPlan
from ..config import RENAMED, Config, from_mapping, load
from ..data import Federation
from ..events import Planned, Until, Watch
from ..files import CONFIG, LOG, RECORD, claimed, not_begun
from ..local import LayerRules, Update
from ..metrics import GIVEN_METRIC, Metric
from ..models import GIVEN_MODEL
from ..planning import GIVEN_OPTIMISER
from ..record import RunRecord
from ..rules import Rule
from ..values import BadValue
from .baselines import compared, comparison
from .checkpoint import Checkpoint
from .folder import begin, finish, write_config
from .loop import rounds_of
from .prepare import GIVEN, Prepared, prepare
from .recording import device_name, versions
from .result import Result
from .threads import set_threads, threads_restored
from .watching import watching


@dataclass(frozen=True)
class FromPython:
    """What was passed from Python instead of being named in a config: a resumed run needs all of it again."""

    clients: Federation | Mapping[str, tuple[Any, ...]] | None = None
    model: nn.Module | None = None
    rule: Rule | type[Rule] | None = None
    optimiser: Update | type[Update] | None = None
    metrics: tuple[Metric | Callable[..., Any] | str, ...] | None = None
    layer_rules: LayerRules | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """What was given, for people."""
        named = self.metrics is not None and self.metrics == tuple(self.metric_names)  # the config has all their names
        given = {name: value for name, value in vars(self).items() if not (named and name == "metrics")}
        return tuple(name.replace("_", " ") for name, value in given.items() if value is not None)

    @property
    def metric_names(self) -> list[str]:
        """What a config calls the metrics."""
        return [each if isinstance(each, str) else GIVEN_METRIC for each in self.metrics or ()]

    @property
    def for_prepare(self) -> dict[str, Any]:
        """The same for `prepare`, which is given metrics that the config has no name for."""
        return vars(self) | {"metrics": [each for each in self.metrics or () if not isinstance(each, str)]}

    def named_in(self, config: Config | Mapping[str, Any] | str | Path | None) -> Config:
        """The config that says what it does not hold."""
        source = {} if self.clients is None else {"data.source": GIVEN}
        if isinstance(config, Mapping):
            data = {**config.get("data", {}), **({"source": GIVEN} if source else {})}
            config = from_mapping({**config, "data": data})
        elif not isinstance(config, Config):
            config = load(config, [f'{name}="{value}"' for name, value in source.items()])
        names: dict[str, Any] = dict(source)
        if self.metrics is not None:
            names["metrics"] = self.metric_names
        names |= {} if self.optimiser is None else {"local.optimiser": GIVEN_OPTIMISER}
        names |= {} if self.model is None else {"model.name": GIVEN_MODEL}
        return config.changed(**names) if names else config


def train(
    config: Config | Mapping[str, Any] | str | Path | None = None,
    *,
    clients: Federation | Mapping[str, tuple[Any, ...]] | None = None,
    model: nn.Module | None = None,
    rule: Rule | type[Rule] | None = None,
    optimiser: Update | type[Update] | None = None,
    metric: Metric | Callable[..., Any] | None = None,
    metrics: Sequence[Metric | Callable[..., Any] | str] | None = None,
    layer_rules: LayerRules | None = None,
    out: str | Path | None = None,
    watch: Watch | None = None,
    progress: bool | None = None,
) -> Result:
    """Train as the config says, and return the models, their scores and what they cost in privacy.

    config: the name of a preset, a TOML file, a mapping of its fields, a `Config`, or None for the default preset.
    clients: your records instead of the config's source: client name → (x, y) or (x, y, x_test, y_test).
    model: your module instead of the config's.
    rule: your personalisation rule. A class takes its own fields from the config's [rule].
    optimiser: your `Update`.
    metric: your function of (outputs, y), or a `Metric`.
    metrics: several of them, and names of built-in ones; the first is shown while training.
    layer_rules: per-sample gradients for module classes of your own: class → `LayerRule`.
    out: a new folder for the run. Without it nothing is written.
    watch: a function that is called with every event of the run.
    progress: True shows progress, False shows none, None shows it on a terminal and in a notebook.
    """
    given = FromPython(clients, model, rule, optimiser, _several(metric, metrics), layer_rules)
    config = given.named_in(config)
    with watching(progress, watch) as told:
        if out is None:
            return _run(config, given, None, told)
        with claimed(Path(out), new=True) as folder:
            return _run(config, given, folder, told)


def resume(
    folder: str | Path,
    *,
    clients: Federation | Mapping[str, tuple[Any, ...]] | None = None,
    model: nn.Module | None = None,
    rule: Rule | type[Rule] | None = None,
    optimiser: Update | type[Update] | None = None,
    metric: Metric | Callable[..., Any] | None = None,
    metrics: Sequence[Metric | Callable[..., Any] | str] | None = None,
    layer_rules: LayerRules | None = None,
    watch: Watch | None = None,
    progress: bool | None = None,
) -> Result:
    """Go on with an interrupted run. Raises `Finished` if there is nothing left to do.

    folder: the run folder, `out` of the first call.
    The other arguments are those of `train`. What was given from Python in the first call must be given again.
    """
    folder = Path(folder)
    if not (folder / CONFIG).is_file():
        if folder.is_dir() and not_begun(folder):
            raise BadValue("resume", folder, "was ended before the run began", f"begin it again: --out {folder}")
        raise BadValue("resume", folder, "is not a run folder", f"it has no {CONFIG}")
    with claimed(folder, new=False):
        if (folder / RECORD).is_file():  # it is written last, and whole
            Checkpoint(folder / "checkpoint").remove()  # the run may have been ended while it tidied up
            raise Finished(folder)
        given = FromPython(clients, model, rule, optimiser, _several(metric, metrics), layer_rules)
        config = _config_of(folder)
        if given.metrics is not None and given.metric_names != list(config.metrics):
            broken = f"differ from those that the run was begun with, {list(config.metrics)}"
            raise BadValue("metrics", given.metric_names, broken, "give the same metrics in the same order")
        with watching(progress, watch) as told:
            return _run(config, given, folder, told)


def _several(
    metric: Metric | Callable[..., Any] | None, metrics: Sequence[Metric | Callable[..., Any] | str] | None
) -> tuple[Metric | Callable[..., Any] | str, ...] | None:
    """One metric or several, as they were given; None: the config names them."""
    if metric is not None and metrics is not None:
        raise BadValue("metric", metric, "is given beside metrics", "give one of the two: metrics=[…] takes several")
    if metric is not None:
        return (metric,)
    return None if metrics is None else tuple(metrics)


def _config_of(folder: Path) -> Config:
    """The config that a run was begun with."""
    try:
        return load(folder / CONFIG)
    except BadValue as bad:
        if bad.field in RENAMED:
            raise BadValue("resume", folder, "was begun by another version", "resume with that one") from None
        raise


class Finished(BadValue):
    """There is nothing to go on with: the run in this folder has its record."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / RECORD
        super().__init__("resume", folder, "is finished", f"its record is {self.path}")

    @cached_property
    def record(self) -> RunRecord:
        return RunRecord.read(self.path)


@dataclass(frozen=True)
class Trace:
    """What an experiment keeps of a run: its rounds, as rounds.jsonl has them, and what they were taken under."""

    rounds: list[dict[str, Any]]
    prepared: Prepared
    device: str
    versions: dict[str, str]

    @property
    def plans(self) -> tuple[PrivacyPlan, ...]:
        """All that differ: no single one is the worst in every respect."""
        return tuple(dict.fromkeys(self.prepared.plans))


def trace(
    config: Config, folder: str | Path, *, until: Until = lambda done: False, watch: Watch = lambda event: None,
    like: Prepared | None = None,
) -> Trace:  # fmt: skip
    """The rounds alone, for experiments: no models, no comparisons, no record.

    It ends after the round of which `until` says so, and goes on from the folder's last checkpoint. Ending a run by its
    scores is ending it by the data: a guarantee is about the rounds that were planned, never about those that were taken.
    """
    with claimed(Path(folder), new=False) as folder, threads_restored():
        if (folder / RECORD).is_file():
            raise BadValue("folder", folder, "holds a finished run", "name another")
        # a checkpoint of other plans or records is refused when it is loaded
        prepared = like.under(config) if like and like.serves(config) else prepare(config, watch=watch)
        write_config(folder, prepared.config)
        set_threads(prepared)
        rounds_of(prepared, folder, watch, lambda done: until(done) or done.round == done.rounds)
        rounds = [json.loads(line) for line in (folder / LOG).read_text(encoding="utf-8").splitlines()]
        device = device_name(prepared.net.device)
        return Trace(rounds, prepared, device, versions())


def _run(config: Config, given: FromPython, folder: Path | None, watch: Watch) -> Result:
    with threads_restored():
        return _trained(config, given, folder, watch)


def _trained(config: Config, given: FromPython, folder: Path | None, watch: Watch) -> Result:
    started = time.perf_counter()
    prepared = prepare(config, watch=watch, **given.for_prepare)
    set_threads(prepared)
    config = prepared.config
    if folder:
        begin(folder, config, prepared.preprocessing)
    if prepared.contributions:
        watch(Planned(prepared.contributions))
    run = rounds_of(prepared, folder, watch)
    trained = time.perf_counter()
    measured = dict(run.measure())
    for kind in compared(prepared):
        measured[kind] = comparison(prepared, kind, watch)
    timings = {"train": trained - started, "all": time.perf_counter() - started}
    return finish(prepared, run, folder, watch, timings, measured=measured, given=given.names)
