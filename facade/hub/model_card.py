"""Model card of a training: metadata of the Hub, and text from `model_card_template.md`."""

from __future__ import annotations

import functools
import logging
import math
import os
import platform
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...callbacks.report.pictures import draw_loss_curve
from ...lightning_modules.common.libraries import loaded
from .evaluations import Evaluation, evaluations
from .facts import TASK_NAMES, CardFacts, DataSource
from .pushing import CARD_NAME
from .repository import is_repository_name

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCardData

logger = logging.getLogger(__name__)

PICTURE_NAME = "loss_curve.svg"
MARKER = "<!-- Drafted by lightrainer."
"""Begins the comment of a draft in the template."""

_TEMPLATE = Path(__file__).with_name("model_card_template.md")
_METRICS_OF_THE_HUB = """
    accuracy bleu cer chrf exact_match f1 mae matthews_correlation mean_iou mse pearsonr perplexity
    precision r_squared recall rouge sacrebleu seqeval spearmanr squad ter wer
"""
_ROUGE = re.compile(r"rouge(1|2|l|lsum)")
_SHOWN_ELSEWHERE = "text2text-generation"
"""Task with results on the Hub, but without a page."""
_PACKAGES = ("lightrainer", "torch", "lightning")
_OPTIONAL_PACKAGES = ("transformers", "peft", "datasets", "tokenizers")


class ModelCard:
    """As `transformers.modelcard.TrainingSummary`, with the losses as a picture and all evaluations
    as a table.

    Args:
        facts: facts of the training.
    """

    def __init__(self, facts: CardFacts) -> None:
        self.facts = facts
        self.evaluations = evaluations(list(facts.log_history))

    def write(self, folder: Path, find_license: Callable[[str], str | None] | None = None) -> None:
        """Write `README.md`, and the picture beside it if there is something to draw.

        Args:
            folder: created if missing. Tags of a card in it are kept.
            find_license: returns the license of the base model, if none is given.
        """
        folder.mkdir(parents=True, exist_ok=True)
        facts = self.facts
        if facts.license is None and facts.base_model is not None and find_license is not None:
            facts = replace(facts, license=find_license(facts.base_model))

        path = folder / CARD_NAME
        tags = dict.fromkeys([*facts.tags, *_tags_of(path)])
        card = ModelCard(replace(facts, tags=tuple(tags)))

        picture = PICTURE_NAME if _draw(facts, folder) else None
        _write(path, card.text(picture).encode())

    def text(self, picture: str | None = None) -> str:
        """Return the whole card.

        Args:
            picture: name of the file beside the card that shows the losses.
        """
        from huggingface_hub import ModelCard as HubCard

        facts = self.facts
        metric_names = dict.fromkeys(
            name for evaluation in self.evaluations for name in evaluation.metrics
        )
        card = HubCard.from_template(
            self.metadata(),
            template_path=str(_TEMPLATE),
            facts=facts,
            result=self.result,
            evaluations=self.evaluations,
            metric_names=list(metric_names),
            data=[
                ("Training", facts.training_sources, facts.train_samples),
                ("Evaluation", facts.sources, facts.eval_samples),
            ],
            picture=picture,
            versions=_versions(),
            # Functions that the template calls.
            cell=_cell,
            count=_count,
            linked=_linked,
            listed=_listed,
            many=_many,
            number=_number,
            pretty=_pretty,
        )
        return str(card)

    def metadata(self) -> ModelCardData:
        """Return the metadata; `model-index` needs a task, a dataset and a metric, else the Hub
        refuses it.
        """
        from huggingface_hub import ModelCardData

        facts = self.facts
        results = list(self._eval_results())

        metrics = {result.metric_type for result in results}
        if self.result is not None:
            metrics.update(map(_metric_type, self.result.metrics))
        metrics.intersection_update(_METRICS_OF_THE_HUB.split())

        pages = [task for task in facts.tasks if task in TASK_NAMES and task != _SHOWN_ELSEWHERE]
        sources = [*facts.training_sources, *facts.sources]
        datasets = dict.fromkeys(source.tag for source in sources if source.tag is not None)
        return ModelCardData(
            library_name=facts.library,
            language=list(facts.language) or None,
            license=facts.license,
            base_model=facts.base_model,
            tags=list(facts.tags),
            pipeline_tag=pages[0] if pages else None,
            datasets=list(datasets) or None,
            metrics=sorted(metrics) or None,
            model_name=facts.model_name if results else None,
            eval_results=results or None,
        )

    @property
    def result(self) -> Evaluation | None:
        """Return the evaluation of the saved model: at the last or best step of the training.

        Without one at that step, an evaluation after the training; else the last one.
        """
        step = self.facts.chosen_step
        if step is None:
            step = self.facts.steps
        trained = [each for each in self.evaluations if not each.after_training]
        later = [each for each in self.evaluations if each.after_training]
        at_step = [each for each in trained if each.step == step]
        candidates = at_step or later or trained
        return candidates[-1] if candidates else None

    def _eval_results(self) -> Iterator[EvalResult]:
        """Yield a result for each task, dataset and metric."""
        from huggingface_hub import EvalResult

        if self.result is None:
            return
        for task in self.facts.tasks:
            for source in self.facts.sources:
                for name, value in self.result.metrics.items():
                    if (
                        source.tag is None
                        or not name.startswith(source.prefix)
                        or not math.isfinite(value)
                    ):
                        continue
                    name_in_set = name.removeprefix(source.prefix)
                    yield EvalResult(
                        task_type=task,
                        task_name=TASK_NAMES.get(task, _pretty(task.replace("-", "_"))),
                        dataset_type=source.tag,
                        dataset_name=source.name,
                        dataset_config=source.config,
                        dataset_split=source.split,
                        dataset_args=source.args,
                        metric_type=_metric_type(name_in_set),
                        metric_name=_pretty(name_in_set),
                        metric_value=value,
                    )


