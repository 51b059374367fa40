"""A run as its server and its owners know it: what is public about the clients, and the document that owners are given."""

from __future__ import annotations

from ..asking import document as documents
from ..asking.document import RunDocument
from ..config import Config
from ..data import Description
from ..data.preprocessing import Preprocessing
from ..limits import RECORD, Unit
from ..run.prepare import Prepared
from ..values import NOT_GIVEN, BadValue


def described(config: Config, rules: Preprocessing) -> Description:
    """What is public about the clients of a run: sizes of the config, shape and task of the rules."""
    missing = [name for name, own in config.clients.items() if own.records is None]
    if missing or not config.clients:
        field = f"clients.{missing[0]}.records" if missing else "[clients]"
        raise BadValue(field, NOT_GIVEN, "must be set: the server holds no records to count", "give each client's number")
    sizes = {name: own.records for name, own in config.clients.items() if own.records is not None}
    unit: Unit = "person" if config.data.person else RECORD
    return Description(sizes, rules.shape, rules.label.task, config.data.person_clients, unit=unit)


def document_of(prepared: Prepared, description: Description, run: str) -> RunDocument:
    """The public document of the run, which owners are given."""
    return documents.of(
        prepared.config,
        description,
        prepared.jobs,
        prepared.rule,
        run=run,
        arithmetic=prepared.net.arithmetic,
        metrics=[metric.name for metric in prepared.metrics],
        sums=prepared.sums,
    )
