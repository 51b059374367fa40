"""Bad input and odd machines: one line and exit status 2, or a way that works; never a traceback."""

import errno
import fcntl
import json
import os
import re
import resource
import stat
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from prifedsync import run
from prifedsync.accounting import NoisySteps, OutputPerturbation
from prifedsync.cli import main
from prifedsync.config import from_mapping, load
from prifedsync.limits import LEAST_CLIP, LEAST_NOISE, MOST_CLIP, MOST_NOISE, MOST_RECORDS
from prifedsync.local import noise
from prifedsync.values import BadValue

QUICK = ["--quiet", "--set", "rounds=1", "--set", "compare=[]"]
OWN = ["--set", "data.classes=2", "--set", "model.features=none", "--data", "records", "--out", "run", *QUICK]
CSV = ["train", "--set", "data.source=csv", "--set", "data.ranges.*=0,9", *OWN]
NPZ = ["train", "--set", "data.source=npz", *OWN]
PLAN = ["plan", "--sizes", "sizes.csv", "--batch", "full", "--rounds", "2", "--target-mu", "1"]
LONG = "1" * 140_000  # Python's csv reads fields of up to 131,072 characters
DEEP = ".".join(["a"] * 3_000)
NOT_UTF8 = os.fsdecode(b"caf\xe9")
NOT_ENOUGH = "there is not enough memory for this"


def called(words, folder, monkeypatch, capsys):
    """What a command says and the status it ends with."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["prifedsync", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    return ended.value.code or 0, said.out, said.err


def refused(words, folder, monkeypatch, capsys):
    """The one line with which a command refuses bad input."""
    status, _, error = called(words, folder, monkeypatch, capsys)
    (line,) = error.splitlines()
    assert status == 2
    assert line.startswith("prifedsync: ")
    return line


def npz(at_local, at_central, value):
    """An npz file in whose headers one byte is another."""
    path = Path("records/a.npz")
    np.savez(path, x=np.ones((4, 2)), y=np.array([0, 1, 0, 1]))
    content = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", at_local), (b"PK\x01\x02", at_central)):
        for found in re.finditer(re.escape(mark), bytes(content)):
            content[found.start() + offset] = value
    path.write_bytes(content)


def damaged_npz():
    path = Path("records/a.npz")
    np.savez_compressed(path, x=np.arange(4_000.0).reshape(1_000, 4), y=np.zeros(1_000))
    content = bytearray(path.read_bytes())
    content[60:400] = bytes(byte ^ 0x5A for byte in content[60:400])
    path.write_bytes(content)


def write(name, text):
    return lambda: Path(name).write_text(text, encoding="utf-8")


def nothing():
    pass


INPUTS = {  # what lies in the folder, the command, what the line says
    "a long field of sizes": (write("sizes.csv", f"client,records\n{LONG},5\n"), PLAN, "field larger than field limit"),
    "a long header of sizes": (write("sizes.csv", f"client,records,{LONG}\na,5\n"), PLAN, "field larger than field limit"),
    "a deep override": (nothing, ["train", "--set", f"{DEEP}=1"], "is nested more than 20 levels deep"),
    "a deep list": (nothing, ["train", "--set", f"rounds={'[' * 300}{']' * 300}"], "is nested more than 20 levels deep"),
    "a deep table": (nothing, ["train", "--set", f"data={'{a=' * 300}1{'}' * 300}"], "is nested more than 20 levels deep"),
    "a deep key in a file": (write("deep.toml", f"{DEEP} = 1\n"), ["train", "deep.toml"], "is nested more than 20"),
    "a deep table in a file": (write("deep.toml", f"[{DEEP}]\nx = 1\n"), ["train", "deep.toml"], "is nested more than 20"),
    "an encrypted npz": (lambda: npz(6, 8, 1), NPZ, "a.npz cannot be read: File 'x.npy' is encrypted"),
    "an npz packed in another way": (lambda: npz(8, 10, 97), NPZ, "a.npz cannot be read: That compression method"),
    "a damaged npz": (damaged_npz, NPZ, "a.npz cannot be read: Error -3 while decompressing"),
    "a file name that is not UTF-8": (write(f"records/{NOT_UTF8}.csv", "x,label\n1,0\n2,1\n3,0\n"), CSV, r"'caf\udce9'"),
    "an --out that is not UTF-8": (nothing, ["train", *QUICK, "--out", NOT_UTF8], r"caf\udce9 is not UTF-8"),
    "a --resume that is not UTF-8": (nothing, ["train", "--resume", NOT_UTF8], r"caf\udce9 is not UTF-8"),
    "a picture's name that is not UTF-8": (nothing, ["partition", "--out", f"{NOT_UTF8}.png"], "is not UTF-8"),
    "a line break in a name": (
        nothing, ["train", *QUICK, "--out", "run", "--set", r'clients."a\nb".batch=2'], r'clients."a\nb" is not a client',
    ),
    "nothing to time": (nothing, ["bench", "mlp", "--set", "rule.name=alone"], "rule.name = alone has no noisy steps"),
    "more clients than fit a number": (nothing, ["bench", "mlp", "--clients", "9" * 30], "clients = 9999"),
    "more clients than fit into memory": (nothing, ["bench", "mlp", "--clients", "100000000"], NOT_ENOUGH),
    "a net that does not fit into memory": (
        nothing,
        ["train", *QUICK, "--out", "run", "--set", "model.name=mlp", "--set", "model.hidden=1000000,1000000"],
        NOT_ENOUGH,
    ),
    "more classes than fit into memory": (
        write("records/a.csv", "x,label\n1,0\n2,1\n3,0\n"), [*CSV, "--set", "data.classes=1000000000"], NOT_ENOUGH,
    ),
    "a clip norm that is too large": (nothing, ["train", "--set", "privacy.clip_norm=1e30"], "privacy.clip_norm = 1e+30"),
    "a clip norm that is too small": (nothing, ["train", "--set", "privacy.clip_norm=1e-30"], "privacy.clip_norm = 1e-30"),
    "a client's own clip norm": (nothing, ["train", "--set", "clients.a.clip_norm=1e13"], "clients.a.clip_norm = 1000"),
    "noise that single precision loses": (
        nothing,
        ["train", *QUICK, "--out", "run", "--set", "privacy.mechanism=output-gaussian", "--set", "privacy.clip_norm=1e-9",
         "--set", "privacy.noise_multiplier=20"],
        "float32 weights would lose such noise",
    ),
}  # fmt: skip


@pytest.fixture
def little_memory():
    """Allocations beyond a few GiB fail at once, whatever the machine has."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**31, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize(("prepare", "words", "says"), INPUTS.values(), ids=INPUTS)
