"""A run folder, opened: its models answer raw rows, and nothing but the folder is needed.

A folder may come from somebody else. So nothing that it names is imported, weights are safetensors and never pickles, and
a model takes no more memory than its file.
"""

from __future__ import annotations

import copy
import textwrap
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast
from urllib.parse import quote

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from .. import models, named
from ..accounting.statement import REPR_WIDTH
from ..config import Config, load
from ..data.preprocessing import Preprocessing
from ..files import CONFIG, PREPROCESSING, RECORD
from ..record import KEPT, NO_GUARANTEE, RunRecord
from ..values import NOT_GIVEN, BadValue
from .predictor import Predictor, ready
from .usable import GLOBAL, Usable, check_client, listed


def open_run(folder: str | Path, model: nn.Module | str | None = None) -> SavedRun:
    """A finished run, ready to answer raw rows.

    folder: the run folder, `out` of the training.
    model: your module, or the name of your function "module:function" that makes it. It is needed where the run was
        trained with one: code that a folder names is never imported by itself.
    """
    folder = Path(folder)
    if not (folder / CONFIG).is_file():
        raise BadValue("run folder", folder, f"has no {CONFIG}", "name the folder that `prifedsync train` has written")
    if not (folder / RECORD).is_file():
        remedy = f"finish it: prifedsync train --resume {folder}"
        raise BadValue("run folder", folder, "holds a run that is not finished", remedy)
    if not (folder / PREPROCESSING).is_file():
        rule = f"has no {PREPROCESSING}, without which raw rows cannot be read"
        raise BadValue("run folder", folder, rule, "restore the file, or train again with this version")
    config = load(folder / CONFIG)
    preprocessing = Preprocessing.read(folder / PREPROCESSING)
    module = _module(config, preprocessing, model)
    return SavedRun(folder, config, RunRecord.read(folder / RECORD), preprocessing, module)


@dataclass(frozen=True, eq=False, repr=False)
class SavedRun(Usable):
    """A finished run from its folder; `open_run` makes it.

    `predict`, `predict_proba`, `answers` and `evaluate` take raw rows; they are those of `Usable`.

    folder         where it lies.
    config         the complete config.
    record         everything that `record.json` holds: clients, scores, guarantee, warnings.
    preprocessing  the public rules that turn raw rows into records.
    module         the module without its weights.
    """

    folder: Path
    config: Config
    record: RunRecord
    preprocessing: Preprocessing
    module: nn.Module

    @property
    def model(self) -> nn.Module:
        """The released global model: a new copy each time, in eval mode, on the CPU.

        It takes encoded records, not raw rows. Fixed features (`model.features`) are computed in its forward.
        """
        return self._ready(self._path(GLOBAL))

    @cached_property
    def clients(self) -> tuple[str, ...]:
        """The names of the clients."""
        return tuple(client.name for client in self.record.clients)

    def personal(self, client: str) -> dict[str, Tensor]:
        """A client's own model as a plain state_dict; `record.personal_models` says whether it may be published."""
        return _state(self._client_path(client))

    def publishing(self, model: str = GLOBAL) -> str:
        """Why this model must not be published; empty if it may be, or if it is a simulation's."""
        if model == GLOBAL:
            return "" if self.record.guarantee else NO_GUARANTEE
        return next((reason for reason in (KEPT, NO_GUARANTEE) if reason in self.record.personal_models), "")

    def predictor(self, model: str = GLOBAL) -> Predictor:
        """The released global model, or a client's own, with the rules of its records."""
        return Predictor(self._ready(self._path(model)), self.preprocessing, self.config)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a table, in order. For a run on arrays x0, x1, … stand for the values of a record."""
        return self.preprocessing.columns

    def _ready(self, path: Path) -> nn.Module:
        state = _state(path)
        _check_shapes(path, self.module, state)
        return ready(self.module, state, self.config.model.features)

    def _path(self, model: str) -> Path:
        if model != GLOBAL:
            return self._client_path(model)
        path = self.folder / "models" / "global.safetensors"
        if not path.is_file():
            rule = f'is not in {self.folder}: under rule "{self.config.rule.name}" no client may have sent a model'
            raise BadValue("the released model", NOT_GIVEN, rule, f"name a client as model: {listed(self.clients)}")
        return path

    def _client_path(self, client: str) -> Path:
        check_client(client, self.clients)
        path = self.folder / "models" / "personal" / f"{quote(client, safe='')}.safetensors"
        if not path.is_file():
            rule = "has no model of its own: the client took part in no round, or its file was removed"
            if self.record.deployment is not None:
                rule = "has no model of its own here: it stays with its owner"
            raise BadValue("client", repr(client), rule, f'use the released model, "{GLOBAL}"')
        return path

    def __repr__(self) -> str:
        lines = [f"SavedRun in {self.folder}", f"clients: {listed(self.clients)}", f"columns: {listed(self.columns)}"]
        return "\n  ".join([*lines, *textwrap.wrap(self.record.sentence, REPR_WIDTH)])


def _module(config: Config, rules: Preprocessing, given: nn.Module | str | None) -> nn.Module:
    """The module of the run without its weights: built from the config, or made by the user's code."""
    shape = _input_shape(config, rules)
    outputs = rules.label.task.outputs
    name = config.model.name
    if ":" not in name:
        if given is not None:
            rule = f"is not needed: this run was trained with the package's own {name}"
            raise BadValue("model", given if isinstance(given, str) else type(given).__name__, rule, "leave it out")
        with torch.device("meta"):  # no memory is taken until the file has been looked at
            return models.build(config.model, shape, outputs, config.seed)
    if given is None:
        made = "given from Python" if name == models.GIVEN_MODEL else f"made by {name}"
        rule = f"is your own code ({made}), and code that a run folder names is not imported by itself"
        remedy = "give it: --code module:function, or open_run(folder, model=…)"
        raise BadValue("the model of this run", NOT_GIVEN, rule, remedy)
    module = named.call("model", given, shape, outputs) if isinstance(given, str) else given
    if not isinstance(module, nn.Module):
        rule = f"must be a torch.nn.Module, or a function that returns one, and is a {type(module).__name__}"
        raise BadValue("model", given, rule, "give the module that the run was trained with")
    return copy.deepcopy(module).cpu()


def _input_shape(config: Config, rules: Preprocessing) -> tuple[int, ...]:
    """The shape of one record as the module sees it, with its fixed features."""
    transform = models.features(config.model.features, rules.shape)
    return rules.shape if transform is None else tuple(transform(torch.zeros(1, *rules.shape)).shape[1:])


def _state(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no mapping
    except (SafetensorError, OSError) as error:
        raise BadValue("model", path, f"cannot be read: {named.one_line(error)}", "restore the file from a copy") from None
    if not all(value.isfinite().all() for value in state.values()):
        rule = "has weights that are not finite: the training diverged"
        raise BadValue("model", path, rule, "train again with a smaller learning rate")
    return cast(dict[str, Tensor], state)


def _check_shapes(path: Path, module: nn.Module, state: dict[str, Tensor]) -> None:
    expected = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in state.items()}
    if expected == found:
        return
    name = min(name for name in {*expected, *found} if expected.get(name) != found.get(name))
    rule = f"does not fit the model: {name} has shape {found.get(name)} in the file and {expected.get(name)} in the model"
    raise BadValue("model", path, rule, "use the folder as it was written, and the module that it was trained with")
