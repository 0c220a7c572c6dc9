"""Where numbers come from: records, digests, the platform and the code."""
