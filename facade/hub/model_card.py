"""Write the model card of a training: Hub metadata, and text from `model_card_template.md`."""

from __future__ import annotations

import functools
import logging
import math
import platform
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from ...callbacks._files import write_atomically
from ...callbacks.report.pictures import draw_loss_curve
from ...lightning_modules.common.libraries import loaded
from .evaluations import Evaluation, evaluations
from .facts import CardFacts, DataSource
from .pushing import CARD_NAME
from .tasks import TASK_NAMES

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCardData

logger = logging.getLogger(__name__)

PICTURE_NAME = "loss_curve.svg"
MARKER = "<!-- Drafted by lightrainer."
"""The template contains this text. A user who edits the card is asked to remove it."""

_TEMPLATE = Path(__file__).with_name("model_card_template.md")
_TASK_WITHOUT_PAGE = "text2text-generation"
"""The Hub shows results of this task, but has no page for it."""
_PACKAGES = ("lightrainer", "torch", "lightning")
_OPTIONAL_PACKAGES = ("transformers", "peft", "datasets", "tokenizers")


class ModelCard:
    """Write the model card of a training: a loss curve and a table of evaluations.

    Works like `transformers.modelcard.TrainingSummary`, with a picture and more tables.

    Args:
        facts: facts of the training.
    """

    def __init__(self, facts: CardFacts) -> None:
        self.facts = facts
        self.evaluations = evaluations(list(facts.log_history))

    def write(self, folder: Path, find_license: Callable[[str], str | None] | None = None) -> None:
        """Write `README.md`, and the picture next to it if there is something to draw.

        Args:
            folder: created if missing. Tags of a card in it are kept.
            find_license: returns the license of the base model; called if no license is set.
        """
        folder.mkdir(parents=True, exist_ok=True)

        # A finetuned model has the license of its base model, unless the user sets another.
        facts = self.facts
        if facts.license is None and facts.base_model is not None and find_license is not None:
            facts = replace(facts, license=find_license(facts.base_model))

        # Keep the tags of an older card, which the user may have added.
        path = folder / CARD_NAME
        tags = dict.fromkeys([*facts.tags, *_tags_of(path)])
        card = ModelCard(replace(facts, tags=tuple(tags)))

        picture = None
        if _draw_losses(facts, folder):
            picture = PICTURE_NAME
        text = card.text(picture)
        write_atomically(path, text.encode())

    def text(self, picture: str | None = None) -> str:
        """Return the whole card.

        Args:
            picture: name of the file beside the card that shows the losses.
        """
        from huggingface_hub import ModelCard as HubCard

        # Use a dict as a set that keeps the order of the names.
        facts = self.facts
        metric_names: dict[str, None] = {}
        for evaluation in self.evaluations:
            metric_names.update(dict.fromkeys(evaluation.metrics))

        card = HubCard.from_template(
            self.metadata(),
            template_path=str(_TEMPLATE),
            facts=facts,
            result=self.result,
            evaluations=self.evaluations,
            metric_names=list(metric_names),
            picture=picture,
            versions=_versions(),
            # The template calls these functions.
            cell=_cell,
            heading=_heading,
            number=_number,
        )
        return str(card)

    def metadata(self) -> ModelCardData:
        """Return the metadata of the Hub.

        The Hub rejects a `model-index` without a task, a dataset and a metric, so it is left out.
        """
        from huggingface_hub import ModelCardData

        facts = self.facts
        results = list(self._eval_results())
        model_name = None
        if results:
            model_name = facts.model_name

        metrics: list[str] = []
        if self.result is not None:
            metrics = sorted(self.result.metrics.keys() - {"loss"})

        # The Hub shows a model on the page of one task: the first that has a page.
        pipeline_tag = None
        for task in facts.tasks:
            if task in TASK_NAMES and task != _TASK_WITHOUT_PAGE:
                pipeline_tag = task
                break

        sources = [*facts.training_sources, *facts.sources]
        datasets = dict.fromkeys(source.tag for source in sources if source.tag is not None)
        return ModelCardData(
            library_name=facts.library,
            language=list(facts.language) or None,
            license=facts.license,
            base_model=facts.base_model,
            tags=list(facts.tags),
            pipeline_tag=pipeline_tag,
            datasets=list(datasets) or None,
            metrics=metrics or None,
            model_name=model_name,
            eval_results=results or None,
        )

    @property
    def result(self) -> Evaluation | None:
        """Return the evaluation of the saved model, which is that of the last or of the best step.

        If that step was not evaluated during the training, the result is the last evaluation after
        the training, or else the last one during it.
        """
        saved_step = self.facts.chosen_step
        if saved_step is None:
            saved_step = self.facts.steps

        # Prefer evaluations during the training, because the script may have changed the model
        # afterwards.
        during_training: list[Evaluation] = []
        after_training: list[Evaluation] = []
        at_saved_step: list[Evaluation] = []
        for evaluation in self.evaluations:
            if evaluation.after_training:
                after_training.append(evaluation)
                continue
            during_training.append(evaluation)
            if evaluation.step == saved_step:
                at_saved_step.append(evaluation)

        candidates = at_saved_step or after_training or during_training
        if not candidates:
            return None
        return candidates[-1]

    def _eval_results(self) -> Iterator[EvalResult]:
        """Yield a result for each task, dataset and metric."""
        if self.result is None:
            return
        for task in self.facts.tasks:
            for source in self.facts.sources:
                yield from _results_on(task, source, self.result.metrics)


