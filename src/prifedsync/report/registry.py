"""The entry of a run for the registry of DP deployments (opendp/deployments-registry-data), as YAML.

The registry has three tiers. A tier is stated if everything that it asks for is known; what is not known is left out, but
for the fields that every entry must have, where "Not said" stands. Its date is then that of the record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import date
from typing import Any

from ..accounting.statement import loss_up
from ..values import one_line
from .card import text
from .contents import Report
from .guarantee import Guarantee
from .leaving import ON_ONE_MACHINE, unprotected
from .wording import many, small

SECTORS = ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance")
NOT_SAID = "Not said."
BETWEEN = "between machines"
REQUIRED = ("name", "owner", "purpose", "region")  # the owner's words that a first tier needs
TIER_3 = ("population", "receivers", "chosen_by", "reason", "exploration", "data_location", "data_access")


def entry_of(report: Report) -> dict[str, Any]:
    """The entry as nested tables."""
    deployment: dict[str, Any] = {"basic": _basic(report)}
    if report.guarantee is not None:
        deployment |= _stated(report, report.guarantee)
    deployment["administrative"] = {
        "notes": _notes(report),
        "registry_authors": _several(report.words["authors"]) or [NOT_SAID],
    }
    return {
        "url_slug": _slug(report.title), "status": "Draft", "tier": tier_of(report), "deployment": _as_text(deployment),
    }  # fmt: skip


def _as_text(value: Any) -> Any:
    """The registry reads all texts as Markdown with formulas: names and the owner's words are neither."""
    if isinstance(value, dict):
        return {key: _as_text(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_text(item) for item in value]
    return text(value) if isinstance(value, str) else value


def tier_of(report: Report) -> int:
    """The highest tier for which everything is known. Without a finite guarantee of its files a run has the first."""
    words = report.words
    guarantee = report.guarantee
    if guarantee is None or guarantee.about != "these files" or guarantee.epsilon.upper is None:
        return 1
    if report.run.rehearsal or not all(words[name] for name in REQUIRED):
        return 1
    said = all(words[name] for name in TIER_3) and words["tuning"] != "not said"
    return 3 if said else 2


def as_yaml(value: Mapping[str, Any], depth: int = 0) -> str:
    """YAML of tables, lists of texts, texts and numbers. Texts are quoted as in JSON, which YAML reads alike."""
    lines = []
    for key, item in value.items():
        if isinstance(item, Mapping):
            lines.append(f"{'  ' * depth}{key}:\n{as_yaml(item, depth + 1)}")
        else:
            lines.append(f"{'  ' * depth}{key}: {_scalar(item)}\n")
    return "".join(lines)


def _scalar(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_scalar, value))}]"
    if isinstance(value, float):
        digits, _, power = repr(value).partition("e")  # YAML 1.1 takes 1e-05 for a text
        return f"{digits if '.' in digits else f'{digits}.0'}{f'e{power}' if power else ''}"
    return json.dumps(one_line(value) if isinstance(value, str) else value, ensure_ascii=False, allow_nan=False)


def _basic(report: Report) -> dict[str, Any]:
    words = report.words
    basic: dict[str, Any] = {
        "name": report.title,
        "data_curators": _several(words["owner"]) or [NOT_SAID],
        "intended_use": words["purpose"] or NOT_SAID,
        "data_product_type": "Machine learning model",
        "data_product_region": words["region"] or NOT_SAID,
        "description": _description(report),
        "publication_date": _date(words["date"]) or report.signatures.written,
    }
    if words["sector"] in SECTORS:
        basic["data_product_sector"] = words["sector"]
    return basic


def _description(report: Report) -> str:
    run = report.run
    sector = report.words["sector"]
    whose = "its clients" if run.clients is None else many(run.clients, "client")
    together = "one client without moving its" if run.clients == 1 else f"{whose} together without moving their"
    how = f"by {together} records" if run.between_machines else f"on the records of {whose}"
    said = [f"A {run.model} model, trained {how}."]
    said += [f"Sector: {sector}."] if sector and sector not in SECTORS else []
    return " ".join([*said, *run.notices])


def sector_note(report: Report) -> str:
    """What to say where the registry does not know the sector; "" where it does, or where none is said."""
    sector = report.words["sector"]
    if not sector or sector in SECTORS:
        return ""
    return f"the registry has no sector {sector}, so it stands in the description; it knows {', '.join(SECTORS)}"


def _date(said: str) -> str:
    """The date of publication, if the owner has said one. The registry takes nothing but a date."""
    try:
        return date.fromisoformat(said).isoformat()
    except ValueError:
        return ""


def _stated(report: Report, guarantee: Guarantee) -> dict[str, Any]:
    items = {item.number: item.text for item in report.items}  # by their numbers in the officer's list
    return {
        "dp_variant": {
            "variant_name": "Approximate DP",
            "data_domain": report.words["population"] or NOT_SAID,
            "unprotected_quantities": unprotected(report.leaving) if report.leaving else NOT_SAID,
        },
        "privacy_loss": {
            "privacy_unit": f"a {guarantee.unit} of a client",
            "privacy_unit_details": _joined(items[6], items[5]),
            "privacy_parameters": _parameters(guarantee),
            "privacy_parameters_details": _details(guarantee),
        },
        "deployment_model": {
            "model_name": "Federated",
            "model_name_details": _conditions(report),
            "actors": items[10],
            "release_type": "One release",
            "release_type_details": items[9],
            "data_source_type": "Static",
            "access_type": "Non-interactive",
            "access_type_details": items[11],
        },
        "accounting": {"post_processing": items[14], "composition": items[13]},
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": items[15],
            "mechanisms": _joined(items[12], items[16], items[19]),
            "justification": _joined(items[22], items[17]),
        },
    }


def _joined(*items: str) -> str:
    """Several items as sentences."""
    return ". ".join(f"{item[:1].upper()}{item[1:]}" for item in items)


def _parameters(guarantee: Guarantee) -> dict[str, Any]:
    epsilon = guarantee.known["epsilon"].upper
    return {"delta": guarantee.delta} if epsilon is None else {"epsilon": float(loss_up(epsilon)), "delta": guarantee.delta}


def _details(guarantee: Guarantee) -> str:
    return (
        "f-differential privacy: a certified trade-off function, of which these are conversions. "
        f"μ ≤ {guarantee.known['mu'].text} for false positive rates from {small(guarantee.alpha_min)} to "
        f"1 − {small(guarantee.alpha_min)}. It holds for {guarantee.about}."
    )


def _conditions(report: Report) -> str:
    where = BETWEEN if report.run.between_machines else "with all clients in one process"
    if report.run.rehearsal:
        where = ON_ONE_MACHINE
    return f"The run was {where}. Noise is added at each client before anything leaves it."


def _notes(report: Report) -> str:
    verdict = report.verdict
    hashes = {each.name: each.sha256 for each in report.signatures.files}
    record = hashes.get("record.json")
    return (
        f"Made by PriFedSync {report.made_with} from the record of the run"
        + (f" (SHA-256 {record})" if record else "")
        + f". Verdict: {verdict.decision}. {verdict.reason}"
        + ("" if _date(report.words["date"]) else " The date is when the record was written; publication has none yet.")
    )


def _several(names: str) -> list[str]:
    return [name.strip() for name in names.split(";") if name.strip()]


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "prifedsync-run"
