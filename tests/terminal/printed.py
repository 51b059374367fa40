"""Made-up values with wide brackets, and the cells of a printed table."""

import re

from prifedsync.accounting.statement import Numbers, Statement
from prifedsync.fdp import Bound, Neighbours
from prifedsync.record import RunRecord
from prifedsync.scores import Interval, Score, Scores

# The two ends of every bracket are far apart, so that a number from the wrong end is seen.
HONEST = Numbers(Bound(1.0, 2.0), Bound(0.25, 0.5), Bound(0.125, 0.25), ((0.001, 0.9375), (0.01, 0.875)))
WORST_CASE = Numbers(Bound(3.0, 4.0), Bound(0.625, 0.75), Bound(0.5, 0.625), ((0.001, 0.8125), (0.01, 0.75)))
BEWARE = "beware of [brackets] and :smile:"


def statement(**changed):
    given = {
        "delta": 1e-5,
        "neighbours": Neighbours.REPLACE,
        "honest": HONEST,
        "worst_case": WORST_CASE,
        "mu_weak": 0.5,
        "mu_strong": 5.5,
        "warnings": (BEWARE,),
    }
    return Statement(**(given | changed))


def record(**changed):
    stated = statement()
    given = {
        "config": {"privacy": {"randomness": "system"}},
        "clients": (),
        "guarantee": stated.as_json(),
        "sentence": stated.sentence(),
        "by_metric": {
            "accuracy": {
                "personal": Scores(Score(0.91, 0.81, 3, 0.90, 90), Score(0.71, 0.61, 3)),
                "released": Scores(
                    Score(0.92, 0.82, 3, 0.905, 90, Interval(0.881, 0.951), Interval(0.871, 0.941)),
                    Score(0.72, 0.62, 3, 0.72, 90, Interval(0.691, 0.741), Interval(0.691, 0.741)),
                ),
                "alone": Scores(Score(0.93, 0.83, 3), Score(0.73, None, 3)),
            },
        },
        "warnings": (BEWARE, "a second warning"),
        "versions": {},
        "device": "cpu",
        "gradients": "layers",
        "parameters": 1,
    }
    return RunRecord(**(given | changed))


def rows_of(text):
    """The cells of each line, parted by two or more spaces: first cell → the others."""
    cells = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines() if line.strip()]
    return {first: others for first, *others in cells}


def words(text):
    """The text without line breaks."""
    return " ".join(text.split())
