"""The databases: a folder each, found by name."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING, cast

from anncestry.engines.base import Engine, Streaming
from anncestry.errors import ConfigError

if TYPE_CHECKING:
    from anncestry.engines import diskann, faiss, hnswlib, milvus, weaviate

    # mypy: each has every function, as declared
    _ENGINES: tuple[Engine, ...] = (diskann.ENGINE, faiss.ENGINE, hnswlib.ENGINE, milvus, weaviate)
    _STREAMING: tuple[Streaming, ...] = (milvus, weaviate)


def known() -> list[str]:
    """Names of the engines of this package."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)


def get(name: str) -> Engine:
    """The engine of that name; a name with a dot or colon is the path of a module from elsewhere (`my.engine`).

    An engine is its module, or what the module calls ENGINE, where one implementation serves several. ConfigError lists
    the known ones. Cheap: client libraries are imported when first needed.
    """
    if "." in name or ":" in name:
        path = name.replace(":", ".")
    elif name in known():
        path = f"{__name__}.{name}"
    else:
        raise ConfigError(f"engine: unknown engine {name!r}; known: {', '.join(known())}")
    try:
        module = import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not (path == error.name or path.startswith(f"{error.name}.")):
            raise
        raise ConfigError(f"engine: no module {path!r}; known engines: {', '.join(known())}") from None
    return cast(Engine, getattr(module, "ENGINE", module))
