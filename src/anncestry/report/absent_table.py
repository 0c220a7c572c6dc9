"""The table of cells that are listed instead of measured, each with its reason."""

from __future__ import annotations

from collections.abc import Sequence

from anncestry.cells.absent import Absent
from anncestry.report.tables import Cell, Column, Table, TableRow

NUMBER = "U"


def tables(absent: Sequence[Absent]) -> list[Table]:
    """The table, if cells are listed."""
    if not absent:
        return []
    arms = any(cell.arm for cell in absent)
    return [
        Table(
            NUMBER,
            "Unsupported, or not measurable here",
            "Cells that were asked for and that no run can fill here. Unsupported: the system lacks what the"
            " cell asks. Not measurable here: a limit is more than the platform has; it would limit nothing, and a"
            " number would be the platform's.",
            ("Dataset", "System", "Topology", "Workload", *(("Arm",) if arms else ()), "State"),
            (Column("Why"),),
            tuple(
                TableRow(
                    (
                        *(cell.dataset, cell.system, cell.topology, cell.workload),
                        *((cell.arm or "—",) if arms else ()),
                        cell.state,
                    ),
                    (Cell(cell.reason),),
                )
                for cell in absent
            ),
        )
    ]
