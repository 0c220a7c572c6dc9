"""JSON Schema, asked twice: by the library that is fast, and only where that one doubts by the one that can explain."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import jsonschema_rs

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError


class Schema:
    """A schema of draft 2020-12."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._body = dict(body)

    @cached_property
    def _quick(self) -> jsonschema_rs.Draft202012Validator:
        return jsonschema_rs.Draft202012Validator(self._body)

    def errors(self, instance: Any) -> list[ValidationError]:
        """What is wrong with `instance`; that nothing is, as of nearly all, is known a hundred times faster."""
        try:
            if self._quick.is_valid(instance):
                return []
        except (ValueError, TypeError):
            pass  # of what JSON has no word for (a date, a key that is no text): the other has its own view
        return list(_explaining()(self._body).iter_errors(instance))


@cache
def _explaining() -> Any:
    """The library that explains, its patterns read as JSON Schema means them: at `$` a text ends.

    Python's `$` also lets a newline follow; `\\Z`, its word for the end, is none that other readers of schemas know.
    """
    from jsonschema import (  # a tenth of a second, in thousands of jobs
        Draft202012Validator,
        ValidationError,
        validators,
    )

    def pattern(validator: Any, wanted: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
        if validator.is_type(instance, "string") and not re.search(re.sub(r"\$\Z", r"\\Z", wanted), instance):
            yield ValidationError(f"{instance!r} does not match {wanted!r}")

    return validators.extend(Draft202012Validator, {"pattern": pattern})  # type: ignore[no-untyped-call]
