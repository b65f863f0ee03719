"""Trainings that are reported to Comet, one with each library, forked from here:
`python comet_script.py FOLDER`.
"""

import os
import sys
from functools import partial
from importlib import import_module
from pathlib import Path

sys.path.append(os.environ["BESIDE"])  # last, so that only what is missing is taken from there

import comet_ml  # noqa: F401 - wants to be the first
import transformers.trainer  # noqa: F401 - once, for both forks

import lightrainer.facade.trainer.lightning_trainer
import lightrainer.facade.trainer.trainer_module  # noqa: F401 - not again in each fork
from helpers.loggers.reported_training import make_trainer, points
from helpers.processes.forking import forked


def train(name: str, folder: Path) -> None:
    os.environ["COMET_OFFLINE_DIRECTORY"] = str(folder / name)
    trainer = make_trainer(
        import_module(name), folder / "out", report_to="comet_ml", run_name="named"
    )
    trainer.train()
    trainer.evaluate()
    trainer.predict(points(4))


if __name__ == "__main__":
    below = Path(sys.argv[1])
    for library in ("transformers", "lightrainer"):
        run = partial(train, library, below)
        done = forked(run, log=below / "log.txt", seconds=120, as_a_script=True)
        if done.codes != [0]:
            sys.exit(done.said)
