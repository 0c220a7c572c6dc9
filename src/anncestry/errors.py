"""What goes wrong in a way that a user can mend."""

from __future__ import annotations


class UserError(Exception):
    """A sentence for the user that names the key or file; the command prints it and exits with 2."""


class ConfigError(UserError):
    """A config file, a key in it, or a combination of choices is not possible."""


class Unsupported(ConfigError):
    """A system lacks what is asked of it. An experiment may ask to have such cells listed (unsupported: listed)."""


class DataError(UserError):
    """A file is corrupt, truncated, of another shape or content than declared, or can't be had."""


class ServerError(UserError):
    """A server did not come up, died, or refused what it was asked.

    `log_tail` holds the last lines of the server's log (may be empty).
    """

    def __init__(self, sentence: str, log_tail: str = "") -> None:
        super().__init__(sentence)
        self.log_tail = log_tail

    def __str__(self) -> str:
        sentence = super().__str__()
        if not self.log_tail:
            return sentence
        indented = "\n".join(f"  | {line}" for line in self.log_tail.splitlines())
        return f"{sentence}\nlast lines of its log:\n{indented}"
