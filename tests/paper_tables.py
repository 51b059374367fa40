"""The rows of the paper's Tables 1 to 3: what was run, and the μ that is printed."""

from typing import NamedTuple


class Row(NamedTuple):
    table: int
    participation: float
    sigma: float  # half our noise_multiplier
    rounds: int
    local_steps: int
    batch: int
    records: int
    mu: float

    @property
    def steps(self) -> int:
        return self.local_steps * self.rounds


ROWS = [
    *(
        Row(1, p, sigma, rounds, 38, 16, 600, mu)
        for p, sigma, rounds, mu in [
            (1.0, 1.0, 93, 2.71), (1.0, 0.9, 83, 3.10), (1.0, 0.75, 64, 3.96),
            (0.5, 1.0, 194, 3.92), (0.5, 0.9, 176, 4.51), (0.5, 0.75, 127, 5.58),
            (0.25, 1.0, 386, 5.52), (0.25, 0.9, 325, 6.13), (0.25, 0.75, 245, 7.75),
        ]
    ),
    *(
        Row(2, 0.5, sigma, rounds, steps, batch, 600, mu)
        for sigma, batch, steps, rounds, mu in [
            (1.0, 8, 76, 266, 3.24), (1.0, 16, 38, 194, 3.92), (0.9, 8, 76, 229, 3.64),
            (0.9, 16, 38, 176, 4.51), (0.75, 8, 76, 191, 4.84), (0.75, 16, 38, 127, 5.58),
        ]
    ),
    *(
        Row(3, p, sigma, rounds, 32, 16, 500, mu)
        for p, sigma, rounds, mu in [
            (1.0, 1.0, 468, 6.70), (1.0, 0.75, 321, 9.77), (1.0, 0.5, 207, 26.81),
            (0.5, 1.0, 904, 9.31), (0.5, 0.75, 671, 14.13), (0.5, 0.5, 405, 37.51),
        ]
    ),
]  # fmt: skip
