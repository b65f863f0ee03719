"""Text of a model card, with the evaluations from the log history."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ...callbacks._log_values import number_of, split_history
from ...lightning_modules.common.libraries import loaded
from .facts import CardFacts, DataSource
from .repository import is_repository_name

PICTURE_NAME = "loss_curve.svg"

MARKER = "<!-- Drafted by lightrainer."
_NOTE = f"""{MARKER} It holds what the Trainer knows. Fill in the rest, and take out this
line: as long as it is there, uploads in the middle of a training bring a newer draft. -->
"""
_HUB = "https://huggingface.co"
_TO_BE_WRITTEN = "*To be written: {}*"
_ALWAYS = ("lightrainer", "torch", "lightning")
_IF_LOADED = ("transformers", "peft", "datasets", "tokenizers")
_PREFIX = "eval_"
_ABOUT_SPEED = ("runtime", "samples_per_second", "steps_per_second", "jit_compilation_time", "preparation_time")


@dataclass
class Evaluation:
    """Metrics of one step, over all evaluation sets."""

    step: int
    epoch: float | None
    training_loss: float | None
    """The last one logged before."""
    metrics: dict[str, float] = field(default_factory=dict)
    """By name without `eval_`; without speed and memory."""
    after_training: bool = False
    """Measured after the end of the training, possibly on the best model or another one."""


def evaluations(log_history: list[dict[str, Any]]) -> list[Evaluation]:
    """As `transformers.modelcard.parse_log_history`, but including evaluations without a loss.

    Args:
        log_history: of a `TrainerState`.

    Returns:
        one entry per evaluated step, in order, with the later of two values; then one entry per evaluation after the
        end of the training.
    """
    training, after = split_history(log_history)
    found: dict[int, Evaluation] = {}
    loss = None
    for entry in training:
        if number_of(entry.get("step", 0)) is None:
            continue
        loss = entry.get("loss", loss)
        metrics = _metrics(entry)
        if metrics:
            step = entry.get("step", 0)
            row = found.setdefault(step, Evaluation(step, entry.get("epoch"), loss))
            row.metrics.update(metrics)
    return [*found.values(), *_later(after)]


def _later(entries: list[dict[str, Any]]) -> list[Evaluation]:
    """Return the evaluations after the training; consecutive ones on several sets are merged."""
    rows: list[Evaluation] = []
    for entry in entries:
        metrics = _metrics(entry)
        if metrics and (not rows or rows[-1].metrics.keys() & metrics.keys()):
            rows.append(Evaluation(entry.get("step", 0), entry.get("epoch"), None, after_training=True))
        if metrics:
            rows[-1].metrics.update(metrics)
    return rows


def pretty(name: str) -> str:
    """Return a metric name such as `f1_macro` as a heading."""
    words = name.replace("_", " ").strip()
    return words[:1].upper() + words[1:]


def number(value: Any) -> str:
    """Format a number with few digits."""
    if not isinstance(value, float):
        return str(value)
    small = value != 0 and not 1e-3 <= abs(value) < 1e5
    return f"{value:.4g}" if small else f"{value:.4f}".rstrip("0").rstrip(".")


def _metrics(entry: dict[str, Any]) -> dict[str, float]:
    named = {name[len(_PREFIX) :]: value for name, value in entry.items() if str(name).startswith(_PREFIX)}
    numbers = {name: _plain(value) for name, value in named.items()}
    return {name: value for name, value in numbers.items() if value is not None and not _is_technical(name)}


def _plain(value: Any) -> float | None:
    """Convert NumPy numbers to Python numbers, as YAML has no others; None for other values."""
    value = value.item() if hasattr(value, "item") and getattr(value, "size", 2) == 1 else value
    plain = number_of(value)
    return None if plain is None or (math.isinf(plain) and isinstance(value, int)) else value


def _is_technical(name: str) -> bool:
    return name.endswith(_ABOUT_SPEED) or "mem_" in name or name == "num_input_tokens_seen"


def text_of(facts: CardFacts, evaluations: list[Evaluation], result: Evaluation | None, *, picture: bool) -> str:
    """Return the text in Markdown.

    Args:
        facts: facts of the training.
        evaluations: all evaluations.
        result: the evaluation of the saved model.
        picture: whether `loss_curve.svg` lies beside the card.
    """
    sections = [
        _NOTE,
        f"# {facts.model_name}\n",
        _what_it_is(facts),
        *_result(facts, result),
        "## Uses and limits\n",
        _TO_BE_WRITTEN.format("what this model is for, and what it should not be used for") + "\n",
        "## Data\n",
        *_data(facts),
        "## Training\n",
        *(_PICTURE if picture else ()),
        *_history(evaluations, facts.chosen_step),
        "### Arguments\n",
        table(("Argument", "Value"), facts.settings.items()),
        "### Versions\n",
        table(("Package", "Version"), versions()),
    ]
    return "\n".join(["", *sections])


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown, with escaped cells."""
    titles = list(head)
    lines = [titles, ["---"] * len(titles), *(list(row) for row in rows)]
    return "".join(f"| {' | '.join(_cell(cell) for cell in line)} |\n" for line in lines)


