"""Config in, result out: the Python API behind `prifedsync.train`."""

from ..events import ForOwner, Note, Planned, RoundDone, Until, Watch, Working
from .forecast import Forecast, forecast
from .loop import synchronised
from .prepare import GIVEN, Prepared, prepare
from .recording import sentence
from .result import Result
from .settling import settled
from .training import Finished, Trace, resume, trace, train

__all__ = [
    "GIVEN",
    "Finished",
    "ForOwner",
    "Forecast",
    "Note",
    "Planned",
    "Prepared",
    "Result",
    "RoundDone",
    "Trace",
    "Until",
    "Watch",
    "Working",
    "forecast",
    "prepare",
    "resume",
    "sentence",
    "settled",
    "synchronised",
    "trace",
    "train",
]
