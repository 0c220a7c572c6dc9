"""How things are run: artifacts and native processes."""
