"""A study in two processes in which one fails while the other waits for it, for `torchrun`."""

import os
import sys

import optuna
import torch
import torch.distributed as dist

from lightrainer.lightning_modules import optimize_together
from lightrainer.lightning_modules.search.channel import Channel

RANK = int(os.environ["RANK"])


def objective(trial):
    if trial.number == 1 and RANK == 1:
        raise ArithmeticError("in the middle of a step")
    dist.all_reduce(torch.ones(1))
    return float(trial.number)


dist.init_process_group("gloo")
study = optuna.create_study() if RANK == 0 else None
optimize_together(
    study, objective, n_trials=3, catch=ArithmeticError, channel=Channel(seconds_to_fail=2)
)
sys.exit(0)
