"""Kept results over commits: a line a quantity, where it breaks, and where it changed."""
