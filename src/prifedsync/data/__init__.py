"""Sources of records and how they are split over clients; nothing here is fitted to private records."""

from .federation import Client, Description, Federation, Records, Task, check
from .given import given
from .sources import load

__all__ = ["Client", "Description", "Federation", "Records", "Task", "check", "given", "load"]
