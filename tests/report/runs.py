"""Small runs in folders, to make reports of; and ways to change what such a folder says."""

import copy
import json

import torch

import prifedsync

RECORDS = {"a": 40, "<script>": 50, "c": 60}
TESTED = 24
CONFIG = {
    "rounds": 4,
    "data": {"classes": 2, "test_fraction": 0.0},
    "local": {"batch": "full", "learning_rate": 0.5},
    "privacy": {"clip_norm": 1.0, "noise_multiplier": 8.0, "randomness": "system"},
}
SAID = {  # an owner who has said everything that a verdict asks for
    "name": "Sepsis warning",
    "purpose": "warns of sepsis",
    "owner": "Clinic North; Clinic South",
    "region": "Norway",
    "sector": "Healthcare",
    "law": "GDPR",
    "date": "2026-03-01",
    "receivers": "the clinics of this run",
    "population": "patients of 2020 to 2024",
    "record_is": "one stay in intensive care",
    "records_of_person": 1,
    "chosen_by": "the board",
    "reason": "as in an earlier project",
    "rounds_chosen_by": "the board, before anything was trained",
    "tuning": "none",
    "exploration": "none",
    "other_releases": "none",
    "data_location": "at the clinics",
    "data_access": "two administrators",
    "columns": "all of them are vital signs",
    "authors": "A. Author",
}


def records(tested=0):
    """Records of three clients, one of which has a name that is a tag."""
    draw = torch.Generator().manual_seed(0)
    rows = {}
    for name, count in RECORDS.items():
        parts = [(torch.randn(size, 3, generator=draw), torch.arange(size) % 2) for size in (count, tested) if size]
        rows[name] = tuple(part for pair in parts for part in pair)
    return rows


def config(**changes):
    """The config under changes such as privacy__masks=True; None removes a field."""
    found = copy.deepcopy(CONFIG)
    for name, value in changes.items():
        *tables, field = name.split("__")
        part = found
        for table in tables:
            part = part.setdefault(table, {})
        if value is None:
            del part[field]
        else:
            part[field] = value
    return found


def trained(folder, tested=0, **changes):
    """A finished run in this folder."""
    prifedsync.train(config(**changes), clients=records(tested), out=folder, progress=False)
    return folder


def rewritten(folder, change):
    """The same folder with another record: `change` gets its JSON."""
    path = folder / "record.json"
    data = json.loads(path.read_bytes())
    change(data)
    path.write_text(json.dumps(data))
    return folder
