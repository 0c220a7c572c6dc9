"""Tables of the report."""
