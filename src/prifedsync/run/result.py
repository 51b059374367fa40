"""What `prifedsync.train` returns."""

from __future__ import annotations

import copy
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn

from .. import models
from ..accounting.statement import REPR_WIDTH, Statement, in_one_line
from ..joining import Joining
from ..local import Net
from ..record import KEPT, RunRecord
from ..rules import Server
from ..scores import Score
from ..sync import Engine
from ..values import NOT_GIVEN, BadValue
from .history import Row
from .prepare import Prepared

if TYPE_CHECKING:
    from ..report.figures import Figures

NAMES = {
    "personal": "personal models",
    "released": "released model",
    "alone": "baseline, each client alone",
    "alone-private": "baseline, each client alone with its noise",
    "non-private": "baseline, all clients without privacy",
}
WIDTH = max(map(len, NAMES.values()))


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """A finished run: its models, their scores, and what they cost in privacy.

    record     everything that `record.json` holds: config, clients, scores, guarantee, warnings, versions.
    folder     where the run was written; None without `out=`.
    history    one dict for each round, all with the same keys: `pandas.DataFrame(result.history)` is a table. Scores are
               by the first metric, over clients' own test records: `personal_mean` is a mean over clients, where each
               client counts once. The columns of other metrics begin with their names: `auc_personal_mean`. Scores are
               None in rounds that were not evaluated. `seconds` is None for rounds from before the run was resumed.
    guarantee  what holds for every client, as brackets: `result.guarantee.epsilon.upper` is the ε to report. None without
               privacy.
    """

    record: RunRecord
    prepared: Prepared
    server: Server
    engine: Engine
    folder: Path | None
    history: list[Row]
    guarantee: Statement | None

    @property
    def joining(self) -> tuple[Joining, ...]:
        """Is joining worth it? One row for each client, by the first metric; `row.sentence` says it in words."""
        return self.record.joining

    @property
    def net(self) -> Net:
        """The module as it was trained."""
        return self.prepared.net

    @property
    def state_dict(self) -> dict[str, Tensor]:
        """The released global model as a plain state_dict."""
        return self.net.state_dict(self.server.released)

    @property
    def model(self) -> nn.Module:
        """The released global model, ready to predict: a new copy each time, in eval mode, on the CPU.

        It takes records as the clients hold them. Fixed features (`model.features`) are computed in its forward.
        """
        if not self.prepared.rule.uploads:
            rule = f'does not exist, because no client sends one under rule "{self.record.config["rule"]["name"]}"'
            raise BadValue("the released model", NOT_GIVEN, rule, "use result.personal(client)")
        module = copy.deepcopy(self.prepared.module).to(device="cpu", dtype=self.net.dtype)
        module.load_state_dict(self.state_dict)
        features = self.record.config["model"]["features"]
        if features != "none":
            module.register_forward_pre_hook(WithFeatures(features))
        return module.eval()

    def personal(self, client: str) -> dict[str, Tensor]:
        """A client's own model as a plain state_dict; `record.personal_models` says whether it may be published."""
        return self.net.state_dict(self.engine.models()[client].value)

    def plot(self, html: bool = False) -> Figures:
        """Figures of the scores over rounds and of the trade-off curve: of matplotlib, or of plotly if `html` is set."""
        from ..report import figures

        scores = self.record.scores
        baselines = {NAMES[name]: scores[name].own.mean for name in self.record.config["compare"] if name in scores}
        return figures.of_run(self.history, self.record.metric, baselines, self.prepared.plans, self.guarantee, html)

    def _named(self, name: str) -> str:
        kept = name == "personal" and KEPT in self.record.personal_models
        return f"{NAMES[name]} (kept, not covered)" if kept else NAMES[name]

    def __repr__(self) -> str:
        record = self.record
        ran = f"{_count(record.config['rounds'], 'round')}, {_count(len(record.clients), 'client')}"
        lines = []
        for metric, kinds in record.by_metric.items():
            lines.append(f"{metric} on the clients' own test records:")
            lines += [f"{self._named(name):<{WIDTH}}  {_means(scores.own)}" for name, scores in kinds.items()]
        lines[0] = f"Result of {ran}; {lines[0]}"
        if record.guarantee is not None:
            seeded = record.config["privacy"]["randomness"] == "seeded"
            lines += textwrap.wrap(in_one_line(record.guarantee, seeded), REPR_WIDTH)
        lines += textwrap.wrap(record.sentence, REPR_WIDTH)
        lines.append("not written to disk (out= names a folder)" if self.folder is None else f"written to {self.folder}")
        lines.append(f"{_count(len(record.warnings), 'warning')} in result.record.warnings")
        return "\n  ".join(lines)


@dataclass(frozen=True)
class WithFeatures:
    """Gives a module the fixed features of the records that it is called with, as in training."""

    name: str

    def __call__(self, module: nn.Module, given: tuple[Tensor, ...]) -> Tensor:
        (x,) = given
        transform = models.features(self.name, x.shape[1:])
        return x if transform is None else transform(x)


def _count(count: int, of: str) -> str:
    return f"{count} {of}{'s' * (count != 1)}"


def _means(score: Score) -> str:
    """The mean over clients, the mean over test records, and the worst client's."""
    return f"mean over clients {_score(score.mean)}, over records {_score(score.record_mean)}, worst {_score(score.worst)}"


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
