"""Model card of a training: metadata of the Hub, and text."""

from __future__ import annotations

import functools
import logging
import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...callbacks.report.pictures import draw_loss_curve
from .card_text import PICTURE_NAME, Evaluation, evaluations, pretty, text_of
from .facts import TASK_NAMES, CardFacts
from .pushing import CARD_NAME

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCardData

logger = logging.getLogger(__name__)

_METRICS_OF_THE_HUB = """
    accuracy bleu cer chrf exact_match f1 mae matthews_correlation mean_iou mse pearsonr perplexity
    precision r_squared recall rouge sacrebleu seqeval spearmanr squad ter wer
"""
_ROUGE = re.compile(r"rouge(1|2|l|lsum)")
_SHOWN_ELSEWHERE = "text2text-generation"
"""Task with results on the Hub, but without a page."""


class ModelCard:
    """As `transformers.modelcard.TrainingSummary`, with the losses as a picture and all evaluations as a table.

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
        card = folder / CARD_NAME
        kept = tuple(tag for tag in _tags_of(card) if tag not in facts.tags)
        described = ModelCard(replace(facts, tags=(*facts.tags, *kept)))
        _write(card, described.text(picture=_draw(facts, folder)).encode())

    def text(self, *, picture: bool = False) -> str:
        """Return the whole card.

        Args:
            picture: `loss_curve.svg` lies beside it.
        """
        metadata = self.metadata().to_yaml()
        body = text_of(self.facts, self.evaluations, self.result, picture=picture)
        return f"---\n{metadata}\n---\n{body}"

    def metadata(self) -> ModelCardData:
        """Return the metadata; `model-index` needs a task, a dataset and a metric, else the Hub refuses it."""
        from huggingface_hub import ModelCardData

        facts, results = self.facts, list(self._eval_results())
        measured = self.result.metrics if self.result else {}
        known = sorted({result.metric_type for result in results} | set(map(_metric_type, measured)))
        pages = [task for task in facts.tasks if task in TASK_NAMES and task != _SHOWN_ELSEWHERE]
        named = (source.tag for source in (*facts.training_sources, *facts.sources))
        tags = list(dict.fromkeys(tag for tag in named if tag is not None))
        return ModelCardData(
            library_name=facts.library,
            language=list(facts.language) or None,
            license=facts.license,
            base_model=facts.base_model,
            tags=list(facts.tags),
            pipeline_tag=pages[0] if pages else None,
            datasets=tags or None,
            metrics=[name for name in known if name in _METRICS_OF_THE_HUB.split()] or None,
            model_name=facts.model_name if results else None,
            eval_results=results or None,
        )

    @property
    def result(self) -> Evaluation | None:
        """Return the evaluation of the saved model: at the last or best step of the training.

        Without one at that step, an evaluation after the training; else the last one.
        """
        facts, trained = self.facts, [each for each in self.evaluations if not each.after_training]
        step = facts.steps if facts.chosen_step is None else facts.chosen_step
        at_step = [each for each in trained if each.step == step]
        later = [each for each in self.evaluations if each.after_training]
        found = at_step or later or trained
        return found[-1] if found else None

    def _eval_results(self) -> Iterator[EvalResult]:
        """Yield a result for each task, dataset and metric."""
        from huggingface_hub import EvalResult

        measured = self.result.metrics if self.result else {}
        for task in self.facts.tasks:
            for source in self.facts.sources:
                for name, value in measured.items():
                    if source.tag is None or not name.startswith(source.prefix) or not math.isfinite(value):
                        continue
                    own = name.removeprefix(source.prefix)
                    yield EvalResult(
                        task_type=task,
                        task_name=TASK_NAMES.get(task, pretty(task.replace("-", "_"))),
                        dataset_type=source.tag,
                        dataset_name=source.name,
                        dataset_config=source.config,
                        dataset_split=source.split,
                        dataset_args=source.args,
                        metric_type=_metric_type(own),
                        metric_name=pretty(own),
                        metric_value=value,
                    )


def _metric_type(name: str) -> str:
    lowered = name.lower().replace(" ", "_")
    return "rouge" if _ROUGE.fullmatch(lowered) else lowered


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
    """Log a warning unless an earlier card had the same: uploads during a training write many cards."""
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
        logger.warning("The tags of %s are not kept, as its metadata cannot be read (%s).", card, error)
        return []
