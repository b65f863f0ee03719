"""Record the results of a compared script; run by the `sitecustomize` of `interception/children`.

The recorder seeds the random generators, keeps output folders within the folder of the side, and
records the results of `train`, `evaluate` and `predict`. It imports neither lightrainer nor any
library before the script does: transformers has to run as if lightrainer were not installed.
"""

from __future__ import annotations

import functools
import json
import os
import random
import sys
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    # The Trainer and the arguments of either library. Their types cannot be imported here.
    AnyTrainer = Any
    AnyArguments = Any

MODULES = {
    "reference": ("transformers.training_args", "transformers.trainer"),
    "lightrainer": (
        "lightrainer.facade.arguments.training_arguments",
        "lightrainer.facade.trainer.trainer",
    ),
}
"""The modules with `TrainingArguments` and `Trainer` of each side."""
_SETTINGS = json.loads(os.environ.get("LIGHTRAINER_COMPARE", "{}"))
"""The arguments of the `Recorder` of this process."""


class Recorder:
    """Records what the Trainers of one process do.

    Args:
        side: `reference` or `lightrainer`.
        folder: the folder of the side.
    """

    def __init__(self, side: str, folder: str) -> None:
        self.side = side
        self.folder = Path(folder)
        self.calls: list[dict[str, Any]] = []
        self.output_folders: list[str] = []
        self._depth = 0
        """Number of nested recorded calls: `train` may call `evaluate`."""

    def start(self) -> None:
        """Seed the random generators, and patch modules when the script imports them."""
        random.seed(0)
        arguments_module, trainer_module = MODULES[self.side]
        patches = {
            arguments_module: self._patch_arguments,
            trainer_module: self._patch_trainer,
            "numpy.random": _seed_numpy,
        }
        sys.meta_path.insert(0, PatchingFinder(patches))

    def _patch_arguments(self, module: Any) -> None:
        """Keep output folders within the folder of this side, and prevent uploads."""
        original = module.TrainingArguments.__post_init__

        @functools.wraps(original)
        def __post_init__(args: AnyArguments) -> None:  # noqa: N807 - replaces that method
            args.output_dir = self._folder_inside(args.output_dir)
            args.push_to_hub = False
            original(args)

        module.TrainingArguments.__post_init__ = __post_init__

    def _folder_inside(self, output_dir: str | None) -> str:
        """Return the output folder, moved into the folder of this side if it is outside."""
        folder = Path(os.path.abspath(output_dir or "trainer_output"))
        if self.folder not in folder.parents:
            folder = self.folder / "work" / folder.name
        self.output_folders.append(str(folder))
        return str(folder)

    def _patch_trainer(self, module: Any) -> None:
        """Record each call of `train`, `evaluate` and `predict`."""
        for name in ("train", "evaluate", "predict"):
            method = getattr(module.Trainer, name)
            setattr(module.Trainer, name, self._with_recording(name, method))

    def _with_recording(self, name: str, method: Callable[..., object]) -> Callable[..., object]:
        """Wrap a method to record its calls, except those from another recorded method."""

        @functools.wraps(method)
        def call(trainer: AnyTrainer, *args: object, **kwargs: object) -> Any:
            self._depth += 1
            try:
                result = method(trainer, *args, **kwargs)
            finally:
                self._depth -= 1
            if self._depth == 0 and os.environ.get("RANK", "0") == "0":
                self._record(name, trainer, result)
            return result

        return call

    def _record(self, name: str, trainer: AnyTrainer, result: object) -> None:
        """Record a call of a Trainer's method, with its result."""
        # `train` and `predict` return tuples with metrics.
        metrics = result if isinstance(result, dict) else getattr(result, "metrics", {})
        entry = {"call": name, "metrics": metrics}
        if name == "train":
            entry["log_history"] = list(trainer.state.log_history)
            entry["weights"] = self._save_weights(trainer)
        self.calls.append(entry)
        self._write_record()

    def _save_weights(self, trainer: AnyTrainer) -> str | None:
        """Save the model, and return the name of the file; None if the model is sharded."""
        args = trainer.args
        if args.world_size > 1 and (args.fsdp or args.deepspeed):
            return None
        import torch

        tensors = {}
        for name, value in trainer.model.state_dict().items():
            if isinstance(value, torch.Tensor):
                tensors[name] = value.detach().cpu()
        path = self.folder / f"weights-{os.getpid()}-{len(self.calls)}.pt"
        torch.save(tensors, path)
        return path.name

    def _write_record(self) -> None:
        """Write everything that this process has recorded."""
        record = {
            "calls": self.calls,
            "outputs": list(dict.fromkeys(self.output_folders)),
            "knows_lightrainer": "lightrainer" in sys.modules,
            "transformers": getattr(sys.modules.get("transformers"), "__version__", None),
        }
        path = self.folder / f"record-{os.getpid()}.json"
        path.write_text(json.dumps(record, default=_to_json), encoding="utf-8")


class PatchingFinder:
    """A finder that patches certain modules after they are loaded.

    Args:
        patches: for the name of each module, the function to call on it.
    """

    def __init__(self, patches: dict[str, Callable[[ModuleType], None]]) -> None:
        self._patches = patches

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module to patch; None for any other module.

        Works like `importlib.abc.MetaPathFinder.find_spec`.
        """
        patch = self._patches.pop(name, None)
        if patch is None:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(name, path, target)
            if spec is None:
                continue
            if spec.loader is not None:
                _patch_after_loading(spec.loader, patch)
            return spec
        return None


def _patch_after_loading(loader: Any, patch: Callable[[ModuleType], None]) -> None:
    """Make a loader call a function on the module that it has loaded."""
    original = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        original(module)
        patch(module)

    loader.exec_module = exec_module


def _seed_numpy(module: Any) -> None:
    module.seed(0)


def _to_json(value: Any) -> object:
    """Convert a number of numpy or torch to a Python number, anything else to text."""
    try:
        return value.item()
    except (AttributeError, ValueError, RuntimeError):
        return str(value)


if _SETTINGS:
    Recorder(**_SETTINGS).start()
