"""Credentials: known by the name of their environment variable, read where they are used, written nowhere."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping

from anncestry import redact
from anncestry.errors import UserError

SCHEMES = {
    "bearer": lambda secret: f"Bearer {secret}",
    "base64": lambda secret: base64.b64encode(secret.encode()).decode(),
}
"""How a secret becomes the value of the header `authorization`."""


def authorization(named: Mapping[str, str] | None) -> str | None:
    """The header's value for {"env": NAME, "scheme": …}; UserError names the variable if it is not set."""
    if named is None:
        return None
    return SCHEMES[named["scheme"]](read(named["env"], "the credentials"))


def read(variable: str, what: str) -> str:
    """The secret that a variable holds, from now on named instead of shown; UserError if it is not set."""
    secret = os.environ.get(variable)
    if not secret:
        raise UserError(f"the environment variable {variable} is not set: it holds {what}")
    redact.secret(variable, secret)
    return secret
