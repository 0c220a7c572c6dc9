"""From records to the tidy table, the tables of the paper, and the page."""
