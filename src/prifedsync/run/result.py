"""What `prifedsync.train` returns."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn

from ..accounting.contributions import Contributions
from ..accounting.statement import REPR_WIDTH, Statement, in_one_line, in_views
from ..joining import Joining
from ..local import Net
from ..metrics import Metric
from ..predicting import Predictor, Usable
from ..predicting.predictor import ready
from ..predicting.usable import GLOBAL
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
class Result(Usable):
    """A finished run: its models, their scores, and what they cost in privacy.

    `predict`, `predict_proba`, `answers` and `evaluate` take raw rows; they are those of `Usable`.

    record     everything that `record.json` holds: config, clients, scores, guarantee, warnings, versions.
    folder     where the run was written; None without `out=`.
    history    one dict for each round, all with the same keys: `pandas.DataFrame(result.history)` is a table. Scores are
               by the first metric, over clients' own test records: `personal_mean` is a mean over clients, where each
               client counts once. The columns of other metrics begin with their names: `auc_personal_mean`. Scores are
               None in rounds that were not evaluated. `seconds` is None for rounds from before the run was resumed.
    guarantee  what holds for every client, as brackets: `result.guarantee.epsilon.upper` is the ε to report. Its `views`
               say the same of fewer people than everybody, such as readers of the released model. None without privacy.
    """

    record: RunRecord
    prepared: Prepared
    server: Server
    engine: Engine
    folder: Path | None
    history: list[Row]
    guarantee: Statement | None

    @property
    def contributions(self) -> Contributions | None:
        """What each client added to the server's mean, in signal and in noise; None where there is no noise in a mean."""
        return self.prepared.contributions

    @property
    def joining(self) -> tuple[Joining, ...]:
        """Is joining worth it? One row for each client, by the first metric; `row.sentence` says it in words."""
        return self.record.joining

    @property
    def net(self) -> Net:
        """The module as it was trained."""
        return self.prepared.net

    @property
    def notes(self) -> Mapping[str, tuple[str, ...]]:
        """What only the owner of the records may be told: client → sentences. They depend on the records."""
        return self.prepared.federation.notes if self.prepared.federation else {}

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
        return self._ready(self.state_dict)

    def personal(self, client: str) -> dict[str, Tensor]:
        """A client's own model as a plain state_dict; `record.personal_models` says whether it may be published."""
        return self.net.state_dict(self.engine.models(self.server.released)[client].value)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a table, in order. For a run on arrays x0, x1, … stand for the values of a record."""
        return self.prepared.preprocessing.columns

    def predictor(self, model: str = GLOBAL) -> Predictor:
        """The released global model, or a client's own, with the rules of its records."""
        module = self.model if model == GLOBAL else self._ready(self.personal(model))
        return Predictor(module, self.prepared.preprocessing, self.prepared.config)

    def own_metrics(self) -> tuple[Metric, ...]:
        """The metrics of the run."""
        return self.prepared.metrics

    def _ready(self, state: dict[str, Tensor]) -> nn.Module:
        return ready(self.prepared.module, state, self.prepared.config.model.features)

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
            lines += in_views(record.guarantee)
        lines += textwrap.wrap(record.sentence, REPR_WIDTH)
        lines.append("not written to disk (out= names a folder)" if self.folder is None else f"written to {self.folder}")
        lines.append(f"{_count(len(record.warnings), 'warning')} in result.record.warnings")
        return "\n  ".join(lines)


def _count(count: int, of: str) -> str:
    return f"{count} {of}{'s' * (count != 1)}"


def _means(score: Score) -> str:
    """The mean over clients, the mean over test records, and the worst client's."""
    return f"mean over clients {_score(score.mean)}, over records {_score(score.record_mean)}, worst {_score(score.worst)}"


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
