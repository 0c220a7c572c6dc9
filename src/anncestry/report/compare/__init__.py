"""Two sets of runs set against each other: one alignment, one verdict. What a verdict means: docs/comparing.md."""
