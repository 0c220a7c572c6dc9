"""What the report shows: the tidy table of numbers, the records behind it, and cells of tables."""
