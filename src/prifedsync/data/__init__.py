"""Sources of records, and how records are split over clients. Nothing here is fitted to private records."""

from .array_encoding import ArrayEncoding
from .encoding import Encoding
from .federation import Client, Description, Federation, Records, Task, check
from .given import given
from .preprocessing import Preprocessing
from .sources import load

__all__ = [
    "ArrayEncoding",
    "Client",
    "Description",
    "Encoding",
    "Federation",
    "Preprocessing",
    "Records",
    "Task",
    "check",
    "given",
    "load",
]
