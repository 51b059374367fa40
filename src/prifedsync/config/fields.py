"""The parts of the config. A field is declared once, with its type, default, documentation and bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ..limits import CLIP_REMEDY, LEAST_CLIP, LEAST_NOISE, MOST_CLIP, MOST_NOISE, MOST_RECORDS, MOST_STEPS
from .declaring import field, field_like, open_field

EMBEDDED = ("digits", "breast-cancer")  # sources that come with the package's requirements
PUBLIC = (*EMBEDDED, "mnist", "fashion-mnist", "cifar10")  # sources that a simulation may use

# With `| str`, a name with a colon passes too: it names code of the user's, which only later rooms can load.
Source = Literal["digits", "breast-cancer", "mnist", "fashion-mnist", "cifar10", "csv", "npz"] | str
Model = Literal["softmax", "linear", "mlp", "mnist-cnn", "cifar-cnn"] | str
Optimiser = Literal["sgd", "momentum", "adam", "adagrad", "rmsprop"] | str
Metric = Literal["auto", "accuracy", "auc", "f1", "rmse"] | str
Sampling = Literal["poisson", "fixed"]
Batch = int | Literal["full"]
Value = int | float | str  # of a category or label; without a Literal beside it, any text passes
Partition = Literal["shards", "iid", "dirichlet", "quantity", "column"]
Mechanism = Literal["noisy-steps", "output-gaussian", "output-laplace", "none"]
Merge = Literal["records", "equal"]
Compared = Literal["alone", "alone-private", "non-private"]

CHOSEN = "; auto, the default with your own data: chosen from public numbers"  # in the documentation of such fields

# Fields that may be "auto": `settings.chosen` puts numbers in their place before anything is planned, and `planning`
# refuses a config without. So later rooms hold numbers, and their types say so. None becomes a default in `filled`.
if TYPE_CHECKING:
    AutoWhole = int
    AutoNumber = float
    AutoBatch = Batch
else:
    AutoWhole = int | Literal["auto"] | None
    AutoNumber = float | Literal["auto"] | None
    AutoBatch = Batch | Literal["auto"] | None


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The records: where they come from, how they are split, and what is public about them."""

    source: Source = field("digits", "data set, file format or function that the records come from")
    path: str = field("", "file or folder of the data; a relative path starts at the folder of the config file")
    clients: int = field(10, "number of clients that an undivided data set is split into", 1)
    partition: Partition = field(
        "shards",
        "how to split: shards of sorted labels, iid, Dirichlet-distributed labels (dirichlet) or sizes (quantity), "
        "or the names in client_column (column)",
    )
    shards_per_client: int = field(4, "label shards per client; fewer shards make clients differ more", 1)
    concentration: float = field(
        0.5,
        "Dirichlet parameter beta; smaller values make clients differ more in labels (dirichlet) or in size (quantity)",
        0, 1e6, "(]",
    )  # fmt: skip
    records_per_client: int = field(
        500, "dirichlet: records drawn for each client, including those that test_fraction holds out", 1
    )
    overlap: bool = field(
        False,
        "dirichlet: draw each client from all records; a record that c clients hold leaks through all c of them, "
        "and the guarantee covers that",
    )
    test_fraction: float = field(0.2, "fraction of each client's records held out for evaluation", 0, 1, "[)")
    test_records: int = field(
        200, "test images drawn for each client, with labels that the client has (mnist, fashion-mnist, cifar10)", 0
    )
    label: str = field("label", "name of the column to predict (csv)")
    client_column: str = field("", "name of the column that names the client, if one file holds all clients")
    person: str = field(
        "",
        "name of the column (csv) or array (npz) that names the person of each record; the guarantee is then about a "
        "person with all records at a client, and persons are counted, sampled and held out instead of records",
    )
    person_clients: int = field(
        1, "largest number of clients that may hold records of one person, as the owners state it", 1
    )
    rows_per_person: int = field(
        32, "largest number of records of one person at a client; a public number, not one counted in the data", 1, 4096
    )
    task: Literal["classes", "binary", "regression"] = field("classes", "type of the prediction task")
    classes: int = field(0, "number of classes (public); 0 takes it from the embedded data set", 0, 10**9)
    label_values: tuple[Value, ...] = field((), "public label values in order, if they are not 0, 1, 2, …")
    columns: tuple[str, ...] = field((), "input columns; [] uses all except the label, the client and the person column")
    ranges: Mapping[str, tuple[float, float]] = field(
        dict, "public range of a column: values are clamped to it and scaled to [−1, 1]; '*' stands for all columns"
    )
    missing: Mapping[str, Value] = field(
        dict,
        "public constant that replaces missing values of a column, or the one of its categories that stands for them; "
        "'*' stands for all columns of numbers",
    )
    categories: Mapping[str, tuple[Value, ...]] = field(
        dict, "public values of a column, texts or numbers; each value becomes one 0/1 input; 1 and 1.0 are the same value"
    )
    separator: Literal[",", ";", "tab"] = field(",", "what separates the columns of a CSV file")
    decimal: Literal[".", ","] = field(".", "decimal mark of the numbers in a CSV file")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The model that is trained."""

    name: Model = field("softmax", "model architecture")
    features: Literal["none", "hog"] = field("none", "fixed features computed from each record before training")
    hidden: tuple[int, ...] = field((64,), "widths of the hidden layers of mlp", 1, 10**6)
    dropout: bool = field(True, "keep the dropout layers of the paper's networks")
    zero_init: bool = field(True, "initialise softmax and linear with zeros")
    layer_rules: tuple[str, ...] = field(
        (), 'functions "module:function" that return layer rules of your own: a mapping of module class → rule'
    )


@dataclass(frozen=True, kw_only=True)
class LocalConfig:
    """Local training: what a client does in a round."""

    optimiser: Optimiser = field("sgd", "optimiser that is fed the noisy gradients")
    learning_rate: AutoNumber = field(None, "learning rate" + CHOSEN, 0, ends="(]")
    momentum: float = field(0.9, "momentum coefficient (optimiser momentum)", 0, 1, "[)")
    betas: tuple[float, float] = field((0.9, 0.999), "decay rates of adam's two moving averages", 0, 1, "[)")
    stability: float = field(1e-8, "constant added to the denominator of adam, adagrad and rmsprop", 0, ends="(]")
    decay: float = field(0.99, "decay rate of rmsprop's moving average", 0, 1, "[)")
    weight_decay: float = field(0.0, "weight decay, added to the gradient after clipping and noise", 0)
    schedule: Literal["constant", "step", "cosine", "inverse-sqrt"] = field(
        "constant", "learning rate schedule over the client's rounds"
    )
    schedule_every: int = field(10, "rounds between two drops of the learning rate (schedule step)", 1)
    schedule_factor: float = field(0.99, "factor of the learning rate at each drop (schedule step)", 0, 1, "(]")
    state: Literal["carried", "reset"] = field(
        "carried", "whether the optimiser's state is carried from round to round or reset"
    )
    local_steps: int = field(1, "noisy gradients per round (K)", 1, MOST_STEPS)
    batch: AutoBatch = field(None, "expected batch size (B), or all records" + CHOSEN, 1)
    sampling: Sampling = field(
        "poisson", "how a batch is sampled: each record independently (poisson), or a subset of fixed size (fixed)"
    )
    averaging: float = field(
        0.0, "fraction of a round's last iterates that are averaged into the upload; 0 uploads the last iterate", 0, 1
    )
    augment: Literal["none", "crop-flip"] = field(
        "none", "image augmentation: a random shift of up to 4 pixels and random mirroring, drawn anew in every step"
    )


@dataclass(frozen=True, kw_only=True)
class RuleConfig:
    """The personalisation rule: what a client makes of the global model. A rule's own fields stand here too."""

    name: str = field("fedavg", 'personalisation rule: a built-in one, or "module:Rule" for your own')
    mixing: float = field(
        0.1, "weight alpha of the global model (interpolate), or of all other clients together (attentive)", 0, 1
    )
    strength: float = field(
        0.01,
        "strength lambda of the pull to the global model (fedprox, mean-regularised, pfedme, attentive, ditto, mixture)",
        0, 1e6,
    )  # fmt: skip
    delivery: Literal["pull", "push"] = field(
        "pull", "a client starts from the current global model (pull), or from the helper it was last sent (push)"
    )
    own: Mapping[str, Any] = open_field("the rule's own fields follow; `prifedsync rules` lists them for each rule")


