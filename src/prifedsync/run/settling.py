"""Numbers in place of "auto", before anything is planned."""

from __future__ import annotations

from torch import nn

from .. import models
from ..config import Config
from ..data import Description
from ..local import Update
from ..planning import rule_of
from ..rules import Rule
from ..settings import Model, Settings, chosen, record_norm, wanted


def settled(
    config: Config,
    description: Description,
    model: nn.Module | None = None,
    rule: Rule | None = None,
    optimiser: Update | None = None,
    tokens: bool = False,
) -> Settings:
    """The config with numbers, and the reasons. `description` is that of records with their fixed features.

    model, rule, optimiser: those of the run, where they are not the config's.
    tokens: whether records are whole numbers for an embedding.
    """
    if not wanted(config):
        return Settings(config)
    if model is None:
        model = models.build(config.model, description.shape, description.task.outputs, config.seed)
    norm = record_norm(config, description.shape)
    gradient = models.output_gradient(model, description.shape, norm, tokens)
    weights = sum(each.numel() for each in model.parameters() if each.requires_grad)
    public = Model(gradient=gradient, parameters=weights)
    return chosen(config, description, public, rule or rule_of(config), optimiser)
