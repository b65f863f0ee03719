"""Switch import interception on and off in the running process."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import functools
import logging
import os
import sys
from typing import TYPE_CHECKING, NamedTuple

# These modules are fast to import; slower ones are imported on use.
from ..facade.arguments import old_names
from ..lightning_modules.common import version_behavior, versions
from . import environment
from .finder import LIBRARY, Finder
from .loaded import LoadedModules
from .stand_in import package

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


class _Interception(NamedTuple):
    """The state of `install` in this process, which `uninstall` needs."""

    finder: Finder
    loaded_modules: LoadedModules


_interception: _Interception | None = None


def install(children: bool = True) -> Finder:
    """Serve `transformers.Trainer` and the other names of the Trainer API from this package.

    All other names still come from transformers if it is installed. If it is not, a stand-in
    provides the names that a script with its own model needs. Call this before anything imports
    transformers: modules of transformers that are already loaded are patched, but modules that
    imported the served names before keep the old objects. Calling it again changes nothing.

    Args:
        children: also serve the names in Python processes that are started from now on. They are
            told by environment variables.

    Returns:
        The finder, which is now first in `sys.meta_path`.

    Warns:
        UserWarning: modules hold objects that they imported before; the message lists them.
    """
    global _interception
    if children:
        environment.switch_on(os.environ)
    if _interception is not None:
        return _interception.finder

    # Also remove the finder that waited for the first import of transformers.
    _interception = _Interception(Finder(), LoadedModules())
    other_finders = [
        finder for finder in sys.meta_path if not getattr(finder, "is_of_lightrainer", False)
    ]
    sys.meta_path[:] = [_interception.finder, *other_finders]

    _forward_logs()
    old_names.set_old_names_accepted(True)
    version_behavior.serve(versions.installed(LIBRARY))
    _interception.loaded_modules.replace_names()
    return _interception.finder


def uninstall() -> None:
    """Undo `install`, so that imports get transformers itself again if it is installed.

    Modules that have imported served names keep them. Without a previous `install`, do nothing.
    """
    global _interception
    environment.switch_off(os.environ)
    if _interception is None:
        return
    our_finder = _interception.finder
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not our_finder]
    package.forget()
    _interception.loaded_modules.restore()
    _stop_forwarding_logs()
    old_names.set_old_names_accepted(False)
    version_behavior.serve(None)
    _interception = None


def installed() -> bool:
    """Return whether imports are intercepted in this process."""
    return _interception is not None


def load_ipython_extension(ipython: InteractiveShell) -> None:
    """Serve the names of transformers in a notebook: `%load_ext lightrainer`, see `install`.

    Args:
        ipython: the shell of the notebook.
    """
    install()


def unload_ipython_extension(ipython: InteractiveShell) -> None:
    """Stop serving the names of transformers in a notebook: `%unload_ext lightrainer`.

    Args:
        ipython: the shell of the notebook.
    """
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
"""Loggers of this package with their counterparts in transformers. A logger that is not listed uses
the counterpart of its nearest parent.
"""


class _ForwardingHandler(logging.Handler):
    """Forwards records to the methods of another logger, which scripts may have replaced.

    Args:
        target_name: the name of the other logger.
        original_parent: the parent of the logger that gets this handler.
    """

    def __init__(self, target_name: str, original_parent: logging.Logger | None) -> None:
        super().__init__()
        self.target = logging.getLogger(target_name)
        self.original_parent = original_parent

    def emit(self, record: logging.LogRecord) -> None:
        log = getattr(self.target, record.levelname.lower(), None)
        if log is None:
            # A custom level of a script may not have its own method.
            log = functools.partial(self.target.log, record.levelno)
        log(
            record.getMessage(),
            exc_info=record.exc_info,
            stack_info=bool(record.stack_info),
            stacklevel=2,
        )


def _forward_logs() -> None:
    """Forward our loggers to those of transformers, whose levels then apply."""
    # Create all loggers before setting any parent, because `logging` resets the parents of a new
    # logger's children.
    loggers = [logging.getLogger(name) for name in sorted(LOGGERS)]
    for logger in loggers:
        handler = _ForwardingHandler(LOGGERS[logger.name], logger.parent)
        logger.addHandler(handler)
        logger.parent = handler.target
        logger.propagate = False
    _clear_level_caches()


def _stop_forwarding_logs() -> None:
    """Undo `_forward_logs`."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        for handler in list(logger.handlers):
            if isinstance(handler, _ForwardingHandler):
                logger.removeHandler(handler)
                logger.parent = handler.original_parent
                logger.propagate = True
    _clear_level_caches()


def _clear_level_caches() -> None:
    """Clear the cached levels of all loggers."""
    # `setLevel` clears the caches of all loggers, and this call changes no level.
    logging.root.setLevel(logging.root.level)
