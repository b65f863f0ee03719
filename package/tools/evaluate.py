"""The command `evaluate`: run a script so that its Trainer evaluates a checkpoint instead of
training.
"""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from .changed_run import add_script, run_changed, write_result
from .command_line import CommandParser, table

_DESCRIPTION = """\
Run a script so that its Trainer evaluates a checkpoint with the script's own model, data and
metrics: the first `train` becomes `evaluate` with the weights of the checkpoint, and ends the
script; where the script calls `evaluate` itself, the weights are loaded before. Nothing is written
into the folders of the run: output_dir is a scratch folder, and nothing is saved, uploaded or
tracked. The metrics go to the standard output, what the script prints to stderr.
"""


def evaluate(words: Sequence[str]) -> int:
    """Print the metrics of a checkpoint.

    Args:
        words: options, the checkpoint, the script, and its arguments.

    Returns:
        The exit status: 0, 1 if the script fails or evaluates nothing, 2 for a wrong command line.
    """
    parser = CommandParser(
        "evaluate",
        _DESCRIPTION,
        "Example: lightrainer evaluate out/checkpoint-500 train.py --per_device_eval_batch_size 64",
        "lightrainer evaluate [options] CHECKPOINT SCRIPT [ARGUMENTS]",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a folder with the weights")
    add_script(parser)
    given = parser.parse_args(words)
    if not os.path.isfile(given.script):
        parser.error(f"{given.script}: there is no such script.")
    from ..lightning_modules import checkpoints

    if found := checkpoints.problems(given.checkpoint, training_state=False):
        parser.error(
            f"{given.checkpoint} cannot be evaluated: {'; '.join(found)}. Name a folder "
            "checkpoint-<step>."
        )
    metrics = run_changed("evaluate", given, {}, checkpoint=os.path.abspath(given.checkpoint))
    if metrics is None:
        return 1
    print(
        json.dumps(metrics, indent=2)
        if given.json
        else "\n".join(table([("metric", "value"), *metrics.items()]))
    )
    return 0


def change(trainer_class: Any, settings: dict[str, Any]) -> None:
    """Let a class of Trainers evaluate the checkpoint of the settings instead of training."""
    from ..callbacks import TrainerState
    from ..lightning_modules.checkpoints import load_weights

    original, loaded = trainer_class.evaluate, []
    saved_state = os.path.join(settings["checkpoint"], "trainer_state.json")

    def load(trainer: Any) -> None:
        if trainer not in loaded:
            loaded.append(trainer)
            load_weights(trainer.model, settings["checkpoint"])
            # The epoch is among the metrics; weights alone have none.
            trainer.state.epoch = None
            if os.path.isfile(saved_state):
                trainer.state.epoch = TrainerState.load_from_json(saved_state).epoch

    def evaluate_loaded(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        load(trainer)
        metrics = original(trainer, *args, **kwargs)
        write_result(trainer, settings, metrics)
        return metrics

    def train(
        trainer: Any,
        resume_from_checkpoint: Any = None,
        trial: Any = None,
        ignore_keys_for_eval: Any = None,
    ):
        if (
            trainer.eval_dataset is None
            and type(trainer).get_eval_dataloader is trainer_class.get_eval_dataloader
        ):
            raise SystemExit(
                "lightrainer evaluate: the Trainer has no eval_dataset. Pass one to it, with its "
                "metrics."
            )
        write_result(trainer, settings, trainer.evaluate(ignore_keys=ignore_keys_for_eval))
        raise SystemExit(0)

    trainer_class.evaluate, trainer_class.train = evaluate_loaded, train
