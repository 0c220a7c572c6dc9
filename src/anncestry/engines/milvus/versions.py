"""What a version of Milvus can do and say; imports no client."""

from __future__ import annotations

from dataclasses import dataclass

from anncestry.engines.base import Spec, Version, version_of

OLDEST, BELOW = (2, 2, 16), (2, 4, 0)
"""2.2.4 speaks another protocol than the client; of later versions no package registry has a server."""
EARLY = (2, 1, 0)
"""The one earlier version that can be asked, in its own way."""
EARLY_SETTINGS = {
    "dataCoord.segment.maxSize": ("datacoord", "segment_max_size"),
    "dataNode.flush.insertBufSize": ("datanode", "flush_insert_buffer_size"),
    "rootCoord.minSegmentSizeToEnableIndex": ("rootcoord", "min_segment_size_to_enable_index"),
}
"""The settings that a 2.1 tells → type of the component that does, and how it calls it."""

COMPONENTS = ("rootCoord", "dataCoord", "queryCoord", "indexCoord", "dataNode", "queryNode", "indexNode")
"""Sections of milvus.yaml whose component says its own settings."""
MMAP, ON_STORAGE = "queryNode.mmapDirPath", "storage"
"""The setting that has vectors and indexes mapped from files instead of read into memory, and its one value."""
MMAP_FOLDER = "mmap"


@dataclass(frozen=True)
class Facts:
    """What differs from version to version."""

    version: Version

    @property
    def early(self) -> bool:
        """Whether it is a 2.1: a library that serves, which lacks some calls."""
        return self.version == EARLY

    @property
    def counts(self) -> bool:
        """Whether a query may ask for count(*). Earlier ones return the rows themselves, to be counted here."""
        return self.version >= (2, 3, 0)

    @property
    def names_segment_index(self) -> bool:
        """Whether the proxy says which index a loaded segment has. Earlier on only the query node does."""
        return self.version >= (2, 3, 0)

    @property
    def settles_on_loopback(self) -> bool:
        """Whether components can be told the address under which they register. Earlier on they take the first one."""
        return self.version >= (2, 3, 0)

    @property
    def evaluates(self) -> bool:
        """Whether /expr tells any setting in effect. Earlier on each component tells those of its own section."""
        return self.version >= (2, 3, 4)

    def says_setting(self, dotted: str) -> bool:
        """Whether the setting in effect can be read back."""
        if self.early:
            return dotted in EARLY_SETTINGS
        return self.evaluates or dotted.split(".")[0] in COMPONENTS


def facts(system: Spec) -> Facts:
    """The facts of a system's version."""
    return Facts(version_of(system))
