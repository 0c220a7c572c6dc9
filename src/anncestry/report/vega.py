"""The script that draws the charts in the reader's browser: Vega, Vega-Lite and vega-embed, whole and offline."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from functools import cache
from importlib.metadata import version

import vl_convert

from anncestry import user_cache

_ENTRY = "window.vegaEmbed = vegaEmbed;"


@cache
def bundle() -> str:
    """Vega, Vega-Lite and vega-embed as one script; deterministic for a version of vl-convert.

    Bundling takes seconds, so the user's cache keeps it, in a file named by its digest: one that was changed or cut is
    made anew, as is one that can't be read; a cache that can't be written costs the time only.
    """
    made = ""
    with suppress(OSError):
        of = f"{version('vl-convert-python')}-{hashlib.sha256(_ENTRY.encode()).hexdigest()[:12]}"
        folder = user_cache.folder("vega", of)
        for path in sorted(folder.glob("*.js")):
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest() == path.stem:
                return content.decode()
            path.unlink()
        made = str(vl_convert.javascript_bundle(_ENTRY))
        whole = folder / f"{os.getpid()}"
        whole.write_bytes(made.encode())
        whole.replace(folder / f"{hashlib.sha256(made.encode()).hexdigest()}.js")
    return made or str(vl_convert.javascript_bundle(_ENTRY))