def _results_on(task: str, source: DataSource, metrics: dict[str, float]) -> Iterator[EvalResult]:
    """Yield a result of a task for each finite metric of a dataset that has a tag."""
    from huggingface_hub import EvalResult

    if source.tag is None:
        return
    for name, value in metrics.items():
        # The Hub does not accept NaN or infinity.
        if not math.isfinite(value):
            continue
        yield EvalResult(
            task_type=task,
            task_name=TASK_NAMES.get(task, _heading(task.replace("-", "_"))),
            dataset_type=source.tag,
            dataset_name=source.name,
            dataset_config=source.config,
            dataset_split=source.split,
            dataset_args=source.args,
            metric_type=name,
            metric_name=_heading(name),
            metric_value=value,
        )


def _draw_losses(facts: CardFacts, folder: Path) -> bool:
    """Draw the loss curve into a file, and return whether it was drawn."""
    try:
        picture = draw_loss_curve(facts.log_history, "svg")
        if picture is not None:
            write_atomically(folder / PICTURE_NAME, picture)
    except Exception as error:
        # Continue without the picture, because the card also lists the losses as numbers.
        _warn_once(f"The model card has no loss curve: {type(error).__name__}: {error}")
        return False
    return picture is not None


@functools.cache
def _warn_once(message: str) -> None:
    """Log a warning, unless it was logged for an earlier card.

    Uploads during a training write many cards.
    """
    logger.warning(message)


def _tags_of(card: Path) -> list[object]:
    """Return the tags of an existing card; empty if it cannot be read."""
    from huggingface_hub import ModelCard as HubCard

    if not card.is_file():
        return []
    try:
        metadata_of_card = HubCard.load(card, ignore_metadata_errors=True).data
        return list(metadata_of_card.get("tags") or [])
    except Exception as error:
        # Users edit cards, so their metadata may have any form.
        logger.warning(
            "The tags of %s are lost in the new card: its metadata cannot be read (%s).",
            card,
            error,
        )
        return []


def _versions() -> Iterator[tuple[str, str]]:
    """Yield names and versions of the packages that the training used."""
    yield "Python", platform.python_version()
    for name in (*_PACKAGES, *filter(loaded, _OPTIONAL_PACKAGES)):
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            # A package that is imported from a source folder has no metadata.
            continue


# Functions for the template.


def _heading(name: str) -> str:
    """Return a name such as `f1_macro` as a heading."""
    words = name.replace("_", " ").strip()
    return words[:1].upper() + words[1:]


def _number(value: float | None) -> str:
    """Format a number with few digits; None is empty."""
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    # Use significant digits for very small and very large numbers.
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.4g}"
    return f"{value:.4f}".rstrip("0").rstrip(".")


def _cell(text: object) -> str:
    """Return text for a cell of a table in Markdown."""
    one_line = " ".join(str(text).split())
    return one_line.replace("|", "\\|")
