"""Where client states live: memory and its limit, the file and its two places, and what a crash or a full disk leaves."""

import errno
import os
import stat

import pytest
import torch
from safetensors import safe_open

from prifedsync.engines.vectorised import Vectorised
from prifedsync.files import write_file
from prifedsync.local import SeededDraws
from prifedsync.rules import FedAvg, Server
from prifedsync.run.checkpoint import Checkpoint
from prifedsync.store import Place, Store
from prifedsync.values import BadValue

from .settings import MLP, ask, jobs_of, net_of, records_of, rounds_taken, run, served, with_server

CLIENTS, SHAPE = 6, (2, 5)
STATE = 2 * 5 * 8  # bytes


def store(path=None, limit=1e9, dtype=torch.float64, clients=CLIENTS):
    return Store(clients, *SHAPE, dtype, limit, path)


def state(value):
    return torch.full(SHAPE, float(value), dtype=torch.float64)


def value(of, client):
    """The one number a client's state is made of, or None."""
    found = of.read(client)
    if found is None:
        return None
    (number,) = set(found.flatten().tolist())
    return number


def reopened(path, places, **changed):
    """What a process started anew sees: the file, and the places its manifest names."""
    new = store(path, **changed)
    new.restore(places)
    return new


# ------------------------------------------------------------------ memory


@pytest.mark.parametrize("limit", [1e9, 3 * STATE, STATE, 1.0])
def test_what_was_written_is_read(limit):
    held = store(limit=limit)
    assert held.read(3) is None
    for client in range(CLIENTS):
        held.write(client, state(client))
    held.write(2, state(20))
    assert [value(held, client) for client in range(CLIENTS)] == [0, 1, 20, 3, 4, 5]


def test_memory_has_a_limit_and_the_least_recently_used_goes_first():
    held = store(limit=3 * STATE)
    for client in range(3):
        held.write(client, state(client))
    held.read(0)
    held.write(3, state(3))
    assert list(held._cache) == [2, 0, 3]
    assert held._written.keys() == {1}
    assert value(held, 1) == 1
    assert list(held._cache) == [0, 3, 1]


def test_within_the_limit_no_file_is_made(monkeypatch):
    monkeypatch.setattr(os, "pwrite", lambda *_: pytest.fail("wrote"))
    held = store()
    held.write(0, state(1))
    assert value(held, 0) == 1
    assert held._file == -1


