"""Findings about published numbers, each made again from the facts: what recomputing gives, and from which numbers."""

from __future__ import annotations

from anncestry.report import checks_amounts, checks_documents, checks_speed
from anncestry.report.checks import Check

CHECKS: dict[str, Check] = {**checks_speed.CHECKS, **checks_amounts.CHECKS, **checks_documents.CHECKS}
"""All checks, by the name that `findings.csv` calls them."""
