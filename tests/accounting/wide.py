"""A trade-off function whose brackets are so wide that a lower end cannot be taken for an upper one."""

from dataclasses import dataclass

from prifedsync.fdp import Bound


@dataclass(frozen=True)
class Wide:
    """All brackets follow from one number in (0, 1): two of these differ in every end of every bracket."""

    advantage_at_most: float

    def __call__(self, alpha):
        """The certified lower bound on β."""
        return (1 - alpha) * (1 - self.advantage_at_most)

    def upper(self, alpha):
        return (1 - alpha) * (1 - self.advantage_at_most / 2)

    def advantage(self):
        return Bound(self.advantage_at_most / 2, self.advantage_at_most)

    def epsilon(self, delta):
        return Bound(10 * self.advantage_at_most, 17 * self.advantage_at_most)

    def mu(self, alpha_min):
        return Bound(2 * self.advantage_at_most, 3 * self.advantage_at_most)


def as_json(f):
    """The brackets of f as a record must store them."""
    return {
        "epsilon": dict(zip(("lower", "upper"), f.epsilon(None), strict=True)),
        "mu": dict(zip(("lower", "upper"), f.mu(None), strict=True)) | {"alpha_min": 1e-5},
        "advantage": dict(zip(("lower", "upper"), f.advantage(), strict=True)),
    }


HONEST = Wide(0.25)  # sums of few powers of two: printing them rounds nothing
WORST_CASE = Wide(0.625)


def guarantee(plan, participation="honest", taken=None, tolerance=None):
    """Stands for `PrivacyPlan.guarantee`: each question has an answer of its own."""
    if taken is not None:
        return Wide((1 + taken) / 64)
    return HONEST if participation == "honest" else WORST_CASE
