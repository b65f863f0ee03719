"""Where data comes from, as far as a dataset of the library `datasets` tells."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from ...lightning_modules.data.lengths import has_length

_ON_THE_HUB = re.compile(r"^hf://datasets/(?P<name>.+?)@")
_LOCAL_FILES = """
    arrow audiofolder csv generator imagefolder json pandas parquet spark sql text videofolder webdataset xml
"""
"""Builders of `datasets` that read anybody's files: no name of a dataset."""


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """One dataset, as a model card names it."""

    name: str
    """For people."""
    tag: str | None
    """The identifier on the Hub; None for a dataset that has a name only, which is then no link and no metadata."""
    config: str | None = None
    split: str | None = None
    args: Any = None
    """What else there is to say about how it was read."""
    prefix: str = ""
    """Metrics on it begin so: `name_`, where several sets are evaluated."""


def sources_of(dataset: Any) -> tuple[DataSource, ...]:
    """The sources of a dataset, or of a dict of several; those that are not known are left out."""
    if not isinstance(dataset, dict):
        source = source_of(dataset)
        return () if source is None else (source,)
    known = ((name, source_of(one)) for name, one in dataset.items())
    return tuple(replace(source, prefix=f"{name}_") for name, source in known if source is not None)


def named_sources(names: list[str], tags: list[str], args: list[Any]) -> tuple[DataSource, ...]:
    """Sources as somebody names them, in parallel lists of which some may be shorter, or empty.

    As in the reference tags alone are identifiers on the Hub, and names of those that have none other.
    """
    longest = max(len(names), len(tags))
    padded = zip_longest(names or tags, tags, args[:longest])
    return tuple(DataSource(name=name or tag, tag=tag, args=more) for name, tag, more in padded)


def source_of(dataset: Any) -> DataSource | None:
    """The source of a dataset; None where it is not one of `datasets`, or was made from somebody's own files.

    Args:
        dataset: of any kind.
    """
    library = sys.modules.get("datasets")
    if library is None or not isinstance(dataset, (library.Dataset, library.IterableDataset)):
        return None
    name = _name(dataset.info)
    if name is None:
        return None
    config = dataset.info.config_name
    split = None if dataset.split is None else str(dataset.split)
    return DataSource(name=name, tag=name, config=config, split=split)


def samples_in(dataset: Any) -> int | None:
    """How many there are; None where nobody knows."""
    if isinstance(dataset, dict):
        counts = [samples_in(one) for one in dataset.values()]
        return None if None in counts else sum(count for count in counts if count is not None)
    return len(dataset) if has_length(dataset) else None


def _name(info: Any) -> str | None:
    """The repository that the files came from, or else the name that its builder has for itself."""
    for address in getattr(info, "download_checksums", None) or {}:
        if found := _ON_THE_HUB.match(str(address)):
            return found["name"]
    named = (getattr(info, "dataset_name", None), getattr(info, "builder_name", None))
    return next((name for name in named if name and name not in _LOCAL_FILES.split()), None)
