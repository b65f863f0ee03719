"""Switch import interception on and off in the running process."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import logging
import os
import sys
from functools import partial
from typing import Any, NamedTuple

# These are light; the heavy modules beside them are loaded on use.
from ..facade.arguments import old_names
from ..lightning_modules.common import followed, versions
from . import environment, report
from .finder import LIBRARY, Finder
from .loaded import Replaced
from .stand_in import package


class _Served(NamedTuple):
    finder: Finder
    replaced: Replaced


_served: _Served | None = None


def install(children: bool = True) -> Finder:
    """Serve `transformers.Trainer` and the other names of the Trainer API from this package.

    Where the library is installed, everything else remains its own. Where it is not, a stand-in has
    what a script needs that brings its own model. Best called before anything imports the library;
    what is loaded already is replaced where that is safe. Calling it again changes nothing.

    Args:
        children: Serve in Python processes that are started from now on, too; by environment
            variables.

    Returns:
        The finder that is now first in `sys.meta_path`.

    Warns:
        UserWarning: Some modules hold names that they imported before; says which.
    """
    global _served
    if children:
        environment.switch_on(os.environ)
    if (
        os.environ.get(environment.VERBOSE) == str(os.getpid())
        and os.environ.get("RANK", "0") == "0"
    ):
        report.at_the_end()
    if _served is None:
        _served = _Served(Finder(), Replaced())
        # One that waits for the first import is not needed any more.
        others = [
            finder for finder in sys.meta_path if not getattr(finder, "is_of_lightrainer", False)
        ]
        sys.meta_path[:] = [_served.finder, *others]
        _forward_logs()
        old_names.accept()
        followed.serve(versions.installed(LIBRARY))
        _served.replaced.replace()
    return _served.finder


def uninstall() -> None:
    """Undo `install`: what is imported from now on is the library's own again, or not there.

    Modules that imported served names keep them. Nothing happens where nothing is served.
    """
    global _served
    environment.switch_off(os.environ)
    if _served is None:
        return
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not _served.finder]
    package.forget()
    _served.replaced.put_back()
    _keep_logs()
    old_names.accept(False)
    followed.serve(None)
    _served = None


def installed() -> bool:
    """Return whether imports are intercepted in this process."""
    return _served is not None


def load_ipython_extension(ipython: Any) -> None:
    """Run `install` for `%load_ext lightrainer` in a notebook."""
    install()


def unload_ipython_extension(ipython: Any) -> None:
    """Run `uninstall` for `%unload_ext lightrainer` in a notebook."""
    uninstall()


LOGGERS = {
    "lightrainer": "transformers.trainer",
    "lightrainer.callbacks": "transformers.trainer_callback",
    "lightrainer.callbacks.jit_checkpoint": "transformers.trainer_jit_checkpoint",
    "lightrainer.callbacks.loggers": "transformers.integrations.integration_utils",
    "lightrainer.callbacks.reporting": "transformers.integrations.integration_utils",
    "lightrainer.facade.parser.argument_parser": "transformers.hf_argparser",
    "lightrainer.facade.arguments": "transformers.training_args",
    "lightrainer.facade.distributed.process": "transformers.training_args",
    "lightrainer.facade.trainer.seq2seq": "transformers.trainer_seq2seq",
    "lightrainer.lightning_modules.checkpoints": "transformers.trainer_utils",
    "lightrainer.lightning_modules.data.collators": "transformers.data.data_collator",
    "lightrainer.lightning_modules.optim": "transformers.trainer_optimizer",
    "lightrainer.lightning_modules.optim.schedules": "transformers.optimization",
    "lightrainer.lightning_modules.common.seeding": "transformers.trainer_utils",
}
"""Loggers of this package with their counterparts in the reference; a logger that is absent uses
its nearest parent.
"""


class _Forward(logging.Handler):
    """Logs a record through the methods of another logger, since scripts may have replaced them."""

    def __init__(self, name: str, parent: logging.Logger | None) -> None:
        super().__init__()
        self.target = logging.getLogger(name)
        self.parent = parent

    def emit(self, record: logging.LogRecord) -> None:
        say = getattr(self.target, record.levelname.lower(), None) or partial(
            self.target.log, record.levelno
        )
        say(
            record.getMessage(),
            exc_info=record.exc_info,
            stack_info=bool(record.stack_info),
            stacklevel=2,
        )


def _forward_logs() -> None:
    """Forward our loggers to those of the reference, whose levels then apply."""
    # All are made first: making a logger later would put it between another one and the parent that
    # is set here.
    for logger in [logging.getLogger(name) for name in sorted(LOGGERS)]:
        handler = _Forward(LOGGERS[logger.name], logger.parent)
        logger.addHandler(handler)
        logger.parent = handler.target
        logger.propagate = False
    _forget_levels()


def _keep_logs() -> None:
    """Undo `_forward_logs`."""
    for logger in map(logging.getLogger, LOGGERS):
        for handler in [one for one in logger.handlers if isinstance(one, _Forward)]:
            logger.removeHandler(handler)
            logger.parent = handler.parent
            logger.propagate = True
    _forget_levels()


def _forget_levels() -> None:
    """Clear the cached levels of all loggers, which setting a level does."""
    logging.root.setLevel(logging.root.level)
