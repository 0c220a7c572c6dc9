"""Ancestry: a published number followed back to raw samples, shown, attested, and exported."""