def versions() -> Iterator[tuple[str, str]]:
    """Yield names and versions of the packages that the training used."""
    yield "Python", platform.python_version()
    for name in (*_ALWAYS, *(name for name in _IF_LOADED if loaded(name))):
        try:
            yield name, version(name)
        except PackageNotFoundError:  # run from a folder of sources
            continue


_PICTURE = (f"![Training and evaluation loss over the steps]({PICTURE_NAME})\n",)


def _what_it_is(facts: CardFacts) -> str:
    size = f"`{facts.model_class}` with {_many(facts.parameters)} parameters"
    if facts.trainable != facts.parameters:
        size += f", {_many(facts.trainable)} of them trained"
    origin = "trained from scratch"
    if facts.base_model is not None:
        origin = f"fine-tuned from [{facts.base_model}]({_HUB}/{facts.base_model})"
    elif facts.library != "lightrainer":
        origin = "trained"
    on = _listed([_linked(source) for source in _different(facts.training_sources)])
    return f"{size}, {origin}{f' on {on}' if on else ''}, in {facts.steps:,} steps.\n"


def _result(facts: CardFacts, result: Evaluation | None) -> Iterator[str]:
    if result is None:
        return
    yield "## Results\n"
    on = _listed([_linked(source) for source in _different(facts.sources)]) or "the evaluation set"
    when = f"after the training of {facts.steps:,} steps" if result.after_training else f"after step {result.step:,}"
    yield f"On {on}, {when}:\n"
    yield table(("Metric", "Value"), ((pretty(name), number(value)) for name, value in result.metrics.items()))


def _data(facts: CardFacts) -> Iterator[str]:
    rows = [
        ("Training", _names(facts.training_sources), _count(facts.train_samples)),
        ("Evaluation", _names(facts.sources), _count(facts.eval_samples)),
    ]
    yield table(("Set", "Dataset", "Samples"), [row for row in rows if row[1] or row[2]])
    yield _TO_BE_WRITTEN.format("where the data comes from, and how it was prepared") + "\n"


def _history(evaluations: list[Evaluation], chosen_step: int | None) -> Iterator[str]:
    if not evaluations:
        return
    names = list(dict.fromkeys(name for each in evaluations for name in each.metrics))
    yield "### Evaluations\n"
    rows = []
    for each in evaluations:
        epoch = "" if each.after_training else _value(each.epoch)
        values = (each.training_loss, *(each.metrics.get(name) for name in names))
        rows.append((_step(each, chosen_step), epoch, *map(_value, values)))
    titles = ("Evaluation loss" if name == "loss" else pretty(name) for name in names)
    yield table(("Step", "Epoch", "Training loss", *titles), rows)
    if chosen_step is not None:
        yield f"This is the model of step {chosen_step:,}, the best one.\n"


def _step(evaluation: Evaluation, chosen_step: int | None) -> str:
    if evaluation.after_training:
        return "after training"
    return f"**{evaluation.step}**" if evaluation.step == chosen_step else str(evaluation.step)


def _different(sources: Iterable[DataSource]) -> list[DataSource]:
    return list({source.tag or source.name: source for source in sources}.values())


def _names(sources: Iterable[DataSource]) -> str:
    return "; ".join(_linked(source) + (f", {source.split}" if source.split else "") for source in sources)


def _linked(source: DataSource) -> str:
    """Return a link if the tag is a valid name on the Hub, else the name."""
    is_name = source.tag is not None and is_repository_name(source.tag)
    return f"[{source.name}]({_HUB}/datasets/{source.tag})" if is_name else source.name


def _listed(items: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(items[:-1]), *items[-1:]]))


def _many(count: int) -> str:
    for size, name in ((10**9, "B"), (10**6, "M")):
        if count >= size:
            return f"{count / size:.3g}{name}"
    return f"{count:,}"


def _count(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def _value(value: float | None) -> str:
    return "" if value is None else number(value)


def _cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")
