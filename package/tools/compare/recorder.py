"""The recorder of a compared script, which the `sitecustomize` of `interception/children` runs.

It seeds the generators, keeps output folders within the folder of the side, and records the results
of `train`, `evaluate` and `predict`. It imports nothing before the script does, and nothing of
lightrainer: transformers has to run as if lightrainer were not installed.
"""

from __future__ import annotations

import atexit
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

    import torch

    # Objects of either side; the types of transformers would need its import.
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
_RECORDED_ARGUMENTS = (
    "auto_find_batch_size",
    "disable_tqdm",
    "fp16",
    "fsdp",
    "deepspeed",
    "gradient_accumulation_steps",
    "label_smoothing_factor",
    "load_best_model_at_end",
    "resume_from_checkpoint",
    "save_strategy",
    "train_sampling_strategy",
    "world_size",
)
_SETTINGS = json.loads(os.environ.get("LIGHTRAINER_COMPARE", "{}"))


class Recorder:
    """Records what the Trainers of one process do.

    Args:
        side: `reference` or `lightrainer`.
        folder: the folder of the side.
        seed: for the generators of Python and NumPy.
    """

    def __init__(self, side: str, folder: str, seed: int) -> None:
        self.side = side
        self.folder = Path(folder)
        self.seed = seed
        self.calls: list[dict[str, Any]] = []
        self.outputs: list[str] = []
        self._depth = 0
        """How many recorded methods are running: one may call another."""
        self._first_step: int | None = None
        self._gradient_norm: float | None = None

    def start(self) -> None:
        """Seed the generators, and patch modules when they are imported."""
        random.seed(self.seed)
        arguments_module, trainer_module = MODULES[self.side]
        patches = {
            arguments_module: self._patch_arguments,
            trainer_module: self._patch_trainer,
            "numpy.random": self._seed_numpy,
        }
        sys.meta_path.insert(0, PatchingFinder(patches))

    def _seed_numpy(self, module: Any) -> None:
        module.seed(self.seed)

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
        """Return the output folder, or one with the same name within the folder of this side."""
        folder = Path(os.path.abspath(output_dir or "trainer_output"))
        if self.folder not in folder.parents:
            folder = self.folder / "work" / folder.name
        self.outputs.append(str(folder))
        return str(folder)

    def _patch_trainer(self, module: Any) -> None:
        """Record calls and gradients."""
        for name in ("train", "evaluate", "predict"):
            method = getattr(module.Trainer, name)
            setattr(module.Trainer, name, self._with_recording(name, method))
        module.Trainer.training_step = self._with_gradient_norm(module.Trainer.training_step)

    def _with_gradient_norm(self, method: Callable[..., torch.Tensor]) -> Callable[..., object]:
        """Wrap `training_step` to keep the norm of the gradients of the first optimizer step.

        It is the norm before clipping. Both sides have the same weights at that step.
        """

        @functools.wraps(method)
        def training_step(trainer: AnyTrainer, *args: object, **kwargs: object) -> torch.Tensor:
            loss = method(trainer, *args, **kwargs)
            step = trainer.state.global_step
            if self._first_step is None:
                self._first_step = step
            if step == self._first_step and not _is_sharded(trainer.args):
                self._gradient_norm = _gradient_norm(trainer.model)
            return loss

        # With the attribute, lightrainer would take this for an override of the script.
        del training_step.__wrapped__
        return training_step

    def _with_recording(self, name: str, method: Callable[..., object]) -> Callable[..., object]:
        """Wrap a method to record each call that is not made by another recorded method."""

        @functools.wraps(method)
        def call(trainer: AnyTrainer, *args: object, **kwargs: object) -> Any:
            self._depth += 1
            try:
                result = method(trainer, *args, **kwargs)
            finally:
                self._depth -= 1
            if self._depth == 0 and os.environ.get("RANK", "0") == "0":
                first_argument = args[0] if args else kwargs.get("resume_from_checkpoint")
                self._record(name, trainer, result, first_argument)
            return result

        return call

    def _record(
        self, name: str, trainer: AnyTrainer, result: object, first_argument: object
    ) -> None:
        """Record a call.

        Args:
            name: the name of the method.
            trainer: whose method it is.
            result: what the method returned.
            first_argument: the first argument of the call, which for `train` is
                `resume_from_checkpoint`.
        """
        if not self.calls:
            atexit.register(self._write_record)
        # `train` and `predict` return tuples with metrics.
        metrics = result if isinstance(result, dict) else getattr(result, "metrics", {})
        entry = {"call": name, "metrics": metrics, "arguments": _arguments_to_record(trainer.args)}
        if name == "train":
            entry["log_history"] = list(trainer.state.log_history)
            entry["weights"] = self._save_weights(trainer)
            entry["gradient_norm"] = self._gradient_norm
            resumes = bool(first_argument or trainer.args.resume_from_checkpoint)
            entry["arguments"]["resume_from_checkpoint"] = resumes
        self.calls.append(entry)
        self._write_record()

    def _save_weights(self, trainer: AnyTrainer) -> str | None:
        """Save the model, and return the name of the file; None if the model is sharded."""
        if _is_sharded(trainer.args):
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
        """Write all that this process has recorded; called again when it exits."""
        record = {
            "calls": self.calls,
            "outputs": list(dict.fromkeys(self.outputs)),
            "knows_lightrainer": "lightrainer" in sys.modules,
            "transformers": getattr(sys.modules.get("transformers"), "__version__", None),
        }
        path = self.folder / f"record-{os.getpid()}.json"
        path.write_text(json.dumps(record, default=_to_json), encoding="utf-8")


class PatchingFinder:
    """A finder that calls functions on certain modules after they are loaded.

    Args:
        patches: a function for each module, by its name.
    """

    def __init__(self, patches: dict[str, Callable[[ModuleType], None]]) -> None:
        self._patches = patches

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As `importlib.abc.MetaPathFinder.find_spec`; None for all other modules."""
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
    """Let a loader call a function on the module that it has loaded."""
    original = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        original(module)
        patch(module)

    loader.exec_module = exec_module


def _arguments_to_record(args: AnyArguments) -> dict[str, Any]:
    """Return the training arguments that known differences depend on."""
    recorded = {name: getattr(args, name, None) for name in _RECORDED_ARGUMENTS}
    device = getattr(args, "device", None)
    recorded["on_cpu"] = getattr(device, "type", "cpu") == "cpu"
    return recorded


def _is_sharded(args: AnyArguments) -> bool:
    return args.world_size > 1 and bool(args.fsdp or args.deepspeed)


def _gradient_norm(model: torch.nn.Module) -> float:
    """Return the norm of all gradients of a model."""
    sum_of_squares = 0.0
    for parameter in model.parameters():
        if parameter.grad is not None:
            sum_of_squares += float(parameter.grad.double().norm()) ** 2
    return sum_of_squares**0.5


def _to_json(value: Any) -> object:
    """Return a number of numpy or torch as a number of Python, anything else as text."""
    try:
        return value.item()
    except (AttributeError, ValueError, RuntimeError):
        return str(value)


if _SETTINGS:
    Recorder(**_SETTINGS).start()
