"""The script that draws the charts in the reader's browser: Vega, Vega-Lite and vega-embed, whole and offline."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

import vl_convert

from anncestry import user_cache

_ENTRY = "window.vegaEmbed = vegaEmbed;"


def _kept() -> Path:
    """Where the user's cache keeps bundles of this version of vl-convert and this entry."""
    return (
        user_cache.folder("vega") / f"{version('vl-convert-python')}-{hashlib.sha256(_ENTRY.encode()).hexdigest()[:12]}"
    )


@cache
def bundle() -> str:
    """Vega, Vega-Lite and vega-embed as one script; deterministic for a version of vl-convert.

    Bundling takes seconds, so the user's cache keeps it, in a file named by its digest: one that was changed or cut is
    made anew, as is one that can't be read; a cache that can't be written costs the time only.
    """
    folder = _kept()
    for path in sorted(folder.glob("*.js")):
        with suppress(OSError):
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest() == path.stem:
                return content.decode()
            path.unlink()
    made = str(vl_convert.javascript_bundle(_ENTRY))
    content = made.encode()
    target = folder / f"{hashlib.sha256(content).hexdigest()}.js"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        whole = target.with_suffix(f".{os.getpid()}")
        whole.write_bytes(content)
        whole.replace(target)
    return made
