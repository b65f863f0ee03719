"""A training with data workers, in whose third step a signal goes to all processes of the group.

    signalled_group_script.py OUTPUT_FOLDER on|off|spawn SIGNAL

How the workers are started, or that the Trainer does not listen to signals, is the second word.
"""

import atexit
import os
import sys

import lightrainer
from helpers.trainer.tiny_trainings import At, make_trainer, points, with_trainer_in_callbacks

FORKED = {"dataloader_num_workers": 2, "dataloader_multiprocessing_context": "fork"}


def main(folder: str, how: str, number: str) -> None:
    if how == "off":
        lightrainer.Trainer.checkpoint_on_signals = ()
    atexit.register(lambda: print("left in order", flush=True))
    options = {"train_dataset": points(4000), "save_strategy": "steps"}
    options |= (
        {"dataloader_num_workers": 1, "dataloader_multiprocessing_context": "spawn"}
        if how == "spawn"
        else FORKED
    )
    send = At("on_step_end", lambda *_: os.killpg(0, int(number)), 3)
    trainer = with_trainer_in_callbacks(make_trainer(folder, callbacks=[send], **options))
    try:
        trainer.train()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        raise
    finally:
        print("finally", flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
