"""Downloads from a server of the test's own: mirrors in turn, checksums, the cache, and what may go wrong on the way."""

import builtins
import contextlib
import gzip
import hashlib
import io
import logging
import os
import shutil
import subprocess
import sys
import tarfile
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pooch
import pytest
from rich.console import Console
from rich.file_proxy import FileProxy

from prifedsync.config import load as config_of
from prifedsync.data import download, load
from prifedsync.data.download import Remote, fetch
from prifedsync.data.images import BINARY, IDX, IMAGES
from prifedsync.values import BadValue

from .test_images import TEST, TRAIN, coloured, grey, idx

NOWHERE = "http://127.0.0.1:9"  # the discard port: nobody listens
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
BINARIES = (*BINARY["train"], *BINARY["test"])


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """An empty cache; whatever is not on this machine goes to a proxy that is not there."""
    for name in PROXIES:
        monkeypatch.setenv(name, NOWHERE)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    monkeypatch.setenv("PRIFEDSYNC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PRIFEDSYNC_DATA", raising=False)
    return tmp_path / "cache"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        status, body, length = self.server.answers.get(self.path, (404, b"", 0))
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)
        if len(body) < length and self.server.hold:
            self.server.halfway.set()
            self.server.go_on.wait(60)

    def log_message(self, *words):
        """Standard error belongs to what is tested."""


@pytest.fixture
def server():
    """Answers by path, (status, body, declared length); a body shorter than declared breaks off, or stops with `hold`."""
    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.asked, found.answers, found.hold = [], {}, False
    found.halfway, found.go_on = threading.Event(), threading.Event()
    found.url = f"http://127.0.0.1:{found.server_address[1]}"
    thread = threading.Thread(target=found.serve_forever, args=(0.01,))
    thread.start()
    yield found
    found.go_on.set()
    found.shutdown()
    thread.join()
    found.server_close()


def sums(files):
    return {name: hashlib.sha256(body).hexdigest() for name, body in files.items()}


def publish(server, files, mirror="good"):
    server.answers |= {f"/{mirror}/{name}": (200, body, len(body)) for name, body in files.items()}


def idx_files():
    arrays = (*grey(TRAIN), *grey(TEST, 1))
    return {f"{name}.gz": gzip.compress(idx(array), mtime=0) for name, array in zip(IDX.values(), arrays, strict=True)}


@pytest.fixture
def mnist(server, monkeypatch):
    """A small MNIST at the mirror "good"; returns what uses the given mirrors for it."""
    files = idx_files()
    publish(server, files)

    def use(*mirrors):
        there = tuple(f"{server.url}/{mirror}/" if "//" not in mirror else mirror for mirror in mirrors)
        monkeypatch.setitem(IMAGES, "mnist", replace(IMAGES["mnist"], remote=Remote(sums(files), there)))
        return files

    return use


def federation(source="mnist", path=None):
    changes = [f"data.source={source}", "data.clients=4", "data.shards_per_client=2", "data.test_records=9"]
    return load(config_of("digits", changes, data=path).data, 3)


def refusal(source="mnist"):
    with pytest.raises(BadValue) as refused:
        federation(source)
    assert refused.value.field == "data.path"
    assert "\n" not in str(refused.value)
    return str(refused.value)


def lying_in(folder):
    return sorted(path.name for path in folder.iterdir())


def temporary(place):
    """Whatever lies in the cache under a name that is neither final nor the lock's."""
    return [path for path in place.rglob("*") if path.is_file() and not path.name.endswith(".lock")]


# ---------------------------------------------------------------------- mirrors, checksums and the cache


