"""Datasets: formats, sources, download, normalize, metadata and ground truth."""