@dataclass(frozen=True, kw_only=True)
class CoalitionConfig:
    """A guarantee against server and clients; a preset keeps its other target beside it. Needs masks and both fields."""

    mu: float | None = field(None, "largest mu against the server and `colluders` clients", 0, 1e3, "()")
    colluders: int | None = field(None, "number of clients that may collude with the server (t)", 0)


@dataclass(frozen=True, kw_only=True)
class TargetConfig:
    """A guarantee to meet, in place of a noise_multiplier: each client gets the least noise that meets it."""

    epsilon: float | None = field(None, "largest epsilon at privacy.delta", 0, 1e3, "()")
    mu: float | None = field(None, "largest mu", 0, 1e3, "()")
    advantage: float | None = field(None, "largest advantage (TPR − FPR) of any attack", 0, 1, "()")
    coalition: CoalitionConfig = field(CoalitionConfig)


@dataclass(frozen=True, kw_only=True)
class PrivacyConfig:
    """The protection of a record. Set noise_multiplier, or one target against everybody, a coalition, or both of these."""

    mechanism: Mechanism = field(
        "noisy-steps", "noise on every gradient (noisy-steps), once on a round's update (output-…), or no guarantee (none)"
    )
    clip_norm: AutoNumber = field(
        None,
        "clipping norm (C): largest norm of a per-sample gradient, or of a round's update" + CHOSEN,
        LEAST_CLIP, MOST_CLIP, remedy=CLIP_REMEDY,
    )  # fmt: skip
    noise_multiplier: float | None = field(
        None, "noise standard deviation divided by clip_norm: twice the paper's sigma", LEAST_NOISE, MOST_NOISE,
        remedy='to train without noise, set privacy.mechanism = "none"',
    )  # fmt: skip
    delta: float = field(1e-5, "the delta at which epsilon is reported", 0, 1, "()")
    neighbours: Literal["replace", "add-remove"] = field(
        "replace", "adjacency relation: one record replaced, or one added or removed"
    )
    randomness: Literal["system", "seeded"] = field(
        "system",
        "secret randomness of the operating system (system), or a simulation whose seed reveals the noise (seeded)",
    )
    masks: bool = field(
        False, "mask the uploads in pairs, so that the server learns only their sum; needs one noisy release a round"
    )
    attempts: int = field(
        0, "spare attempts of the whole run: a masked round that lost a client is repeated without it, and counted", 0
    )
    least_clients: int | None = field(
        None,
        "least number of clients in a round's sum: a client refuses to be in a smaller one; default: all clients less "
        "privacy.attempts, and 1 where clients may be absent and nothing is masked",
        1,
    )
    target: TargetConfig = field(TargetConfig)


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """The server's step. What it keeps from round to round is made of what it was sent, and costs no privacy."""

    optimiser: Literal["sgd", "momentum", "adam"] = field(
        "sgd", "optimiser of the global model; its gradient is the mean change of a round's uploads"
    )
    momentum: float = field(0.9, "momentum coefficient (server.optimiser momentum)", 0, 1, "[)")
    learning_rate: float = field(0.01, "learning rate of adam; sgd and momentum take server_rate", 0, ends="(]")
    betas: tuple[float, float] = field((0.9, 0.99), "decay rates of adam's two moving averages", 0, 1, "[)")
    stability: float = field(1e-3, "constant added to the denominator of adam", 0, ends="(]")


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """The owner's words for the report, and the thresholds of its verdict. Nothing here changes a run; "" is not said."""

    name: str = field("", "name of the model, as its readers will know it")
    purpose: str = field("", "what the model is for, and what it must not be used for")
    owner: str = field("", "who publishes the model and answers for it; several names are separated by semicolons")
    sector: str = field("", "sector; the registry knows Technology, Healthcare, Education, Government, Energy, Finance")
    region: str = field("", "region that the records are from, or whose law applies")
    law: str = field("", "legal basis of the processing, and the laws that apply")
    date: str = field("", "date of publication, as YYYY-MM-DD")
    receivers: str = field("", "who may receive the model, and under which conditions")
    population: str = field("", "whom the records are about, and from which years: the data domain in words")
    record_is: str = field("", 'what one record is, in real-world words, such as "one hospital stay"')
    records_of_person: int = field(
        0, "largest number of records of one person at a client, as the owner states it; 0: not said", 0, 10**6
    )
    chosen_by: str = field("", "who chose epsilon or mu")
    reason: str = field("", "why this epsilon or mu")
    rounds_chosen_by: str = field("", "who chose the number of rounds, and by what")
    tuning: Literal["not said", "none", "charged", "not charged"] = field(
        "not said", "whether settings were tried on these records, and whether that was charged to the budget"
    )
    exploration: str = field("", "how the records were looked at or cleaned before training, and by whom")
    other_releases: str = field("", "other releases from the same records, or that there are none")
    scores: Literal["not said", "stay with the owners"] = field(
        "not said",
        "whether record, log, TensorBoard events and report, which have scores without noise, are sent with the model",
    )
    data_location: str = field("", "where the raw records lie")
    data_access: str = field("", "who has access to the raw records and to keys")
    columns: str = field("", "why these columns are needed")
    authors: str = field("", "who has filled in this report; several names are separated by semicolons")
    release_mu: float = field(
        1.0,
        "largest mu at which the verdict may be release; mu = 1 is epsilon 4.4 at delta 1e-5, in the lower part of the "
        "1 to 20 that NIST SP 800-226 finds in use",
        0, 1e3,
    )  # fmt: skip
    review_mu: float = field(
        3.0,
        "largest mu at which the verdict may be review; mu = 3 is epsilon 17 at delta 1e-5, below the 20 above which NIST "
        "SP 800-226 finds no use; larger: do not release",
        0, 1e3,
    )  # fmt: skip
    release_epsilon: float | None = field(
        None, "largest epsilon at privacy.delta at which the verdict may be release, beside release_mu", 0, 1e3
    )
    review_epsilon: float | None = field(
        None, "largest epsilon at privacy.delta at which the verdict may be review, beside review_mu", 0, 1e3
    )