def test_an_unnamed_file_is_gone_with_the_process(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    held = store(limit=1.0)
    for client in range(3):
        held.write(client, state(client))
    assert held._file >= 0
    assert list(tmp_path.iterdir()) == []
    assert [value(held, client) for client in range(3)] == [0, 1, 2]
    held.close()


# ------------------------------------------------------------------ the file


def test_a_sparse_file_that_others_can_read(tmp_path):
    """A safetensors file of two places for each client; who never took part takes no space."""
    path = tmp_path / "clients.safetensors"
    held = store(path, clients=10**5)
    held.write(99_999, state(7))
    places = held.flush()
    held.close()
    assert path.stat().st_size > 2 * 10**5 * STATE
    assert path.stat().st_blocks * 512 < 10**5
    assert path.stat().st_mode & 0o777 == 0o600
    with safe_open(path, "pt") as file:
        rows = file.get_slice("states")
        assert rows.get_shape() == [10**5, 2, *SHAPE]
        assert torch.equal(rows[99_999, places[99_999].at], state(7))
        assert torch.equal(rows[5, 0], state(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_state_comes_back_as_it_was(tmp_path, dtype):
    held = store(tmp_path / "s", dtype=dtype)
    written = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0)).to(dtype)
    held.write(1, written)
    places = held.flush()
    held.close()
    found = reopened(tmp_path / "s", places, dtype=dtype).read(1)
    assert found.dtype == dtype
    assert torch.equal(found, written)


@pytest.mark.parametrize("other", [{"clients": 5}, {"dtype": torch.float32}], ids=["other clients", "other precision"])
def test_a_file_of_another_run_is_refused(tmp_path, other):
    held = store(tmp_path / "s")
    held.write(0, state(1))
    places = held.flush()
    held.close()
    with pytest.raises(BadValue, match=r"is damaged|is missing or incomplete"):
        reopened(tmp_path / "s", places, **other)
    (tmp_path / "junk").write_bytes(b"something else entirely" * 100)
    with pytest.raises(BadValue, match="is damaged"):
        reopened(tmp_path / "junk", places)


def test_a_file_that_no_checkpoint_names_is_made_anew(tmp_path):
    """A run was killed in its first write of it: what it holds is lost, and nobody knew of it."""
    (tmp_path / "s").write_bytes(b"something else entirely" * 100)
    held = store(tmp_path / "s")
    held.write(1, state(3))
    assert value(reopened(tmp_path / "s", held.flush()), 1) == 3


def test_a_manifest_without_its_file_is_refused(tmp_path):
    """Otherwise every client would quietly go on from zeros."""
    with pytest.raises(BadValue, match="is missing or incomplete; start a new run"):
        reopened(tmp_path / "missing", {0: Place(0, "")})
    held = store(tmp_path / "s")
    held.write(0, state(1))
    places = held.flush()
    held.close()
    os.truncate(tmp_path / "s", 300)
    with pytest.raises(BadValue, match="is missing or incomplete"):
        reopened(tmp_path / "s", places)


def test_a_file_killed_before_it_had_its_size_gets_it(tmp_path):
    held = store(tmp_path / "s")
    held._open()
    held.close()
    whole = (tmp_path / "s").stat().st_size
    os.truncate(tmp_path / "s", held._start)
    again = store(tmp_path / "s")
    again.write(0, state(1))
    again.flush()
    assert (tmp_path / "s").stat().st_size == whole


# ------------------------------------------------------------------ crashes


def checkpointed(path, **changed):
    """A store whose clients 0 to 2 were in the last checkpoint, with values 0 to 2, and what its manifest says."""
    held = store(path, **changed)
    for client in range(3):
        held.write(client, state(client))
    places = held.flush()
    held.commit()
    return held, places


def test_what_was_not_committed_did_not_happen(tmp_path):
    """Written, flushed, even twice: until the manifest names the new places, the old ones hold."""
    held, places = checkpointed(tmp_path / "s")
    held.write(0, state(10))
    held.write(3, state(30))
    held.flush()
    held.write(0, state(11))
    new_places = held.flush()
    seen = reopened(tmp_path / "s", places)
    assert [value(seen, client) for client in range(4)] == [0, 1, 2, None]
    seen = reopened(tmp_path / "s", new_places)
    assert [value(seen, client) for client in range(4)] == [11, 1, 2, 30]
    assert places[0] != new_places[0]
    assert places[1] == new_places[1]


def test_states_that_leave_memory_spare_the_checkpoint_too(tmp_path):
    held, places = checkpointed(tmp_path / "s", limit=1.0)
    for again in range(3):
        for client in range(3):
            held.write(client, state(100 * again + client))
    assert [value(reopened(tmp_path / "s", places), client) for client in range(3)] == [0, 1, 2]


def test_places_alternate_over_checkpoints(tmp_path):
    held, places = checkpointed(tmp_path / "s")
    for turn in range(1, 5):
        held.write(0, state(turn))
        new_places = held.flush()
        assert value(reopened(tmp_path / "s", places), 0) == turn - 1
        held.commit()
        assert value(reopened(tmp_path / "s", new_places), 0) == turn
        assert new_places[0].at == 1 - places[0].at
        places = new_places


def test_only_what_changed_is_written_again(tmp_path, monkeypatch):
    held, _ = checkpointed(tmp_path / "s")
    written, pwrite = [], os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, raw, offset: written.append(len(raw)) or pwrite(file, raw, offset))
    held.read(1)
    held.flush()
    held.write(2, state(5))
    held.flush()
    held.flush()
    assert written == [STATE]


class Disk:
    """A disk with room for so many more bytes: it writes what fits, and then refuses."""

    def __init__(self, room):
        self.room, self.pwrite = room, os.pwrite

    def __call__(self, file, raw, offset):
        if self.room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        fits = min(len(raw), self.room)
        self.room -= fits
        return self.pwrite(file, raw[:fits], offset)


@pytest.mark.parametrize("room", [0, 1, STATE - 1, STATE, 2 * STATE - 1])
@pytest.mark.parametrize("limit", [1e9, 1.0], ids=["flushed", "evicted"])
def test_a_full_disk_loses_nothing(tmp_path, monkeypatch, room, limit):
    """The checkpoint stands, and once there is room again the next one can be written."""
    held, places = checkpointed(tmp_path / "s", limit=limit)

    def next_round():
        for client in range(3):
            held.write(client, state(10 + client))
        return held.flush()

    monkeypatch.setattr(os, "pwrite", Disk(room))
    with pytest.raises(OSError, match="No space left"):
        next_round()
    assert [value(reopened(tmp_path / "s", places), client) for client in range(3)] == [0, 1, 2]
    monkeypatch.undo()
    new_places = next_round()
    assert [value(reopened(tmp_path / "s", places), client) for client in range(3)] == [0, 1, 2]
    assert [value(reopened(tmp_path / "s", new_places), client) for client in range(3)] == [10, 11, 12]


