"""The command `evaluate`: run a script, but evaluate a checkpoint instead of training."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from .changed_run import read_options, run_changed, write_result
from .command_line import CommandParser, table

if TYPE_CHECKING:
    from ..facade import Trainer

_DESCRIPTION = """\
Run a script so that its Trainer evaluates a checkpoint, with the model, data and metrics of the
script. The first call of `train` evaluates the weights of the checkpoint instead, and ends the
script; if the script calls `evaluate` itself, the weights are loaded before. The folders of the run
are not changed: output_dir is a scratch folder, and nothing is saved, uploaded or tracked. The
metrics go to the standard output, the output of the script to stderr.
"""


def evaluate(words: Sequence[str]) -> int:
    """Print the metrics of a checkpoint.

    Args:
        words: options, the checkpoint, the script, and arguments for it.

    Returns:
        The exit status: 0 for success, 1 if the script fails or evaluates nothing. An invalid
        command line exits with status 2.
    """
    parser = CommandParser(
        "evaluate",
        _DESCRIPTION,
        "Example: lightrainer evaluate out/checkpoint-500 train.py --bf16_full_eval",
        "lightrainer evaluate [options] CHECKPOINT SCRIPT [ARGUMENTS]",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a folder with the weights")
    options = read_options(parser, words)
    from ..lightning_modules import checkpoints

    # Check the checkpoint now: the script may run for minutes before it is loaded.
    problems = checkpoints.problems(options.checkpoint, training_state=False)
    if problems:
        parser.error(
            f"{options.checkpoint} cannot be evaluated: {'; '.join(problems)}. Pass a folder "
            "checkpoint-<step>."
        )

    checkpoint = os.path.abspath(options.checkpoint)
    metrics, status = run_changed("evaluate", options, {}, checkpoint=checkpoint)
    if metrics is None:
        return status
    if options.json:
        print(json.dumps(metrics, indent=2))
    else:
        rows = [("metric", "value"), *metrics.items()]
        print("\n".join(table(rows)))
    return status


def change(trainer_class: type[Trainer], settings: dict[str, Any]) -> None:
    """Make a Trainer class evaluate a checkpoint instead of training.

    Args:
        trainer_class: the class, changed in place.
        settings: the entry `checkpoint` is the folder of the checkpoint.
    """
    from ..callbacks import TrainerState
    from ..lightning_modules.checkpoints import load_weights

    checkpoint: str = settings["checkpoint"]
    original = trainer_class.evaluate
    loaded_trainers: list[Trainer] = []

    def load_checkpoint(trainer: Trainer) -> None:
        """Load the weights into the model of a Trainer, unless this was done before."""
        if trainer in loaded_trainers:
            return
        loaded_trainers.append(trainer)
        load_weights(trainer.model, checkpoint)

        # The Trainer adds the epoch to the metrics; a folder with only weights does not store it.
        trainer.state.epoch = None
        state_file = os.path.join(checkpoint, "trainer_state.json")
        if os.path.isfile(state_file):
            trainer.state.epoch = TrainerState.load_from_json(state_file).epoch

    def evaluate_checkpoint(self: Trainer, *args: object, **kwargs: object) -> dict[str, float]:
        load_checkpoint(self)
        metrics = original(self, *args, **kwargs)
        write_result(self, settings, metrics)
        return metrics

    def train(
        self: Trainer,
        resume_from_checkpoint: str | bool | None = None,
        trial: object = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> NoReturn:
        # A script without eval_dataset may override the method that creates the dataloader.
        is_overridden = type(self).get_eval_dataloader is not trainer_class.get_eval_dataloader
        if self.eval_dataset is None and not is_overridden:
            raise SystemExit(
                "lightrainer evaluate: the Trainer has eval_dataset=None. Pass a dataset to it, "
                "and compute_metrics if you want metrics."
            )
        metrics = self.evaluate(ignore_keys=ignore_keys_for_eval)
        write_result(self, settings, metrics)
        raise SystemExit(0)

    trainer_class.evaluate = evaluate_checkpoint
    trainer_class.train = train