def test_bad_input_is_refused_in_one_line(prepare, words, says, tmp_path, monkeypatch, capsys, little_memory):
    """Give a command what it cannot use: it says so in one line, and nothing is begun."""
    monkeypatch.chdir(tmp_path)
    Path("records").mkdir()
    prepare()
    assert says in refused(words, tmp_path, monkeypatch, capsys)
    assert not Path("run").exists()


@pytest.mark.parametrize("kind", [NoisySteps, OutputPerturbation])
@pytest.mark.parametrize("clip_norm", [0.0, 1e-30, 1e30, float("inf"), float("nan")])
def test_a_plan_refuses_a_clip_norm_that_cannot_be_computed_with(kind, clip_norm):
    """Plan with a clip norm at which sums, noise or their grid leave the numbers that there are."""
    steps = {"records": 10, "batch": 5, "local_steps": 1} if kind is NoisySteps else {}
    with pytest.raises(BadValue, match=r"clip_norm = .* must lie in \[1e-12, 1e\+12\]"):
        kind(noise_multiplier=1.0, clip_norm=clip_norm, **steps)


def test_what_a_plan_allows_single_precision_holds():
    """Plan at the ends of what is allowed: what is released is exact in single precision, and nothing overflows."""
    single = torch.finfo(torch.float32)
    ends = product([LEAST_CLIP, MOST_CLIP], [LEAST_NOISE, MOST_NOISE], [1, MOST_RECORDS])
    for clip_norm, noise_multiplier, records in ends:
        scale = noise_multiplier * clip_norm
        bound = clip_norm * records
        step = noise.grid(scale, bound)
        most = bound + 64 * scale
        assert step > single.tiny
        assert most < single.max
        released = (torch.linspace(-most, most, 1_001, dtype=torch.float64) / step).round() * step
        assert torch.equal(released.float().double(), released)


def test_a_config_from_python_that_is_nested_too_deeply():
    """Give Python a mapping in a mapping in a mapping: it is refused, not followed down."""
    deep = 1
    for _ in range(5_000):
        deep = {"a": deep}
    with pytest.raises(BadValue, match="is nested more than 20 levels deep"):
        from_mapping({"data": deep})


# ---------------------------------------------------------------------- odd machines


SMALL = load("digits", ["data.clients=2", "rounds=1", "compare=[]"])


@pytest.mark.parametrize("reason", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF])
def test_a_file_system_without_locks_is_refused_in_one_line(reason, tmp_path, monkeypatch):
    """Train on a file system that cannot lock: two processes could share their noise, and the line says so."""

    def flock(*_):
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(BadValue, match="would add the same noise; use a folder on a local disk"):
        run.train(SMALL, out=tmp_path / "run")


@pytest.mark.parametrize("reason", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_does_not_sync_folders_will_do(reason, tmp_path, monkeypatch):
    """Train where a folder cannot be synced: the run is saved as well as that file system can."""
    fsync = os.fsync

    def of_files_only(file):
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(reason, os.strerror(reason))
        fsync(file)

    monkeypatch.setattr(os, "fsync", of_files_only)
    assert run.train(SMALL, out=tmp_path / "run").folder


# ---------------------------------------------------------------------- a finished run


def test_resuming_a_finished_run_says_so(tmp_path, monkeypatch, capsys):
    """Resume a run that is finished: it says where the record is, with --json it prints it, and both end with status 0."""
    record = run.train(SMALL, out=tmp_path / "run").record
    status, said, _ = called(["train", "--resume", "run"], tmp_path, monkeypatch, capsys)
    assert (status, said) == (0, "run is finished; its record is run/record.json\n")
    assert called(["train", "--resume", "run", "--quiet"], tmp_path, monkeypatch, capsys)[:2] == (0, "run\n")
    status, said, error = called(["train", "--resume", "run", "--json"], tmp_path, monkeypatch, capsys)
    assert (status, error) == (0, "")
    assert json.loads(said) == json.loads(json.dumps(record.as_json())) | {"folder": "run"}
    (tmp_path / "run/record.json").write_text("{")
    line = refused(["train", "--resume", "run", "--json"], tmp_path, monkeypatch, capsys)
    assert "record = run/record.json cannot be read" in line
