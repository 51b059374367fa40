"""MNIST, Fashion-MNIST and CIFAR-10 from small files in their true formats, whole and broken."""

import gzip
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from prifedsync.config import load as config_of
from prifedsync.data import load
from prifedsync.data.images import BINARY, IDX
from prifedsync.values import BadValue

TRAIN, TEST = 80, 60


def grey(count, seed=0):
    """Images whose pixels and labels say which they are."""
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (count, 28, 28), dtype=np.uint8)
    images[:, 0, 0] = np.arange(count)
    return images, (np.arange(count) % 10).astype(np.uint8)


def coloured(count, seed=0):
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8), (np.arange(count) % 10).astype(np.uint8)


def idx(array):
    return struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


def write_idx(folder, ending="", squeeze=bytes, dotted=False):
    folder.mkdir(parents=True, exist_ok=True)
    arrays = [*grey(TRAIN), *grey(TEST, 1)]
    for name, array in zip(IDX.values(), arrays, strict=True):
        name = name.replace("-idx", ".idx") if dotted else name
        (folder / f"{name}{ending}").write_bytes(squeeze(idx(array)))


def write_binary(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate([*BINARY["train"], *BINARY["test"]]):
        images, labels = coloured(20, seed)
        (folder / name).write_bytes(np.concatenate([labels[:, None], images.reshape(20, -1)], 1).tobytes())


def write_npz(path, make=grey, last=False):
    arrays = {}
    for part, count in (("train", TRAIN), ("test", TEST)):
        images, labels = make(count, int(part == "test"))
        arrays |= {f"{part}_images": images.transpose(0, 2, 3, 1) if last else images, f"{part}_labels": labels}
    np.savez(path, **arrays)


def federation(source, path, *overrides):
    changes = [f"data.source={source}", "data.clients=4", "data.shards_per_client=2", "data.test_records=9", *overrides]
    return load(config_of("digits", changes, data=path).data, 3)


def refusal(source, path, *overrides):
    with pytest.raises(BadValue) as refused:
        federation(source, path, *overrides)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def same(one, other):
    for mine, theirs in zip(one.clients, other.clients, strict=True):
        assert mine.name == theirs.name
        for a, b in ((mine.train, theirs.train), (mine.test, theirs.test)):
            assert torch.equal(a.x, b.x)
            assert torch.equal(a.y, b.y)


def test_every_form_of_mnist_is_the_same(tmp_path):
    write_npz(tmp_path / "mnist.npz")
    whole = federation("mnist", tmp_path / "mnist.npz")
    same(whole, federation("mnist", tmp_path))
    forms = {
        "plain": {},
        "gz/mnist": {"ending": ".gz", "squeeze": gzip.compress},
        "raw/MNIST/raw": {},
        "dotted": {"dotted": True},
    }
    for where, how in forms.items():
        write_idx(tmp_path / where, **how)
        same(whole, federation("mnist", tmp_path / where.split("/")[0]))


def test_both_forms_of_cifar10_are_the_same(tmp_path):
    write_binary(tmp_path / "cifar-10-batches-bin")
    binary = federation("cifar10", tmp_path)
    images, labels = zip(*(coloured(20, seed) for seed in range(5)), strict=True)
    test_images, test_labels = coloured(20, 5)
    np.savez(
        tmp_path / "cifar10.npz", train_images=np.concatenate(images).transpose(0, 2, 3, 1),
        train_labels=np.concatenate(labels)[:, None], test_images=test_images.transpose(0, 2, 3, 1),
        test_labels=test_labels,
    )  # fmt: skip
    same(binary, federation("cifar10", tmp_path / "cifar10.npz"))
    assert binary.shape == (3, 32, 32)


def test_pixels_are_scaled_by_published_constants_and_belong_to_their_labels(tmp_path):
    write_npz(tmp_path / "mnist.npz")
    images, labels = grey(TRAIN)
    found = federation("mnist", tmp_path)
    seen = []
    for client in found.clients:
        for x, y in zip(client.train.x, client.train.y, strict=True):
            number = round(float(x[0, 0, 0] * 0.3081 + 0.1307) * 255)
            assert torch.allclose(x[0], (torch.from_numpy(images[number]) / 255 - 0.1307) / 0.3081, atol=1e-6)
            assert int(y) == labels[number]
            seen.append(number)
    assert sorted(seen) == list(range(TRAIN))


def test_tests_are_official_test_images_with_labels_the_client_has(tmp_path):
    write_npz(tmp_path / "mnist.npz")
    images, labels = grey(TEST, 1)
    found = federation("mnist", tmp_path)
    for client in found.clients:
        assert len(client.test) == 9
        assert set(client.test.y.tolist()) <= set(client.train.y.tolist())
        numbers = (client.test.x[:, 0, 0, 0] * 0.3081 + 0.1307).mul(255).round().long().tolist()
        assert len(set(numbers)) == 9
        assert client.test.y.tolist() == labels[numbers].tolist()
        assert torch.allclose(client.test.x[0, 0] * 0.3081 + 0.1307, torch.from_numpy(images[numbers[0]]) / 255, atol=1e-6)
    having = [sum(label in set(client.train.y.tolist()) for label in labels) for client in found.clients]
    everything = federation("mnist", tmp_path, "data.test_records=1000")
    assert [len(client.test) for client in everything.clients] == having
    assert not any(len(client.test) for client in federation("mnist", tmp_path, "data.test_records=0").clients)
    same(found, federation("mnist", tmp_path))
    other = load(config_of("digits", ["data.source=mnist", "data.clients=4"], data=tmp_path).data, 4)
    assert not torch.equal(other.clients[0].train.x[:9], found.clients[0].train.x[:9])


def numbers_of(records):
    """Which images these are, from their first pixels."""
    return (records.x[:, 0, 0, 0] * 0.3081 + 0.1307).mul(255).round().long().tolist()


def dirichlet(path, *overrides, beta=0.5, seed=3):
    changes = ["data.source=mnist", "data.clients=4", "data.partition=dirichlet", "data.records_per_client=15",
               "data.test_records=12", f"data.concentration={beta}", *overrides]  # fmt: skip
    return load(config_of("digits", changes, data=path).data, seed)


def test_dirichlet_splits_have_exact_sizes_and_copies_as_they_are(tmp_path):
    write_npz(tmp_path / "mnist.npz")
    _, labels = grey(TEST, 1)
    for overlap, seed in ((True, 3), (True, 4), (False, 3)):
        found = dirichlet(tmp_path, f"data.overlap={str(overlap).lower()}", seed=seed)
        held = [0] * TRAIN
        for client in found.clients:
            train, test = numbers_of(client.train), numbers_of(client.test)
            assert len(set(train)) == 15
            assert len(set(test)) == 12
            assert client.test.y.tolist() == labels[test].tolist()
            for number in train:
                held[number] += 1
        assert found.copies == max(held)
        assert (found.copies > 1) == overlap


def test_dirichlet_tests_follow_the_clients_own_law(tmp_path):
    """Labels of 600 test images a client are spread as those of its 600 training images, and clients differ."""
    random = np.random.default_rng(0)
    arrays = {}
    for part in ("train", "test"):
        labels = random.integers(0, 10, 9000).astype(np.uint8)
        images = np.zeros((9000, 28, 28), np.uint8)
        arrays |= {f"{part}_images": images, f"{part}_labels": labels}
    np.savez_compressed(tmp_path / "mnist.npz", **arrays)
    found = dirichlet(tmp_path, "data.records_per_client=600", "data.test_records=600", "data.overlap=true")
    shares = [[np.bincount(part.y, minlength=10) / 600 for part in (c.train, c.test)] for c in found.clients]
    for train, test in shares:
        spread = np.sqrt(2 * np.maximum(train, 1 / 600) * (1 - train) / 600)
        assert (abs(train - test) < 5 * spread).all()
    assert all(abs(shares[0][0] - train).max() > 0.1 for train, _ in shares[1:])


def test_a_client_of_one_label_is_tested_on_that_label(tmp_path):
    write_npz(tmp_path / "mnist.npz")  # six test images a label
    found = dirichlet(tmp_path, "data.records_per_client=5", "data.clients=3", beta=1e-9)
    for client in found.clients:
        (label,) = set(client.train.y.tolist())
        assert client.test.y.tolist() == [label] * 6  # all there are: other labels have no chance


def test_a_dirichlet_split_of_images_is_repeatable(tmp_path):
    write_npz(tmp_path / "mnist.npz")
    same(dirichlet(tmp_path), dirichlet(tmp_path))
    one, other = dirichlet(tmp_path), dirichlet(tmp_path, seed=4)
    assert not torch.equal(one.clients[0].train.x, other.clients[0].train.x)
    assert not torch.equal(one.clients[0].test.x, other.clients[0].test.x)
    assert not any(len(client.test) for client in dirichlet(tmp_path, "data.test_records=0").clients)
    everything = dirichlet(tmp_path, "data.test_records=1000")
    assert [len(client.test) for client in everything.clients] == [TEST] * 4


@pytest.mark.parametrize(("overlap", "says"), [
    ("false", "data.clients × data.records_per_client = 324 must be at most the number of records, 80"),
    ("true", "data.records_per_client = 81 must be at most the number of records, 80"),
])  # fmt: skip
def test_more_images_than_there_are(overlap, says, tmp_path):
    write_npz(tmp_path / "mnist.npz")
    with pytest.raises(BadValue) as refused:
        dirichlet(tmp_path, f"data.overlap={overlap}", "data.records_per_client=81")
    assert says in str(refused.value)


def test_sizes_of_images_by_a_dirichlet_law(tmp_path):
    write_npz(tmp_path / "mnist.npz")
    found = federation("mnist", tmp_path, "data.partition=quantity")
    assert sorted(number for client in found.clients for number in numbers_of(client.train)) == list(range(TRAIN))
    assert found.copies == 1
    for client in found.clients:
        assert set(client.test.y.tolist()) <= set(client.train.y.tolist())


def test_fashion_is_found_beside_mnist(tmp_path):
    write_idx(tmp_path)
    write_npz(tmp_path / "fashion-mnist.npz", lambda count, seed: grey(count, seed + 7))
    plain, fashion = federation("mnist", tmp_path), federation("fashion-mnist", tmp_path)
    assert not torch.equal(plain.clients[0].train.x, fashion.clients[0].train.x)


def test_the_folder_may_come_from_the_environment(tmp_path, monkeypatch):
    write_npz(tmp_path / "mnist.npz")
    monkeypatch.setenv("PRIFEDSYNC_DATA", str(tmp_path))
    same(federation("mnist", tmp_path), federation("mnist", None))
    monkeypatch.delenv("PRIFEDSYNC_DATA")
    said = refusal("mnist", None)
    assert said.startswith('data.path = "" is not set, and MNIST could not be downloaded')
    assert "Not a directory" in said  # conftest's cache: no test downloads by accident
    assert "PRIFEDSYNC_DATA" in said
    assert IDX["train_images"] in said


def test_nothing_there(tmp_path):
    assert "holds no CIFAR-10; add to the folder: cifar10.npz, or the six .bin files" in refusal("cifar10", tmp_path)
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"\x80\x04.")
    assert "never the pickled one" in refusal("cifar10", tmp_path)
    assert "holds no MNIST" in refusal("mnist", tmp_path / "nowhere")


