"""Cells: config, specs, keys and paths."""
