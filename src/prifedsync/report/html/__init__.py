"""Pages that are looked at, printed and signed. Importing this needs plotly, and nothing else in `report` does."""

from .comparison import comparison_page, write_comparison
from .page import page_of, write_page

__all__ = ["comparison_page", "page_of", "write_comparison", "write_page"]
