"""Switch import interception on where the environment asks for it, at the first import of a
served name.
"""

from __future__ import annotations

# Every Python process of a served script runs this at its start: nothing is imported that is not
# loaded already.
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ASKED_FOR = "LIGHTRAINER_INSTALL"
_SAYS_MORE = "LIGHTRAINER_VERBOSE"
_RECORDER = "LIGHTRAINER_RECORDER"
_TRIAL = "LIGHTRAINER_TRIAL"


class Waiting:
    """Finder that switches the interception on at the first import of a served module, and
    removes itself.
    """

    is_of_lightrainer = True

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        """As `importlib.abc.MetaPathFinder.find_spec`: None for everything that is not served."""
        if name.partition(".")[0] != "transformers":
            return None
        finder = cls.switch_on()
        return finder and finder.find_spec(name, path, target)

    @classmethod
    def switch_on(cls) -> Any:
        """Install the finder that serves; None where this Python has no lightrainer."""
        if cls in sys.meta_path:
            sys.meta_path.remove(cls)
        from importlib import import_module

        try:
            switch = import_module("lightrainer.interception.switch")
        except ImportError:
            return None
        finder = switch.install()
        finder.serves_from_the_start = True
        return finder


def _load_the_next() -> None:
    """Run the `sitecustomize` that this one hides, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or os.curdir) != here]
    specs = (finder.find_spec("sitecustomize", None) for finder in sys.meta_path)
    spec = next((found for found in specs if found is not None), None)
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec

    module = sys.modules["sitecustomize"] = module_from_spec(spec)
    spec.loader.exec_module(module)


def _run_beside(path: str) -> None:
    """Run a file of `lightrainer compare` in this process, without an import of lightrainer."""
    with open(path, encoding="utf-8") as stream:
        code = compile(stream.read(), path, "exec")
    exec(code, {"__name__": "lightrainer_recorder", "__file__": path})


def _give_values_of_trial(script: str) -> None:
    """Let the parser of a script that is a trial of a sweep give its options the trial's values."""
    if not sys.argv or os.path.abspath(sys.argv[0]) != script:
        return
    from argparse import ArgumentParser

    parse = ArgumentParser.parse_known_args

    def parse_known_args(parser: Any, args: Any = None, namespace: Any = None) -> Any:
        from lightrainer.facade.arguments.trial_options import parse_with_trial

        return parse_with_trial(parse, parser, args, namespace)

    ArgumentParser.parse_known_args = parse_known_args  # type: ignore[method-assign, assignment]


def _start() -> None:
    recorder = os.environ.get(_RECORDER)
    if recorder:
        _run_beside(recorder)
    if _TRIAL in os.environ:
        from json import loads

        _give_values_of_trial(loads(os.environ[_TRIAL])["script"])
    if os.environ.get(_ASKED_FOR, "0") in ("", "0"):
        return
    sys.meta_path.insert(0, Waiting)
    # Asked for at the start of this very process, so that the end of it has something to report.
    if os.environ.get(_SAYS_MORE) == str(os.getpid()):
        Waiting.switch_on()


if __name__ == "sitecustomize":
    _load_the_next()
    _start()
