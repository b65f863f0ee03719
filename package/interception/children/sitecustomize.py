"""Switch import interception on at the first import of transformers, if the environment asks."""

from __future__ import annotations

# Every Python process of a served script runs this file at startup, so it imports only modules that
# Python has already loaded.
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

# Variables of `interception/environment.py` and `facade/arguments/sweep_trial.py`, repeated here
# because importing those modules would slow down the start of every process.
_INSTALL = "LIGHTRAINER_INSTALL"
_RECORDER = "LIGHTRAINER_RECORDER"
_TRIAL = "LIGHTRAINER_TRIAL"


class WaitForTransformers:
    """A finder that switches the interception on at the first import of transformers."""

    is_of_lightrainer = True

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of `transformers`; None for any other module.

        Works like `importlib.abc.MetaPathFinder.find_spec`.
        """
        if name.partition(".")[0] != "transformers":
            return None
        if cls in sys.meta_path:
            sys.meta_path.remove(cls)
        from importlib import import_module

        # A child process may run another Python, without lightrainer. It then imports the real
        # transformers.
        try:
            switch = import_module("lightrainer.interception.switch")
        except ImportError:
            return None
        finder = switch.install()
        finder.serves_from_the_start = True
        return finder.find_spec(name, path, target)


def _load_hidden_module() -> None:
    """Run the environment's own `sitecustomize`, which this one hides, if there is one."""
    this_folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or os.curdir) != this_folder]
    spec = None
    for finder in sys.meta_path:
        spec = finder.find_spec("sitecustomize", None)
        if spec is not None:
            break
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec

    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _run_file(path: str) -> None:
    """Run the file of a lightrainer command in this process, without importing lightrainer."""
    with open(path, encoding="utf-8") as stream:
        code = compile(stream.read(), path, "exec")
    exec(code, {"__name__": "lightrainer_recorder", "__file__": path})


def _apply_trial_to_parsers(script: str) -> None:
    """Make argparse apply the values of a sweep's trial to the options of its script.

    Args:
        script: the path of the script; programs that it starts are not changed.
    """
    if not sys.argv or os.path.abspath(sys.argv[0]) != script:
        return
    from argparse import ArgumentParser

    original = ArgumentParser.parse_known_args

    def parse_known_args(
        self: ArgumentParser, args: Sequence[str] | None = None, namespace: Namespace | None = None
    ) -> tuple[Namespace, list[str]]:
        from lightrainer.facade.arguments.trial_options import parse_with_trial

        return parse_with_trial(original, self, args, namespace)

    ArgumentParser.parse_known_args = parse_known_args  # type: ignore[method-assign, assignment] - replaces a method of the standard library


def _start() -> None:
    """Run a recorder, apply a trial and intercept imports, as the environment variables ask."""
    recorder = os.environ.get(_RECORDER)
    if recorder:
        _run_file(recorder)

    if _TRIAL in os.environ:
        from json import loads

        trial = loads(os.environ[_TRIAL])
        _apply_trial_to_parsers(trial["script"])

    if os.environ.get(_INSTALL, "0") in ("", "0"):
        return
    sys.meta_path.insert(0, WaitForTransformers)


if __name__ == "sitecustomize":
    _load_hidden_module()
    _start()
