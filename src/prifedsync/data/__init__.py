"""Sources of records, and how records are split over clients. Nothing here is fitted to private records."""

from .encoding import Encoding
from .federation import Client, Description, Federation, Records, Task, check
from .given import given
from .sources import load

__all__ = ["Client", "Description", "Encoding", "Federation", "Records", "Task", "check", "given", "load"]
