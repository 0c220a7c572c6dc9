"""How systems are had and run: artifacts pinned by digest, native processes."""
