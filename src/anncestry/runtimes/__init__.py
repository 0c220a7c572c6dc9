"""Artifacts of systems, pinned by digest, and their runtimes: processes, containers, remote servers."""
