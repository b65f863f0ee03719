"""Switch import interception on and off in the running process."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

# Both are light; the heavy modules beside them are loaded on use.
from ..facade.arguments import old_names
from ..lightning_modules.common import followed
from . import environment, logs, report
from .finder import Finder
from .loaded import Replaced
from .stand_in import availability_of_itself, package


class _Served(NamedTuple):
    finder: Finder
    replaced: Replaced


_served: _Served | None = None


def install(children: bool = True) -> Finder:
    """Serve `transformers.Trainer` and the other names of the Trainer API from this package.

    Where the library is installed, everything else remains its own. Where it is not, a stand-in has what a script
    needs that brings its own model. Best called before anything imports the library; what is loaded already is
    replaced where that is safe. Calling it again changes nothing.

    Args:
        children: Serve in Python processes that are started from now on, too; by environment variables.

    Returns:
        The finder that is now first in `sys.meta_path`.

    Warns:
        UserWarning: Some modules hold names that they imported before; says which.
    """
    global _served
    if children:
        environment.switch_on(os.environ)
    if os.environ.get(environment.VERBOSE) == str(os.getpid()) and os.environ.get("RANK", "0") == "0":
        report.at_the_end()
    if _served is None:
        _served = _Served(Finder(), Replaced())
        # One that waits for the first import is not needed any more.
        others = [finder for finder in sys.meta_path if not getattr(finder, "is_of_lightrainer", False)]
        sys.meta_path[:] = [_served.finder, *others]
        logs.forward()
        old_names.accept()
        followed.serve(_installed_version())
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
    availability_of_itself.say_no_more()
    _served.replaced.put_back()
    logs.forward_no_more()
    old_names.accept(False)
    followed.serve(None)
    _served = None


def _installed_version() -> str | None:
    """The version of the library whose names are served; None where a stand-in answers."""
    try:
        return version("transformers")
    except PackageNotFoundError:
        return None


def installed() -> bool:
    """Return whether imports are intercepted in this process."""
    return _served is not None


def load_ipython_extension(ipython: Any) -> None:
    """Run `install` for `%load_ext lightrainer` in a notebook."""
    install()


def unload_ipython_extension(ipython: Any) -> None:
    """Run `uninstall` for `%unload_ext lightrainer` in a notebook."""
    uninstall()
