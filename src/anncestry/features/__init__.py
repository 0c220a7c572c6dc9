"""The features of workloads, a folder each: `FEATURE` declares it, and `MEASURING`, if it has that, acts in runs.

`anncestry.cells.features` finds them by name; no module imports them otherwise.
"""
