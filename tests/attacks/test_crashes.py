"""Crash points: each file operation of a run is killed, torn or made to fail in turn, and the run must go on.

Every point is a process of its own, forked from this one. Its first operations succeed, and the n-th does not:
    killed      the process ends before the operation
    torn        half of the bytes are written, then the process ends
    failing     the operation raises, and those after it succeed
    dead disk   the operation raises, and so do all after it
An ordinary run of the tests takes every STRIDE-th point; `make test-slow` takes all of them.
"""

import errno
import io
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from prifedsync import run
from prifedsync.record import RunRecord
from prifedsync.values import BadValue

STRIDE = int(os.environ.get("PRIFEDSYNC_CRASH_STRIDE", "11"))
KILLED = 42  # exit status of a process that ended in the middle of its run
STOPPED = 43  # of one that refused to go on because an operation failed
WRITES = ("write", "pwrite")
CALLS = ("open", "write", "pwrite", "ftruncate", "fsync", "fchmod", "replace", "rename", "unlink", "mkdir", "rmdir")
FOR_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


# ---------------------------------------------------------------------- a disk that breaks


@dataclass
class Disk:
    """Counts the operations that change files; at the given one it breaks in the given manner."""

    at: int = 0
    manner: str = ""

    def __post_init__(self) -> None:
        self.seen: list[str] = []
        self.real = {name: getattr(os, name) for name in CALLS}
        self.real_open = io.open

    def before(self, name: str) -> bool:
        """Called before an operation; whether it is to be torn."""
        self.seen.append(name)
        count = len(self.seen)
        if count == self.at and self.manner == "killed":
            os._exit(KILLED)
        fails = count == self.at if self.manner == "failing" else count >= self.at and self.manner == "dead disk"
        if fails:
            raise OSError(errno.EIO if name == "fsync" else errno.ENOSPC, "this disk is broken")
        return count == self.at and self.manner == "torn"

    def call(self, name: str) -> Any:
        """The function of this name in `os`, counted."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            if name == "open" and not args[1] & FOR_WRITING:
                return self.real[name](*args, **kwargs)
            if self.before(name):
                content = bytes(args[1])
                self.real[name](args[0], content[: len(content) // 2], *args[2:])
                os._exit(KILLED)
            return self.real[name](*args, **kwargs)

        return counted

    def open(self, path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """`io.open`; binary files that are written go through `File`."""
        if mode not in ("wb", "ab"):
            assert mode in ("r", "rb"), f"mode {mode} is not watched"
            return self.real_open(path, mode, *args, **kwargs)
        self.before("open")
        return io.BufferedWriter(File(self, path, mode))

    @contextmanager
    def inserted(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, self.call(name))
            patch.setattr(io, "open", self.open)
            yield


class File(io.FileIO):
    """A file on such a disk."""

    def __init__(self, disk: Disk, path: Any, mode: str) -> None:
        super().__init__(path, mode)
        self.disk = disk

    def write(self, content: Any) -> int:
        if self.disk.before("write"):
            whole = bytes(content)
            super().write(whole[: len(whole) // 2])
            os._exit(KILLED)
        return super().write(content)

    def truncate(self, size: int | None = None) -> int:
        self.disk.before("truncate")
        return super().truncate(size)


# ---------------------------------------------------------------------- the run


def clients() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(0)
    return {
        name: (torch.randn(6, 3, generator=draw), torch.randint(0, 2, (6,), generator=draw)) for name in ("a", "b", "c")
    }


def config(rule: str, randomness: str) -> dict[str, Any]:
    return {
        "rounds": 2,
        "participation": 0.7,
        "data": {"classes": 2, "test_fraction": 0.0},
        "rule": {"name": rule},
        "local": {"optimiser": "adam", "learning_rate": 0.1},
        "privacy": {"noise_multiplier": 2.0, "randomness": randomness},
        "performance": {"checkpoint_seconds": 0},
    }


KEYS = {"begun": bytes(range(32)), "resumed": bytes(range(32, 64))}  # what the system gives for a secret


@contextmanager
def key_of(sitting: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "urandom", lambda count: KEYS[sitting][:count])
        yield


def outcome(folder: Path) -> dict[str, Any]:
    """All that a finished run leaves and that must be the same again."""
    found: dict[str, Any] = {"record": RunRecord.read(folder / "record.json").repeatable()}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "record.json":
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


def trained(settings: dict[str, Any], folder: Path, sitting: str, disk: Disk) -> dict[str, Any]:
    """What a run leaves that nothing disturbs."""
    with key_of(sitting), disk.inserted():
        run.train(settings, clients=clients(), out=folder)
    return outcome(folder)


def ended(settings: dict[str, Any], folder: Path, disk: Disk) -> int:
    """Train in a process whose disk breaks; its exit status."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # this process may have threads, the other needs none of them
        child = os.fork()
    if child == 0:
        status = 1
        try:
            trained(settings, folder, "begun", disk)
            status = 0
        except OSError:
            status = STOPPED
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def gone_on(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What the run leaves after all: resumed, or begun again where it had not begun."""
    with key_of("resumed"):
        if not (folder / "config.toml").exists():
            run.train(settings, clients=clients(), out=folder)
            return outcome(folder)
        try:
            run.resume(folder, clients=clients())
        except BadValue as refused:
            if "is finished" not in str(refused):
                raise
        return outcome(folder)


def points(seen: list[str]) -> list[tuple[int, str]]:
    """Every operation in every manner that it can end in."""
    found = []
    for number, name in enumerate(seen, start=1):
        manners = ["killed", "failing", "dead disk"]
        if name in WRITES:
            manners.append("torn")
        found += [(number, manner) for manner in manners]
    return found


@pytest.mark.parametrize("randomness", ["seeded", "system"])
@pytest.mark.parametrize("rule", ["ditto", "apfl"])
def test_ended_in_any_file_operation_a_run_goes_on_to_the_same_result(rule, randomness, tmp_path):
    """End a run in any of its file operations and go on with it: it ends as if nothing had happened."""
    settings, threads = config(rule, randomness), torch.get_num_threads()
    torch.set_num_threads(1)  # a forked process has none of its parent's threads
    counting = Disk()
    undisturbed = {}
    undisturbed["resumed"] = trained(settings, tmp_path / "resumed", "resumed", Disk())  # first: it imports what is needed
    undisturbed["begun"] = trained(settings, tmp_path / "begun", "begun", counting)
    assert (undisturbed["begun"] == undisturbed["resumed"]) == (randomness == "seeded")
    faults = []
    for number, manner in points(counting.seen)[::STRIDE]:
        folder = tmp_path / f"{number}-{manner}"
        status = ended(settings, folder, Disk(number, manner))
        secret = folder / "checkpoint/secret.key"
        kept_key = (folder / "checkpoint/manifest.json").exists() and secret.exists()
        where = f"operation {number}, {counting.seen[number - 1]}, {manner}"
        if status not in (KILLED, STOPPED):
            faults.append(f"{where}: ended with {status}")
            continue
        try:
            found = gone_on(settings, folder)
        except (BadValue, OSError) as error:
            faults.append(f"{where}: {error}")
            continue
        if found not in undisturbed.values():
            faults.append(f"{where}: another result")
        elif kept_key and found != undisturbed["begun"]:
            faults.append(f"{where}: the key survived, and another one was used")
    torch.set_num_threads(threads)
    assert not faults, "\n".join(faults)
    assert {"open", "write", "pwrite", "truncate", "fsync", "replace", "unlink", "mkdir", "rmdir"} <= set(counting.seen)


def test_a_run_that_was_ended_before_it_began_says_how_to_begin_again(tmp_path):
    """Resume a run that was killed before its config was whole: the line says how to begin it."""
    settings = config("ditto", "seeded")
    trained(settings, tmp_path / "first", "begun", Disk())
    counting = Disk()
    trained(settings, tmp_path / "whole", "begun", counting)
    first_rename = counting.seen.index("replace") + 1
    assert ended(settings, tmp_path / "run", Disk(first_rename, "killed")) == KILLED
    with pytest.raises(BadValue, match="was ended before the run began; begin it again: --out "):
        run.resume(tmp_path / "run", clients=clients())
    (tmp_path / "run/mine.txt").write_text("mine")
    with pytest.raises(BadValue, match="is not empty"):
        run.train(settings, clients=clients(), out=tmp_path / "run")
