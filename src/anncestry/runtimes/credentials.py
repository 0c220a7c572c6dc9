"""Credentials: known by the name of their environment variable, read where they are used, written nowhere."""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from anncestry import redact
from anncestry.errors import UserError

SCHEMES = {
    "bearer": lambda secret: f"Bearer {secret}",
    "apikey": lambda secret: f"ApiKey {secret}",
    "base64": lambda secret: base64.b64encode(secret.encode()).decode(),
}
"""How a secret becomes the value of the header `authorization`."""


def authorization(named: Mapping[str, str] | None) -> str | None:
    """The header's value for {"env": NAME, "scheme": …}; UserError names the variable if it is not set."""
    return None if named is None else SCHEMES[named["scheme"]](read(named["env"], "the credentials"))


def read(variable: str, what: str) -> str:
    """The secret that a variable holds, from now on named instead of shown; UserError if it is not set."""
    secret = os.environ.get(variable)
    if not secret:
        raise UserError(f"the environment variable {variable} is not set: it holds {what}")
    redact.secret(variable, secret)
    return secret


def made(file: Path) -> str:
    """The password in a file of ours, made at random at first: nobody else uses a server of one's own."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as new:
            new.write(secrets.token_hex(16))
    password = file.read_text()
    redact.secret(file.name, password)
    return password


def named(password: str) -> dict[str, str]:
    """A password of our making, named as all are: {"env": NAME} of a variable that this process' clients inherit."""
    name = f"ANNCESTRY_PASSWORD_{secrets.token_hex(4).upper()}"
    os.environ[name] = password
    return {"env": name, "scheme": "password"}
