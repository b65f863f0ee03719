"""What the Hub asks of the metadata of a model card, written down from its specification of cards."""

import math
import re
from typing import Any

import yaml

_LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z]+)*|code|multilingual")
_TEXT = (str,)
_SHAPES: dict[str, tuple[type, ...]] = {
    "library_name": _TEXT,
    "license": _TEXT,
    "pipeline_tag": _TEXT,
    "base_model": (str, list),
    "language": (str, list),
    "tags": (list,),
    "datasets": (str, list),
    "metrics": (str, list),
    "model-index": (list,),
}


def problems_of_card(content: str) -> list[str]:
    """What is wrong with the metadata of a card, one sentence each."""
    parts = content.split("---\n", 2)
    if len(parts) < 3 or parts[0].strip():
        return ["there is no metadata"]
    try:
        data = yaml.safe_load(parts[1])
    except yaml.YAMLError as error:
        return [f"the metadata is no YAML: {error}"]
    if not isinstance(data, dict):
        return ["the metadata is no mapping"]
    found = [f'"{name}" must not be empty' for name, value in data.items() if value in (None, [], "")]
    for name, kinds in _SHAPES.items():
        value = data.get(name)
        if value is not None and not isinstance(value, kinds):
            found.append(f'"{name}" must be {" or ".join(kind.__name__ for kind in kinds)}')
        elif isinstance(value, list) and name != "model-index" and not all(isinstance(each, str) for each in value):
            found.append(f'"{name}" must hold texts')
    languages = data.get("language") or []
    for language in [languages] if isinstance(languages, str) else languages:
        if not _LANGUAGE.fullmatch(language):
            found.append(f'"language" has {language!r}, which is no code of a language')
    return found + [problem for entry in data.get("model-index") or [] for problem in _of_index(entry)]


def _of_index(entry: Any) -> list[str]:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or not entry.get("results"):
        return ['"model-index" needs a name and results']
    found = []
    for result in entry["results"]:
        needed = [("task", "type"), ("dataset", "type"), ("dataset", "name")]
        found += [f'"{part}.{name}" is required' for part, name in needed if not _text(result.get(part), name)]
        if not result.get("metrics"):
            found.append('"metrics" is required')
        for metric in result.get("metrics") or []:
            value = metric.get("value")
            if not _text(metric, "type") or isinstance(value, bool) or not isinstance(value, (int, float, str)):
                found.append('"metrics" need a type and a value')
            elif isinstance(value, float) and not math.isfinite(value):
                found.append("a value of a metric is not finite")
    return found


def _text(part: Any, name: str) -> bool:
    return isinstance(part, dict) and isinstance(part.get(name), str) and bool(part[name])
