"""Labels: what the config says is predicted, and texts or numbers as labels of that kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..values import BadValue
from .federation import Task
from .scale import range_of, scaled
from .text import as_number, is_missing

if TYPE_CHECKING:
    from ..config import DataConfig

PUBLIC = "the number of classes is public: it is never read off the records"

Place = Callable[[int], str]  # where record i's label stands, in words


def task(config: DataConfig) -> Task:
    """What the config says is predicted."""
    listed = config.label_values
    if len(set(listed)) < len(listed):
        raise BadValue("data.label_values", list(listed), "must not name a label twice")
    if config.task == "regression":
        if config.classes or listed:
            field, value = ("data.classes", config.classes) if config.classes else ("data.label_values", list(listed))
            raise BadValue(
                field, value, "does not go with data.task = regression", 'leave it out, or data.task = "classes"'
            )
        return Task("regression", 0)
    if config.task not in ("classes", "binary"):
        raise BadValue("data.task", repr(config.task), "must be classes, binary or regression")
    if config.task == "binary":
        if config.classes not in (0, 2):
            raise BadValue("data.classes", config.classes, "must be 2 for data.task = binary", 'or data.task = "classes"')
        if len(listed) not in (0, 2):
            rule = "must be two labels for data.task = binary, the one that counts as 1 last"
            raise BadValue("data.label_values", list(listed), rule, 'or data.task = "classes"')
        return Task("binary", 2)
    if not config.classes and not listed:
        rule = f"must be given for your own data ({PUBLIC})"
        raise BadValue("data.classes", 0, rule, "set data.classes, or list data.label_values")
    classes = config.classes or len(listed)
    if classes < 2:
        raise BadValue("data.classes", classes, "must be at least 2", 'for a number to predict, data.task = "regression"')
    if listed and classes != len(listed):
        raise BadValue("data.classes", classes, f"must be the {len(listed)} of data.label_values", "leave one of them out")
    return Task("classes", classes)


def from_texts(texts: Sequence[str], kind: Task, config: DataConfig, place: Place) -> Tensor:
    """Labels from texts: listed ones by their place in `data.label_values`, otherwise numbers."""
    if config.label_values:
        listed = {text: number for number, text in enumerate(config.label_values)}
        for i, text in enumerate(texts):
            if text not in listed:
                rule = f"must be one of data.label_values = {', '.join(config.label_values)}"
                raise BadValue(place(i), repr(text), rule, "correct it, or list it there")
        return torch.tensor([listed[text] for text in texts], dtype=kind.label_dtype)
    values = np.empty(len(texts))
    for i, text in enumerate(texts):
        if is_missing(text):
            raise BadValue(place(i), repr(text), "is a missing label", "fill it in, or leave the record out")
        parsed = as_number(text)
        if parsed is None:
            remedy = "correct it" if kind.kind == "regression" else "or list the labels' texts in data.label_values"
            raise BadValue(place(i), repr(text), "must be a number", remedy)
        values[i] = parsed
    return from_numbers(values, kind, config, place)


def from_numbers(values: np.ndarray, kind: Task, config: DataConfig, place: Place) -> Tensor:
    """Labels from numbers: classes from 0, or a target scaled by the public range of the label if one is given."""
    finite = np.isfinite(values)
    if not finite.all():
        at = int(np.argmin(finite))
        raise BadValue(place(at), values[at], "must be finite", "fill it in, or leave the record out")
    if kind.kind == "regression":
        if config.label in config.ranges:  # "*" is about the columns to learn from
            span = range_of(config.ranges, config.label)
            assert span is not None
            values = scaled(values.astype(np.float64), span)
        with np.errstate(over="ignore"):
            single = values.astype(np.float32)
        if not np.isfinite(single).all():
            at = int(np.argmin(np.isfinite(single)))
            raise BadValue(place(at), values[at], "does not fit a 32-bit float", "give the label a range in data.ranges")
        return torch.from_numpy(single)
    wrong = (values < 0) | (values >= kind.classes) | (values != np.floor(values))
    if wrong.any():
        at = int(np.argmax(wrong))
        rule = f"must be a class from 0 to {kind.classes - 1}"
        raise BadValue(place(at), f"{values[at]:g}", rule, "correct it, set data.classes, or list data.label_values")
    return torch.from_numpy(values.astype(np.int64)).to(kind.label_dtype)