def test_a_state_that_could_not_be_written_out_is_still_there(tmp_path, monkeypatch):
    held = store(tmp_path / "s", limit=STATE)
    held.write(0, state(1))
    held._open()
    monkeypatch.setattr(os, "pwrite", Disk(STATE // 2))
    with pytest.raises(OSError, match="No space left"):
        held.write(1, state(2))
    assert held._cache.keys() == {0, 1}
    monkeypatch.undo()
    assert [value(reopened(tmp_path / "s", held.flush()), client) for client in (0, 1)] == [1, 2]


def test_a_disk_that_writes_a_little_at_a_time(tmp_path, monkeypatch):
    pwrite = os.pwrite
    held = store(tmp_path / "s")
    held._open()
    monkeypatch.setattr(os, "pwrite", lambda file, raw, offset: pwrite(file, raw[:7], offset))
    held.write(1, state(3))
    assert value(reopened(tmp_path / "s", held.flush()), 1) == 3


# ------------------------------------------------------------------ checkpoints of a run


def saved(folder, rounds):
    """A run of so many rounds, checkpointed at its end."""
    seen = run(Vectorised, net_of(MLP), jobs_of(rounds=5), records_of(MLP), SeededDraws(3), rounds=rounds, folder=folder)
    Checkpoint(folder).save(seen.servers[-1], seen.engine, seen.aggregator, {"seconds": rounds})
    return seen


def fresh(folder):
    return Vectorised(net_of(MLP), jobs_of(rounds=5), records_of(MLP), FedAvg(), SeededDraws(3), folder=folder)


def test_a_checkpoint_gives_back_everything(tmp_path):
    seen, engine = saved(tmp_path, 2), fresh(tmp_path)
    server, progress = Checkpoint(tmp_path).load(engine, served(engine))
    assert progress == {"seconds": 2}
    assert (server.round, server.averaged) == (2, 0)
    assert torch.equal(server.weights, seen.weights)
    assert engine.counters() == seen.engine.counters()
    assert all(torch.equal(engine.state(i), seen.engine.state(i)) for i in range(4))
    assert {path.name for path in tmp_path.iterdir()} == {"manifest.json", "clients.safetensors", "server-2.safetensors"}


def test_a_checkpoint_of_other_plans_is_refused(tmp_path):
    """What the rounds so far were accounted with must be what the rest is."""
    saved(tmp_path, 2)
    net = net_of(MLP)
    plans = {"noise": jobs_of(rounds=5, noise_multiplier=0.6), "rounds": jobs_of(rounds=6), "weights": jobs_of(rounds=5)}
    for what, jobs in plans.items():
        start = net.initial() + 1 if what == "weights" else None
        part = "first weights" if what == "weights" else "plans"
        engine = Vectorised(net, jobs, records_of(MLP), FedAvg(), SeededDraws(3), folder=tmp_path, start=start)
        with pytest.raises(BadValue, match=f"differs from the run that was begun: {part};"):
            Checkpoint(tmp_path).load(engine, served(engine))
        assert rounds_taken(engine) == [0, 0, 0, 0]


def test_a_checkpoint_that_fails_leaves_the_last_one(tmp_path, monkeypatch):
    """Whatever step of saving is the last to happen."""
    seen = saved(tmp_path, 2)
    expected = [seen.engine.state(i).clone() for i in range(4)]
    ask(seen.engine, 2, range(4), seen.weights)
    later = Server(seen.weights + 1, 3)
    for broken in ("os.pwrite", "os.fsync", "prifedsync.run.checkpoint.save", "os.replace"):
        with monkeypatch.context() as patch:
            patch.setattr(broken, fail)
            with pytest.raises(OSError, match="No space left"):
                Checkpoint(tmp_path).save(later, seen.engine, seen.aggregator, {})
        engine = fresh(tmp_path)
        server, _ = Checkpoint(tmp_path).load(engine, served(engine))
        assert server.round == 2
        assert all(torch.equal(engine.state(i), expected[i]) for i in range(4))
        assert not list(tmp_path.glob("*.new"))
    Checkpoint(tmp_path).save(later, seen.engine, seen.aggregator, {})
    assert Checkpoint(tmp_path).load(*with_server(fresh(tmp_path)))[0].round == 3


def test_a_folder_that_cannot_be_synced_because_the_disk_fails_is_an_error(tmp_path, monkeypatch):
    """It is not taken for a file system that cannot sync folders."""
    fsync = os.fsync

    def failing(file):
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(file)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="Input/output error"):
        write_file(tmp_path / "some file", b"content")


def fail(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")
