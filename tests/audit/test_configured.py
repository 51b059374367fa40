"""`audit step` on a config makes its records up: it attacks nobody's real records, and its table tells nothing of them."""

import pytest
import torch

from prifedsync import run
from prifedsync.audit import StepAudit, audit_config, configured
from prifedsync.config import load
from prifedsync.data import Records, Task
from prifedsync.engines import Vectorised

SENTINEL = 0.7364
TWISTS = (1.0, -1.0, 1e-6, 1e6, 1e18)  # what the audit does to its example records
ONE_CLASS = 7


def with_records(monkeypatch, value):
    """Fill the config's records with one value and one label, after everything was prepared and before it is audited."""
    prepare = run.prepare

    def filled(config):
        prepared = prepare(config)
        for client in prepared.federation.clients:
            for records in (client.train, client.test):
                records.x.fill_(value)
                records.y.fill_(ONE_CLASS)
        return prepared

    monkeypatch.setattr(configured.run, "prepare", filled)


def holds_sentinel(x):
    """Whether a record is the sentinel in every entry, as it is or twisted."""
    rows = x.double().flatten(1)
    constant = rows[(rows == rows[:, :1]).all(1), 0]
    return any(bool(torch.isclose(constant, torch.tensor(SENTINEL * twist).double(), 1e-4, 0).any()) for twist in TWISTS)


def test_no_client_of_the_audit_holds_a_real_record(monkeypatch):
    """The whole audit, with an engine that looks at all records that it is given."""
    given = []

    class Watched(Vectorised):
        def __init__(self, net, jobs, data, *others, **options):
            given.extend(x for x, _ in data)
            super().__init__(net, jobs, data, *others, **options)

    with_records(monkeypatch, SENTINEL)
    monkeypatch.setitem(configured.ENGINES, "vectorised", Watched)
    config = load("digits", ["performance.engine=vectorised"])
    assert audit_config(config).passed
    assert len(given) > 100
    assert not any(holds_sentinel(values) for values in given)
    assert holds_sentinel(torch.tensor([[0.0, 1.0], [-SENTINEL, -SENTINEL]]))  # else nothing was looked for


def handed_over(monkeypatch, value, source="digits"):
    """The example records that a config's audit begins with."""
    seen = []

    def audit_step(module, x, y, loss, **options):
        seen.append((x, y))
        return StepAudit(())

    with monkeypatch.context() as patch:
        with_records(patch, value)
        patch.setattr(configured, "audit_step", audit_step)
        audit_config(load(source))
    ((x, y),) = seen
    return x, y


def test_example_records_do_not_depend_on_real_ones(monkeypatch):
    x, y = handed_over(monkeypatch, SENTINEL)
    other_x, other_y = handed_over(monkeypatch, -3.0)
    assert torch.equal(x, other_x)
    assert torch.equal(y, other_y)
    assert not holds_sentinel(x)
    assert set(y.tolist()) != {ONE_CLASS}


@pytest.mark.parametrize("kind", ["classes", "regression"])
def test_made_up_records_are_of_the_same_shape_and_kind(kind):
    task = Task(kind=kind, classes=4 if kind == "classes" else 0)
    labels = torch.full((9,), 3) if kind == "classes" else torch.full((9,), 2.5)
    x, y = configured._made_up(Records(torch.full((9, 2, 5), SENTINEL), labels), task)
    assert x.shape == (configured.RECORDS, 2, 5)
    assert x.dtype == torch.float32
    assert y.dtype == labels.dtype
    assert not holds_sentinel(x)
    assert len(y.unique()) > 1
