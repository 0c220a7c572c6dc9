"""The driver: request bytes and a schedule in, samples and response bytes out."""
