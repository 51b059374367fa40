"""Labels: the task that the config sets, and labels for it from texts or numbers."""

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

PUBLIC = "it is public, and is never read off the records"

Place = Callable[[int], str]  # where the label of record i is, in words


def task(config: DataConfig) -> Task:
    """The task that the config sets."""
    listed = config.label_values
    if len(set(listed)) < len(listed):
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


def from_texts(texts: Sequence[str], kind: Task, config: DataConfig, place: Place) -> Tensor:
    """Labels from texts: positions in `data.label_values` if the config lists them, otherwise numbers."""
    if config.label_values:
        listed = {text: number for number, text in enumerate(config.label_values)}
        for i, text in enumerate(texts):
            if text not in listed:
                rule = f"must be one of data.label_values = {', '.join(config.label_values)}"
                remedy = "correct the label, or add it to the list"
                raise BadValue(place(i), repr(text), rule, remedy)
        return torch.tensor([listed[text] for text in texts], dtype=kind.label_dtype)
    values = np.empty(len(texts))
    for i, text in enumerate(texts):
        if is_missing(text):
            remedy = "add the label, or leave the record out"
            raise BadValue(place(i), repr(text), "is a missing label", remedy)
        parsed = as_number(text)
        if parsed is None:
            regression = kind.kind == "regression"
            remedy = "correct it" if regression else "correct it, or list the labels as texts in data.label_values"
            raise BadValue(place(i), repr(text), "must be a number", remedy)
        values[i] = parsed
    return from_numbers(values, kind, config, place)


def from_numbers(values: np.ndarray, kind: Task, config: DataConfig, place: Place) -> Tensor:
    """Labels from numbers: classes from 0, or numbers to predict, scaled by the label's public range if it has one."""
    finite = np.isfinite(values)
    if not finite.all():
        at = int(np.argmin(finite))
        remedy = "replace it, or leave the record out"
        raise BadValue(place(at), values[at], "must be finite", remedy)
    if kind.kind == "regression":
        if config.label in config.ranges:  # "*" applies to features only
            span = range_of(config.ranges, config.label)
            assert span is not None
            values = scaled(values.astype(np.float64), span)
        with np.errstate(over="ignore"):
            single = values.astype(np.float32)
        if not np.isfinite(single).all():
            at = int(np.argmin(np.isfinite(single)))
            remedy = "set a range for the label in data.ranges"
            raise BadValue(place(at), values[at], "does not fit a 32-bit float", remedy)
        return torch.from_numpy(single)
    wrong = (values < 0) | (values >= kind.classes) | (values != np.floor(values))
    if wrong.any():
        at = int(np.argmax(wrong))
        rule = f"must be a class from 0 to {kind.classes - 1}"
        remedy = "correct it, set data.classes, or list data.label_values"
        raise BadValue(place(at), f"{values[at]:g}", rule, remedy)
    return torch.from_numpy(values.astype(np.int64)).to(kind.label_dtype)