def cut(path, count=-1):
    path.write_bytes(path.read_bytes()[:count])


@pytest.mark.parametrize(("name", "harm", "says"), [
    ("train_images", cut, "bytes, but its header says"),
    ("train_labels", lambda path: cut(path, 3), "it ends after 3 bytes"),
    ("test_images", lambda path: path.write_bytes(path.read_bytes() + b"x"), "bytes, but its header says"),
    ("test_labels", lambda path: path.write_bytes(b"\0\0\x08\x03" + path.read_bytes()[4:]), "begins with 0x803 instead"),
    ("train_images", lambda path: path.unlink(), "train-images-idx3-ubyte is missing beside it"),
    ("train_labels", lambda path: path.write_bytes(idx(np.full(TRAIN, 10, np.uint8))), "train labels are not 0 to 9"),
    ("train_labels", lambda path: path.write_bytes(idx(np.zeros(7, np.uint8))), "80 train images and 7 labels"),
    ("test_images", lambda path: path.write_bytes(idx(np.zeros((TEST, 8, 8), np.uint8))), "not uint8 of (1, 28, 28)"),
    ("train_images", lambda path: path.write_bytes(idx(np.zeros((2**31, 0, 2), np.uint8))), "not uint8 of (1, 28, 28)"),
])  # fmt: skip
def test_broken_idx_files(name, harm, says, tmp_path):
    write_idx(tmp_path)
    harm(tmp_path / IDX[name])
    assert says in refusal("mnist", tmp_path)


