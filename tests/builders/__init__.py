"""What several test modules build on: worlds of records, benches, finished trees, published sets."""
