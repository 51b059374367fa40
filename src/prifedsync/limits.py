"""Bounds of the numbers, and the units of a guarantee, that accounting, training and the config share."""

from typing import Literal

Unit = Literal["record", "person"]  # what a guarantee is about; a person is all records of one person at a client
RECORD: Unit = "record"
MOST_STEPS = 10**9
MOST_RECORDS = 10**12
LEAST_NOISE = 0.05  # a smaller noise_multiplier does not protect (ε is in the hundreds), and it underflows
MOST_NOISE = 1e6
# Single precision holds numbers from 1e-38 to 3e38. Between these two, with MOST_RECORDS records and any noise multiplier,
# a clipped sum with its noise stays below 2e24 and the grid it is rounded to above 5e-18.
LEAST_CLIP = 1e-12
MOST_CLIP = 1e12
CLIP_REMEDY = "single precision cannot compute with values outside this range; scale the loss or the records"
