"""What a run is bound to: everything that decides what its noisy queries are about, besides its key.

It has two uses. Secret draws are derived from it, so that the same noise never meets another query. And the manifest of a
checkpoint notes it, so that a run that was changed is refused, with the names of what was changed.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..local import digests
from ..values import BadValue

AGREE = 1e-6  # relative: how far a module's answers may be from those noted
PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Binding:
    """All of a run that must stay the same while it lasts."""

    config: Mapping[str, Any]  # dotted name of a field → its value
    parts: Mapping[str, bytes]  # what else there is → its digest
    answers: Tensor  # of the module to a few records, double
    key: bytes = field(repr=False)  # records must not be guessed from what a manifest notes of them

    @property
    def identity(self) -> bytes:
        """One digest of config and parts."""
        named = [value for name, part in sorted(self.parts.items()) for value in (name, part)]
        return digests.of([json.dumps(dict(self.config), sort_keys=True), *named])

    def noted(self) -> dict[str, Any]:
        """For the manifest: the config as it is, the rest under the key."""
        return {"config": dict(self.config), "parts": self._keyed(), "answers": self._sealed().hex()}

    def check(self, noted: Mapping[str, Any], folder: Path) -> None:
        """Refuse to go on with a run that was begun as something else."""
        found = self._differences(noted)
        if found:
            raise BadValue(
                "resume", folder, f"differs from the run that was begun: {', '.join(found)}",
                "undo the change, or train anew: no guarantee covers rounds that differ",
            )  # fmt: skip

    def _differences(self, noted: Mapping[str, Any]) -> list[str]:
        before = noted["config"]
        now = json.loads(json.dumps(dict(self.config)))
        names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
        found = [f"{name} = {_shown(now.get(name))} (was {_shown(before.get(name))})" for name in names]
        mine = self._keyed()
        found += sorted(name for name in mine.keys() | noted["parts"].keys() if mine.get(name) != noted["parts"].get(name))
        if not found and not self._answers_as(bytes.fromhex(noted["answers"])):
            found.append("the model's answers")
        return found

    def _keyed(self) -> dict[str, str]:
        return {name: hashlib.blake2b(part, key=self.key, digest_size=digests.SIZE).hexdigest()
                for name, part in self.parts.items()}  # fmt: skip

    def _sealed(self) -> bytes:
        """The answers, encrypted: they were given to private records."""
        plain = self.answers.double().numpy().tobytes()
        return _xor(plain, self._pad(len(plain)))

    def _answers_as(self, sealed: bytes) -> bool:
        noted = torch.from_numpy(np.frombuffer(_xor(sealed, self._pad(len(sealed))), dtype=np.float64).copy())
        mine = self.answers.double().flatten()
        if noted.shape != mine.shape:
            return False
        size = float(torch.nan_to_num(noted, posinf=0.0, neginf=0.0).abs().max()) if len(noted) else 0.0
        return torch.allclose(mine, noted, rtol=AGREE, atol=AGREE * size, equal_nan=True)

    def _pad(self, length: int) -> bytes:
        return hashlib.shake_256(b"answers" + self.key).digest(length)


def machinery(device: torch.device) -> list[bytes | str]:
    """What computes: where any of it is another, gradients may round differently."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
    return [torch.__version__, platform.machine(), name, str(torch.get_num_threads()), _program()]


@cache
def _program() -> bytes:
    """The digest of this package's source."""
    files = sorted(PACKAGE.rglob("*.py"))
    return digests.of(part for file in files for part in (str(file.relative_to(PACKAGE)), file.read_bytes()))


def _shown(value: Any) -> str:
    return "nothing" if value is None else json.dumps(value, ensure_ascii=False)


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
