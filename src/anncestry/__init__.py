"""anncestry: vector-database benchmarks in which every number knows its ancestry."""

__version__ = "0.1.0"
