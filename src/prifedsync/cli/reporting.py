"""The report of a run that has just ended: `train`, `deploy serve` and `deploy local` leave one in the run folder."""

from __future__ import annotations

import sys
from pathlib import Path

from ..values import BadValue


def leave_report(folder: Path) -> None:
    """Write it. The run is over and its record is written, so a report that cannot be made is one line and no failure."""
    from ..report.contents import report_of
    from ..report.saving import save

    try:
        no_page = save(report_of(folder), folder)
    except (BadValue, OSError) as error:
        no_page = f"no report was written: {error}"
    if no_page:
        print(f"prifedsync: {no_page}", file=sys.stderr)
