"""Forward log records of this package to the loggers of the reference, such as `transformers.trainer`."""

from __future__ import annotations

import logging
from functools import partial

NAMES = {
    "lightrainer": "transformers.trainer",
    "lightrainer.callbacks": "transformers.trainer_callback",
    "lightrainer.callbacks.jit_checkpoint": "transformers.trainer_jit_checkpoint",
    "lightrainer.callbacks.loggers": "transformers.integrations.integration_utils",
    "lightrainer.callbacks.reporting": "transformers.integrations.integration_utils",
    "lightrainer.facade": "transformers.trainer",
    "lightrainer.facade.parser.argument_parser": "transformers.hf_argparser",
    "lightrainer.facade.arguments": "transformers.training_args",
    "lightrainer.facade.hub": "transformers.trainer",
    "lightrainer.facade.distributed.process": "transformers.training_args",
    "lightrainer.facade.trainer": "transformers.trainer",
    "lightrainer.facade.trainer.seq2seq": "transformers.trainer_seq2seq",
    "lightrainer.lightning_modules": "transformers.trainer",
    "lightrainer.lightning_modules.checkpoints": "transformers.trainer_utils",
    "lightrainer.lightning_modules.data.collators": "transformers.data.data_collator",
    "lightrainer.lightning_modules.optim": "transformers.trainer_optimizer",
    "lightrainer.lightning_modules.optim.schedules": "transformers.optimization",
    "lightrainer.lightning_modules.common.seeding": "transformers.trainer_utils",
}
"""Loggers of this package with their counterparts in the reference; a logger that is absent uses its nearest parent."""


class _Forward(logging.Handler):
    """Logs a record through the methods of another logger, since scripts may have replaced them."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.target = logging.getLogger(name)

    def emit(self, record: logging.LogRecord) -> None:
        say = getattr(self.target, record.levelname.lower(), None) or partial(self.target.log, record.levelno)
        say(record.getMessage(), exc_info=record.exc_info, stack_info=bool(record.stack_info), stacklevel=2)


def forward() -> None:
    """Forward our loggers to those of the reference, whose levels then apply."""
    # All are made first: making a logger later would put it between another one and the parent that is set here.
    loggers = {name: logging.getLogger(name) for name in sorted(NAMES)}
    for name, logger in loggers.items():
        if any(isinstance(handler, _Forward) for handler in logger.handlers):
            continue
        handler = _Forward(NAMES[name])
        logger.addHandler(handler)
        logger.parent, logger.propagate = handler.target, False
    _forget_levels()


def forward_no_more() -> None:
    """Undo `forward`."""
    for name in sorted(NAMES):
        logger = logging.getLogger(name)
        for handler in [one for one in logger.handlers if isinstance(one, _Forward)]:
            logger.removeHandler(handler)
            logger.parent, logger.propagate = _parent(name), True
    _forget_levels()


def _parent(name: str) -> logging.Logger:
    above = name.rpartition(".")[0]
    return logging.getLogger(above) if above else logging.root


def _forget_levels() -> None:
    """Clear the cached levels of all loggers, which setting a level does."""
    logging.root.setLevel(logging.root.level)
