"""Functions of scipy.special, which is imported when the first is asked for.

Its import takes 0.4 s of a core. A job of a run is a process of its own, and most need none of them.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    from scipy import special

    return getattr(special, name)
