"""Small data in MNIST's and CIFAR-10's shapes, and a model that learns them in no time."""

import numpy as np

QUICK = (
    "data.clients=4", "model.name=softmax", "local.learning_rate=0.01", "local.local_steps=3", "rounds=4",
    "performance.checkpoint_seconds=0",
)  # fmt: skip


def write_mnist(folder, records=400, tests=200):
    """Images whose brightness is their label, with noise."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)

    def images(count, *shape):
        labels = np.arange(count) % 10
        bright = random.integers(0, 60, (count, *shape)) + 19 * labels.reshape(-1, *[1] * len(shape))
        return bright.astype(np.uint8), labels.astype(np.uint8)

    for name, shape in (("mnist", (28, 28)), ("cifar10", (32, 32, 3))):
        (train, y), (test, truth) = images(records, *shape), images(tests, *shape)
        np.savez(folder / f"{name}.npz", train_images=train, train_labels=y, test_images=test, test_labels=truth)
    return folder
