"""A run folder with as many clients and rounds as one likes."""

import copy
import json

from ..report.runs import TESTED, trained


def grown(folder, clients, rounds):
    """A run of so many rounds, whose few clients are copied under new names with scores of their own."""
    changes = {"privacy__noise_multiplier": 100.0, "privacy__randomness": "system", "compare": []}
    trained(folder, TESTED, rounds=rounds, **changes)
    record = json.loads((folder / "record.json").read_bytes())
    names = [f"hospital-{at:04}" for at in range(clients)]
    record["clients"] = [_client(record["clients"], at, name) for at, name in enumerate(names)]
    record["joining"] = [{**known, "client": name} for known, name in zip(record["joining"] * clients, names, strict=False)]
    (folder / "record.json").write_text(json.dumps(record))
    return folder


def _client(known, at, name):
    found = copy.deepcopy(known[at % len(known)])
    found["name"] = name
    for scores in found["scores"].values():
        scores[0][0] = round((7 * at % 1000) / 1000, 3)
    return found
