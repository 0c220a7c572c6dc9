"""What belongs to single documents: the paper, and four documents of vendors whose questions are asked here again.

It is no part of the package: it builds on the report, which takes `STUDIES` if Python finds them.
"""

from __future__ import annotations

from anncestry.report.site.catalogue import CaseStudies, ExtraPage, Group
from anncestry.report.site.shell import AUDIT_PAGE
from casestudies import audit, beside, disks, documents, figures, protocols, scaling, vectordbbench, winners

STUDIES = CaseStudies(
    figures=(figures.figures, scaling.figures, protocols.figures),
    groups=(
        Group("winners", "Who wins what, and what to use", (winners.tables,)),
        Group("beside", "Measured beside published", (beside.tables,), page=beside.PAGE),
        Group(
            "documents",
            "Questions of the other documents",
            (
                documents.tables,
                scaling.tables,
                protocols.tables,
                disks.tables,
                vectordbbench.tables,
                vectordbbench.own_runner,
            ),
        ),
    ),
    pages=(
        ExtraPage(beside.PAGE, "Measured beside published", "index.html", beside.write),
        ExtraPage(AUDIT_PAGE, "Published before, audited", "method.html", audit.write),
    ),
)
"""Figures that stand before the general ones, tables and pages that stand between them."""