@pytest.mark.parametrize(
    "harm", [lambda raw: raw[:-20], lambda raw: raw[:100] + b"\0" * 50 + raw[150:]], ids=["cut", "torn"]
)
def test_broken_gzip(harm, tmp_path):
    write_idx(tmp_path, ".gz", gzip.compress)
    path = tmp_path / f"{IDX['train_images']}.gz"
    path.write_bytes(harm(path.read_bytes()))
    assert "cannot be read: it is not complete" in refusal("mnist", tmp_path)


@pytest.mark.parametrize(("harm", "says"), [
    (lambda folder: cut(folder / "data_batch_3.bin"), "are not rows of 3073"),
    (lambda folder: (folder / "test_batch.bin").write_bytes(b""), "its 0 bytes are not rows of 3073"),
    (lambda folder: (folder / "data_batch_2.bin").unlink(), "data_batch_2.bin is missing beside it"),
    (lambda folder: (folder / "test_batch.bin").write_bytes(b"\x0b" * 3073), "test labels are not 0 to 9"),
])  # fmt: skip
def test_broken_binary_files(harm, says, tmp_path):
    write_binary(tmp_path)
    harm(tmp_path)
    assert says in refusal("cifar10", tmp_path)


def test_archives_that_are_something_else(tmp_path):
    path = tmp_path / "mnist.npz"
    np.savez(path, x=np.zeros(3))
    assert "it has no train_images, train_labels" in refusal("mnist", tmp_path)
    np.savez(path, train_images=np.array([object()]))
    assert "cannot be read" in refusal("mnist", tmp_path)
    write_npz(path, coloured)
    assert "not uint8 of (1, 28, 28)" in refusal("mnist", tmp_path)
    path.write_bytes(b"no archive")
    assert "cannot be read" in refusal("mnist", tmp_path)


@pytest.mark.parametrize("change", ['data.label_values=["a"]', "data.classes=3", "data.task=binary", 'data.columns=["a"]'])
def test_descriptions_of_your_own_data_are_refused(change, tmp_path):
    write_npz(tmp_path / "mnist.npz")
    assert change.partition("=")[0] in refusal("mnist", tmp_path, change)


@pytest.mark.skipif(not os.environ.get("PRIFEDSYNC_DATA"), reason="no data sets: set PRIFEDSYNC_DATA")
def test_the_real_mnist():
    found = load(
        config_of("digits", ["data.source=mnist", "data.clients=100"], data=Path(os.environ["PRIFEDSYNC_DATA"])).data, 0
    )
    assert {len(client.train) for client in found.clients} == {600}
    assert {len(client.test) for client in found.clients} == {200}
    together = torch.cat([client.train.x for client in found.clients])
    assert abs(together.mean()) < 1e-3
    assert abs(together.std() - 1) < 1e-3