def test_mirrors_are_tried_in_turn_until_one_is_right(server, mnist, place):
    files = mnist("missing", "garbage", "broken", "good", "never")
    for name, body in files.items():
        server.answers[f"/garbage/{name}"] = (200, b"x" * len(body), len(body))
        server.answers[f"/broken/{name}"] = (200, body[: len(body) // 2], len(body))
    found = federation()
    assert sum(len(client.train) for client in found.clients) == TRAIN
    assert server.asked == [f"/{mirror}/{name}" for name in files for mirror in ("missing", "garbage", "broken", "good")]
    assert {path.name: path.read_bytes() for path in (place / "mnist").iterdir()} == files
    assert lying_in(place) == [".mnist.lock", "mnist"]


def test_the_second_time_nobody_is_asked(server, mnist):
    mnist("good")
    first = federation()
    asked = len(server.asked)
    assert asked == 4
    second = federation()
    assert len(server.asked) == asked
    for mine, theirs in zip(first.clients, second.clients, strict=True):
        assert (mine.train.x == theirs.train.x).all()


@pytest.mark.parametrize(("body", "says"), [(b"not it", "wrong checksum"), (b"", "wrong checksum")])
def test_a_wrong_checksum_is_refused_and_nothing_stays(body, says, server, mnist, place):
    files = mnist("good")
    name = "t10k-labels-idx1-ubyte.gz"
    server.answers[f"/good/{name}"] = (200, body, len(body))
    assert f"{name} (127.0.0.1:{server.server_address[1]}: {says})" in refusal()
    assert not (place / "mnist").exists()
    assert sorted(path.name for path in temporary(place)) == sorted(set(files) - {name})  # whole ones, for the next time
    publish(server, files)
    server.asked.clear()
    federation()
    assert server.asked == [f"/good/{name}"]


def test_a_download_that_breaks_off_leaves_nothing(server, mnist, place):
    files = mnist("good")
    server.answers |= {f"/good/{name}": (200, body[:9], len(body)) for name, body in files.items()}
    assert ": the connection broke off)" in refusal()
    assert not temporary(place)


def test_offline_says_which_files_to_put_where(mnist, place):
    files = mnist(f"{NOWHERE}/one/", f"{NOWHERE}/other/")
    said = refusal()
    assert said.startswith('data.path = "" is not set, and MNIST could not be downloaded: train-images-idx3-ubyte.gz (')
    assert said.count("127.0.0.1:9: no connection") == 2
    assert f"put {', '.join(files)} into {place / 'mnist'}, or name a folder" in said
    assert "--data" in said
    assert "PRIFEDSYNC_DATA" in said
    (place / "mnist").mkdir()
    for name, body in files.items():
        (place / "mnist" / name).write_bytes(body)
    assert len(federation().clients) == 4


def test_every_published_set_has_mirrors_and_whole_checksums():
    for found in IMAGES.values():
        assert len(found.remote.mirrors) >= 2
        for mirror in found.remote.mirrors:
            assert mirror.startswith("http")
            assert mirror.endswith("/")
        for checksum in found.remote.checksums.values():
            assert len(bytes.fromhex(checksum)) == 32
    assert IMAGES["mnist"].remote.names == IMAGES["fashion-mnist"].remote.names == tuple(f"{n}.gz" for n in IDX.values())
    assert IMAGES["cifar10"].remote.names == BINARIES


@pytest.mark.parametrize("source", sorted(IMAGES))
def test_the_published_mirrors_cannot_be_reached_from_tests(source, place):
    assert refusal(source).count("the proxy refuses") == len(IMAGES[source].remote.mirrors)
    assert not temporary(place)


def test_a_folder_that_is_given_is_never_downloaded_into(server, mnist, tmp_path, monkeypatch):
    mnist("good")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadValue, match="holds no MNIST"):
        federation(path=tmp_path / "empty")
    monkeypatch.setenv("PRIFEDSYNC_DATA", str(tmp_path / "empty"))
    with pytest.raises(BadValue, match="holds no MNIST"):
        federation()
    assert server.asked == []
    assert lying_in(tmp_path / "empty") == []


def test_what_is_the_users_in_the_cache_stays(server, mnist, place):
    mnist("good")
    (place / "mnist").mkdir(parents=True)
    (place / "mnist" / "notes.txt").write_text("mine")
    assert "holds no MNIST" in refusal()
    assert server.asked == []
    assert lying_in(place / "mnist") == ["notes.txt"]


def test_an_archive_in_the_cache_needs_no_download(server, mnist, place):
    mnist("good")
    place.mkdir()
    parts = {"train": grey(TRAIN), "test": grey(TEST, 1)}
    kinds = ("images", "labels")
    arrays = {f"{part}_{kind}": array for part, both in parts.items() for kind, array in zip(kinds, both, strict=True)}
    np.savez(place / "mnist.npz", **arrays)
    assert len(federation().clients) == 4
    assert server.asked == []


def test_a_cache_that_cannot_be_written_is_said(server, mnist, monkeypatch):
    mnist("good")
    monkeypatch.setenv("PRIFEDSYNC_CACHE", f"{os.devnull}/cache")
    said = refusal()
    assert "could not be downloaded: Not a directory" in said
    assert server.asked == []


def test_a_broken_gzip_is_refused(server, monkeypatch):
    files = idx_files()
    name = "train-labels-idx1-ubyte.gz"
    files[name] = files[name][:-9]
    publish(server, files)
    monkeypatch.setitem(IMAGES, "mnist", replace(IMAGES["mnist"], remote=Remote(sums(files), (f"{server.url}/good/",))))
    with pytest.raises(BadValue, match="cannot be read: it is not complete"):
        federation()


# ---------------------------------------------------------------------- pooch, and where there is none


def test_without_pooch_the_message_is_the_same(mnist, place, monkeypatch):
    files = mnist("good")
    real = builtins.__import__

    def none(name, *rest):
        if name == "pooch":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", none)
    said = refusal()
    assert "MNIST could not be downloaded: pooch is not installed; put train-images-idx3-ubyte.gz" in said
    assert f"{', '.join(files)} into {place / 'mnist'}" in said
    monkeypatch.delenv("PRIFEDSYNC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert download.cache() == Path("/somewhere/prifedsync")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert download.cache() == Path("/home/somebody/.cache/prifedsync")


def test_the_cache_is_where_pooch_says(monkeypatch, tmp_path):
    monkeypatch.delenv("PRIFEDSYNC_CACHE")
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / name)
    assert download.cache() == tmp_path / "prifedsync"


def test_progress_is_for_terminals(server, mnist, capfd, monkeypatch):
    mnist("good")
    federation()
    assert capfd.readouterr() == ("", "")
    assert pooch.get_logger().level == logging.NOTSET  # as it was
    shutil.rmtree(download.cache())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    federation()
    out, said = capfd.readouterr()
    assert out == ""
    assert said.startswith("downloading MNIST: train-images-idx3-ubyte.gz (0.1 MB) from 127.0.0.1:")
    assert said.count("\n") == 4
    assert "\r" not in said


def test_progress_comes_through_where_a_run_draws_its_bar(server, mnist):
    mnist("good")
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    with contextlib.redirect_stderr(FileProxy(Console(file=terminal, width=120), terminal)):
        federation()
    assert "downloading MNIST: train-images-idx3-ubyte.gz" in terminal.getvalue()


def test_a_slow_download_tells_of_each_tenth(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    now = iter(range(100))
    monkeypatch.setattr(download.time, "monotonic", lambda: next(now))
    progress = download._Progress("A set", "file", "host")
    progress.total = 10_000_000
    for _ in range(5):
        progress.update(900_000)
    assert capsys.readouterr().err == "downloading A set: file (10.0 MB) from host\nfile: 20 %\nfile: 40 %\n"


def test_progress_without_a_length_says_that_it_began(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress = download._Progress("A set", "file", "host")
    for _ in range(3):
        progress.update(10)
    assert capsys.readouterr().err == "downloading A set: file (0.0 MB) from host\n"


# ---------------------------------------------------------------------- archives


def binaries():
    """CIFAR-10's six files, 20 images each."""
    made = {}
    for seed, name in enumerate(BINARIES):
        images, labels = coloured(20, seed)
        made[name] = np.concatenate([labels[:, None], images.reshape(20, -1)], 1).tobytes()
    return made


def member(name, body=b"", **fields):
    info = tarfile.TarInfo(name)
    info.size = len(body)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, body


def archive(members):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as made:
        for info, body in members:
            made.addfile(info, io.BytesIO(body))
    return raw.getvalue()


def plain(skip=()):
    return [member(f"cifar-10-batches-bin/{name}", body) for name, body in binaries().items() if name not in skip]


@pytest.fixture
def cifar10(server, monkeypatch):
    """Publishes an archive as CIFAR-10."""

    def use(raw):
        files = {"cifar-10-binary.tar.gz": raw}
        publish(server, files)
        remote = replace(IMAGES["cifar10"].remote, checksums=sums(files), mirrors=(f"{server.url}/good/",))
        monkeypatch.setitem(IMAGES, "cifar10", replace(IMAGES["cifar10"], remote=remote))

    return use


@pytest.mark.parametrize("prefix", ["", "./"])
def test_the_six_files_are_unpacked_and_nothing_else(prefix, server, cifar10, place):
    members = [member(prefix + info.name, body) for info, body in plain()]
    cifar10(archive([member("cifar-10-batches-bin/readme.html", b"<p>"), *members]))
    assert sum(len(client.train) for client in federation("cifar10").clients) == 100
    assert {path.name: path.read_bytes() for path in (place / "cifar10").iterdir()} == binaries()
    assert lying_in(place) == [".cifar10.lock", "cifar10"]
    federation("cifar10")
    assert len(server.asked) == 1


HOSTILE = [
    member("../evil", b"evil"),
    member("/tmp/prifedsync-evil", b"evil"),
    member("cifar-10-batches-bin/../../evil", b"evil"),
    member("cifar-10-batches-bin/../data_batch_1.bin", b"evil"),
    member("data_batch_1.bin", b"evil"),
    member("link", type=tarfile.SYMTYPE, linkname="/"),
    member("link/evil", b"evil"),
    member("device", type=tarfile.CHRTYPE),
]


def test_hostile_members_are_passed_over(cifar10, place, tmp_path):
    cifar10(archive([*HOSTILE, *plain()]))
    federation("cifar10")
    assert {path.name: path.read_bytes() for path in (place / "cifar10").iterdir()} == binaries()
    assert lying_in(place) == [".cifar10.lock", "cifar10"]
    assert lying_in(tmp_path) == ["cache"]
    assert not Path("/tmp/prifedsync-evil").exists()


FIRST = "cifar-10-batches-bin/data_batch_1.bin"


@pytest.mark.parametrize(("wrong", "says"), [
    (member(FIRST, type=tarfile.SYMTYPE, linkname="/etc/passwd"), "is not a plain file"),
    (member(FIRST, type=tarfile.LNKTYPE, linkname="cifar-10-batches-bin/data_batch_2.bin"), "is not a plain file"),
    (member(FIRST, type=tarfile.DIRTYPE), "is not a plain file"),
    (member(FIRST, type=tarfile.FIFOTYPE), "is not a plain file"),
    (member(FIRST, bytes(download.LARGEST + 1)), "is not a plain file of at most 33,554,432 bytes"),
    (member("cifar-10-batches-bin/data_batch_7.bin"), f"does not hold {FIRST}"),
], ids=["symlink", "hard link", "folder", "pipe", "huge", "missing"])  # fmt: skip
def test_a_wanted_member_must_be_a_plain_file(wrong, says, cifar10, place):
    cifar10(archive([*plain(skip=["data_batch_1.bin"]), wrong]))
    assert says in refusal("cifar10")
    assert not (place / "cifar10").exists()


@pytest.mark.parametrize("harm", [lambda raw: raw[: len(raw) // 2], lambda raw: b"no archive"], ids=["cut", "none"])
def test_a_broken_archive_is_refused(harm, cifar10, place):
    cifar10(harm(archive(plain())))
    assert "cannot be unpacked" in refusal("cifar10")
    assert not (place / "cifar10").exists()


# ---------------------------------------------------------------------- interruptions, and two at once


@pytest.mark.parametrize(("where", "what"), [(shutil, "copyfileobj"), (Path, "rename")])
def test_an_interruption_while_unpacking_leaves_nothing_half_done(where, what, server, cifar10, place, monkeypatch):
    cifar10(archive(plain()))
    real, calls = getattr(where, what), []

    def interrupted(*words):
        calls.append(words)
        if len(calls) == (3 if what == "copyfileobj" else 1):
            raise KeyboardInterrupt
        return real(*words)

    monkeypatch.setattr(where, what, interrupted)
    with pytest.raises(KeyboardInterrupt):
        federation("cifar10")
    assert not (place / "cifar10").exists()
    monkeypatch.setattr(where, what, real)
    federation("cifar10")
    assert {path.name: path.read_bytes() for path in (place / "cifar10").iterdir()} == binaries()
    assert lying_in(place) == [".cifar10.lock", "cifar10"]
    assert len(server.asked) == (1 if what == "copyfileobj" else 2)  # the archive is kept until it is unpacked


def test_a_killed_process_leaves_neither_files_nor_a_lock(server, place):
    body = b"published" * 9
    server.answers["/good/file"] = (200, body[:40], len(body))
    server.hold = True
    program = (
        "import sys; from pathlib import Path; from prifedsync.data.download import Remote, fetch\n"
        "fetch('A set', Remote({'file': sys.argv[1]}, (sys.argv[2],)), Path(sys.argv[3]), '')"
    )
    checksum = hashlib.sha256(body).hexdigest()
    words = [sys.executable, "-c", program, checksum, f"{server.url}/good/", str(place / "set")]
    with subprocess.Popen(words) as process:
        assert server.halfway.wait(60)
        process.kill()
    server.hold = False
    assert not (place / "set").exists()
    publish(server, {"file": body})
    fetch("A set", Remote({"file": checksum}, (f"{server.url}/good/",)), place / "set", "")
    assert lying_in(place / "set") == ["file"]
    assert (place / "set" / "file").read_bytes() == body
    assert lying_in(place) == [".set.lock", "set"]


def test_two_at_once_download_once(server, place):
    body = b"published" * 9
    server.answers["/good/file"] = (200, body[:40], len(body))
    server.answers["/other/file"] = (200, body, len(body))
    server.hold = True
    remote = Remote(sums({"file": body}), (f"{server.url}/good/", f"{server.url}/other/"))
    failed = []

    def one():
        try:
            fetch("A set", remote, place / "set", "")
        except BadValue as error:
            failed.append(error)

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert server.halfway.wait(60)
    server.go_on.set()  # the first breaks off, and goes on with the other mirror
    for thread in threads:
        thread.join(60)
    assert not failed
    assert server.asked == ["/good/file", "/other/file"]
    assert (place / "set" / "file").read_bytes() == body