@dataclass(frozen=True, kw_only=True)
class PerformanceConfig:
    """Speed. Nothing here weakens a guarantee: values that would are refused."""

    engine: Literal["vectorised", "reference"] = field(
        "vectorised", "train all clients at once (vectorised), or one record at a time (reference)"
    )
    device: Literal["auto", "cpu", "cuda"] = field("auto", "device to train on; auto: a GPU if there is one")
    dtype: Literal["auto", "float64", "float32", "tf32", "bf16"] = field(
        "auto", "floating-point format; auto: tf32 on a GPU, float32 elsewhere; the plan covers its rounding error"
    )
    compile: Literal["auto", "on", "off"] = field(
        "auto", "compile the training step for the GPU; auto: if the run is long enough to save time"
    )
    chunk: int = field(0, "clients that are trained at once; 0: chosen automatically", 0)
    records_at_once: int = field(0, "records of one client that are processed at once; 0: chosen automatically", 0)
    memory_gib: float = field(2.0, "memory for the state of clients, in GiB; above it, the state goes to disk", 0)
    checkpoint_seconds: float = field(30.0, "least number of seconds between two checkpoints", 0)
    threads: int = field(0, "processor threads; 0: chosen automatically", 0, 1024)
    tensorboard: bool = field(False, "write TensorBoard events (needs the tensorboard extra)")


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """Values for one client; a field that is not set has the value for all clients."""

    records: int | None = field(
        None,
        "public nominal number of records, or of persons with data.person; required with add-remove adjacency",
        1,
        MOST_RECORDS,
    )
    batch: Batch | None = field_like(LocalConfig, "batch", without=CHOSEN)
    local_steps: int | None = field_like(LocalConfig, "local_steps")
    sampling: Sampling | None = field_like(LocalConfig, "sampling")
    clip_norm: float | None = field_like(PrivacyConfig, "clip_norm", without=CHOSEN)
    noise_multiplier: float | None = field_like(PrivacyConfig, "noise_multiplier")
    optimiser: Optimiser | None = field_like(LocalConfig, "optimiser")
    learning_rate: float | None = field_like(LocalConfig, "learning_rate", without=CHOSEN)
    mixing: float | None = field_like(RuleConfig, "mixing")
    strength: float | None = field_like(RuleConfig, "strength")
