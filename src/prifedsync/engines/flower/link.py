"""The server's side of a SuperLink: nodes are registered, a run is submitted, and its task is taken by this process.

The bundle of the run holds no code that anybody runs: it is there because Flower asks for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flwr.cli.build import build_fab_from_files
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest, UnregisterNodeRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

import hashlib
import time
from .calls import Address, Task, Tasks

BUNDLE = {
    "pyproject.toml": b"""
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "prifedsync-run"
version = "1.0.0"
description = "A run of PriFedSync. Both sides run what they have installed, and nothing of this bundle."
license = "Apache-2.0"
dependencies = []
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "prifedsync"
[tool.flwr.app.components]
serverapp = "nothing:app"
clientapp = "nothing:app"
""",
    "nothing.py": b'"""Nothing is run from here: see docs/deploy.md of PriFedSync."""\n\napp = None\n',
}
