"""Metrics: pure functions over arrays."""