def _metric_type(name: str) -> str:
    lowered = name.lower().replace(" ", "_")
    if _ROUGE.fullmatch(lowered):
        return "rouge"
    return lowered


def _draw(facts: CardFacts, folder: Path) -> bool:
    """Draw the losses; returns whether there is a picture."""
    try:
        picture = draw_loss_curve(facts.log_history, "svg")
        if picture is not None:
            _write(folder / PICTURE_NAME, picture)
    except Exception as error:  # the card says the same in numbers
        _warn_once(f"The model card has no picture of the losses: {type(error).__name__}: {error}")
        return False
    return picture is not None


@functools.cache
def _warn_once(message: str) -> None:
    """Log a warning unless an earlier card had the same: uploads during a training write many
    cards.
    """
    logger.warning(message)


def _write(path: Path, content: bytes) -> None:
    """Replace a file instead of writing into it: it may be a hard link to one of a checkpoint."""
    neighbour = path.with_name(f"_{path.name}")
    neighbour.write_bytes(content)
    os.replace(neighbour, path)


def _tags_of(card: Path) -> list[Any]:
    """Return the tags of an existing card; empty if it cannot be read."""
    from huggingface_hub import ModelCard as HubCard

    if not card.is_file():
        return []
    try:
        return list(HubCard.load(card, ignore_metadata_errors=True).data.get("tags") or [])
    except Exception as error:  # edited by hand, in any form
        logger.warning(
            "The tags of %s are not kept, as its metadata cannot be read (%s).", card, error
        )
        return []


def _versions() -> Iterator[tuple[str, str]]:
    """Yield names and versions of the packages that the training used."""
    yield "Python", platform.python_version()
    for name in (*_PACKAGES, *filter(loaded, _OPTIONAL_PACKAGES)):
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:  # run from a folder of sources
            continue


def _pretty(name: str) -> str:
    """Return a name such as `f1_macro` as a heading."""
    words = name.replace("_", " ").strip()
    return words[:1].upper() + words[1:]


def _number(value: float | None) -> str:
    """Format a number with few digits; None is empty."""
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.4g}"
    return f"{value:.4f}".rstrip("0").rstrip(".")


def _count(count: int | None) -> str:
    """Format a count with commas; None is empty."""
    return "" if count is None else f"{count:,}"


def _many(count: int) -> str:
    """Format a number of parameters."""
    if count >= 10**9:
        return f"{count / 10**9:.3g}B"
    if count >= 10**6:
        return f"{count / 10**6:.3g}M"
    return f"{count:,}"


def _listed(sources: Iterable[DataSource]) -> str:
    """Return links to different datasets, such as `A, B and C`."""
    links = [
        _linked(source)
        for source in {source.tag or source.name: source for source in sources}.values()
    ]
    return " and ".join(filter(None, [", ".join(links[:-1]), *links[-1:]]))


def _linked(source: DataSource) -> str:
    """Return a link if the tag is a valid name on the Hub, else the name."""
    if source.tag is None or not is_repository_name(source.tag):
        return source.name
    return f"[{source.name}](https://huggingface.co/datasets/{source.tag})"


def _cell(text: Any) -> str:
    """Return text for a cell of a table in Markdown."""
    return " ".join(str(text).split()).replace("|", "\\|")
