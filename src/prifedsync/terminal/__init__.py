"""What people read: progress while something works, tables when it is over. The only room that knows rich.

Tables are made of plain values: records, statements, and what `--json` prints. Every privacy number is on its safe side.
"""

from .audit import print_audit
from .bench import print_bench
from .checkup import print_checkup
from .contributions import print_contributions
from .deployment import print_deploy_status
from .evaluation import print_evaluation
from .ledger import print_entries, print_status
from .lines import print_warnings, screen
from .paper import print_tables
from .partition import print_partition
from .plan import print_answers
from .record import print_record
from .rules import print_rules
from .showing import in_notebook, shown
from .statement import print_statement
from .view import View, tracked
from .views import print_views

__all__ = [
    "View",
    "in_notebook",
    "print_answers",
    "print_audit",
    "print_bench",
    "print_checkup",
    "print_contributions",
    "print_deploy_status",
    "print_entries",
    "print_evaluation",
    "print_partition",
    "print_record",
    "print_rules",
    "print_statement",
    "print_status",
    "print_tables",
    "print_views",
    "print_warnings",
    "screen",
    "shown",
    "tracked",
]
