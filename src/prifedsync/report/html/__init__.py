"""Pages that are looked at, printed and signed. Importing this needs plotly, and nothing else in `report` does."""

from .comparison import write_comparison
from .page import write_page

__all__ = ["write_comparison", "write_page"]
