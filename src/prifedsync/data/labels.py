"""Labels: the task that the config sets, and labels for it from texts or numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..values import BadValue
from .cures import Cure, badly_written
from .federation import Task
from .scale import range_of, scaled, unscaled
from .text import Cell, as_number, category, is_missing, shown

if TYPE_CHECKING:
    from ..config import DataConfig

MISSING_LABEL = "is a missing label", "fill it in, or leave the row out"
PUBLIC = "it is public, and is never read off the records"

Place = Callable[[int], str]  # where the label of record i is, in words


def task(config: DataConfig) -> Task:
    """The task that the config sets."""
    listed = config.label_values
    if len({category(value) for value in listed}) < len(listed):
        rule = "must not list a label twice"
        raise BadValue("data.label_values", list(listed), rule, "list each label once")
    if config.task == "regression":
        rule = "cannot be used with data.task = regression"
        remedy = 'leave it out, or set data.task = "classes"'
        if config.classes:
            raise BadValue("data.classes", config.classes, rule, remedy)
        if listed:
            raise BadValue("data.label_values", list(listed), rule, remedy)
        return Task("regression", 0)
    if config.task == "binary":
        return _binary(config)
    if config.task == "classes":
        return _classes(config)
    rule = "must be classes, binary or regression"
    raise BadValue("data.task", repr(config.task), rule, "choose one of these")


def _binary(config: DataConfig) -> Task:
    remedy = 'correct it, or set data.task = "classes"'
    if config.classes not in (0, 2):
        raise BadValue("data.classes", config.classes, "must be 2 for data.task = binary", remedy)
    if len(config.label_values) not in (0, 2):
        rule = "must list two labels for data.task = binary, first the one that counts as 0"
        raise BadValue("data.label_values", list(config.label_values), rule, remedy)
    return Task("binary", 2)


def _classes(config: DataConfig) -> Task:
    listed = config.label_values
    if not config.classes and not listed:
        rule = f"must be set to the number of classes in your own data: {PUBLIC}"
        raise BadValue("data.classes", 0, rule, "set data.classes, or list data.label_values")
    classes = config.classes or len(listed)
    if classes < 2:
        remedy = 'list more classes, or set data.task = "regression" to predict a number'
        raise BadValue("data.classes", classes, "must be at least 2", remedy)
    if listed and classes != len(listed):
        rule = f"must be {len(listed)}, the number of labels in data.label_values"
        raise BadValue("data.classes", classes, rule, "leave one of the two settings out")
    return Task("classes", classes)


@dataclass(frozen=True)
class Label:
    """The public rules of a label.

    name    the column's name.
    task    what is predicted.
    values  the texts of the classes in order; empty if they are the numbers 0, 1, 2, …
    span    regression: the public range that is scaled to [−1, 1]; None if the label stays as it is.
    """

    name: str
    task: Task
    values: tuple[str, ...] = ()
    span: tuple[float, float] | None = None

    @classmethod
    def of(cls, config: DataConfig, kind: Task) -> Label:
        """The label that the config describes."""
        ranged = kind.kind == "regression" and config.label in config.ranges  # "*" applies to features only
        span = range_of(config.ranges, config.label) if ranged else None
        return cls(config.label, kind, tuple(map(str, config.label_values)), span)

    def as_json(self) -> dict[str, Any]:
        """The rules as JSON, from which `from_json` makes the same label."""
        span = None if self.span is None else list(self.span)
        task = {"task": self.task.kind, "classes": self.task.classes}
        return {"name": self.name, **task, "values": list(self.values), "range": span}

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Label:
        """The label that `as_json` wrote."""
        task = Task(said["task"], said["classes"])
        span = None if said["range"] is None else range_of({said["name"]: tuple(said["range"])}, said["name"])
        values = tuple(map(str, said["values"]))
        if values and len(values) != task.classes:
            raise BadValue("label values", list(values), f"must be {task.classes}, one for each class")
        return cls(str(said["name"]), task, values, span)

    @property
    def texts(self) -> tuple[str, ...]:
        """The text of each class, in order. A regression has none."""
        return self.values or tuple(map(str, range(self.task.classes)))

    def in_its_unit(self, predictions: np.ndarray) -> np.ndarray:
        """Predictions of a regression as numbers in the label's own unit."""
        return predictions if self.span is None else unscaled(predictions, self.span)

    def from_texts(self, texts: Sequence[Cell], place: Place, decimal: str = ".") -> Tensor:
        """Labels from texts: positions among the listed values if there are any, otherwise numbers."""
        if self.values:
            return self._listed(texts, place, decimal)
        values = np.empty(len(texts))
        for i, text in enumerate(texts):
            if is_missing(text):
                raise BadValue(place(i), shown(text), *MISSING_LABEL)
            parsed = as_number(text, decimal)
            if parsed is None:
                raise BadValue(place(i), shown(text), *self._not_a_number(text, decimal))
            values[i] = parsed
        return self.from_numbers(values, place)

    def _not_a_number(self, text: Cell, decimal: str) -> Cure:
        if self.task.kind == "regression":
            return badly_written(text, decimal) or ("must be a number", "correct it, or leave the record out")
        return "must be a number", "correct it, or list the labels as texts in data.label_values"

    def _listed(self, texts: Sequence[Cell], place: Place, decimal: str) -> Tensor:
        position = {category(value): number for number, value in enumerate(self.values)}
        found = [position.get(category(text, decimal)) for text in texts]
        if None in found:
            at = found.index(None)
            if is_missing(texts[at]):
                raise BadValue(place(at), shown(texts[at]), *MISSING_LABEL)
            rule = f"must be one of data.label_values = {', '.join(self.values)}"
            remedy = "correct the label, or add it to the list"
            raise BadValue(place(at), shown(texts[at]), rule, remedy)
        return torch.tensor(found, dtype=self.task.label_dtype)

    def from_numbers(self, values: np.ndarray, place: Place) -> Tensor:
        """Labels from numbers: classes from 0, or numbers to predict, scaled by the label's public range if it has one."""
        finite = np.isfinite(values)
        if not finite.all():
            at = int(np.argmin(finite))
            remedy = "replace it, or leave the record out"
            raise BadValue(place(at), values[at], "must be finite", remedy)
        if self.task.kind == "regression":
            return self._targets(values, place)
        wrong = (values < 0) | (values >= self.task.classes) | (values != np.floor(values))
        if wrong.any():
            at = int(np.argmax(wrong))
            rule = f"must be a class from 0 to {self.task.classes - 1}"
            remedy = "correct it, set data.classes, or list data.label_values"
            raise BadValue(place(at), f"{values[at]:g}", rule, remedy)
        return torch.from_numpy(values.astype(np.int64)).to(self.task.label_dtype)

    def _targets(self, values: np.ndarray, place: Place) -> Tensor:
        with np.errstate(over="ignore"):  # an overflow is refused below
            single = (values if self.span is None else scaled(values, self.span)).astype(np.float32)
        if not np.isfinite(single).all():
            at = int(np.argmin(np.isfinite(single)))
            remedy = "set a range for the label in data.ranges"
            raise BadValue(place(at), values[at], "does not fit a 32-bit float", remedy)
        return torch.from_numpy(single)
