"""The driver: request bytes and a schedule in, samples and response bytes out.

It knows transports, not databases: every system is measured by the same client, which neither encodes nor decodes
anything while the clock runs. `protocol` is the folder of files between the harness and the driver, `client` one
client process, `driver` keeps the clients and starts them together.
"""
