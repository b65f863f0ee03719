"""Recorder of a compared script, run by the `sitecustomize` of `interception/children` at its
start.

Seeds the generators, keeps output folders within the side's working folder, and records the results
of `train`, `evaluate` and `predict`. Nothing is imported before the script imports it, and nothing
of lightrainer: the reference has to run as it is.
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
    from collections.abc import Callable
    from typing import Any

MODULES = {
    "reference": ("transformers.training_args", "transformers.trainer"),
    "lightrainer": (
        "lightrainer.facade.arguments.training_arguments",
        "lightrainer.facade.trainer.trainer",
    ),
}
"""The modules with `TrainingArguments` and `Trainer` of each side."""
_FACTS = (
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
    """Records of one process of the script.

    Args:
        side: `reference` or `lightrainer`.
        folder: the side's own.
        seed: of the generators of Python and NumPy.
    """

    def __init__(self, side: str, folder: str, seed: int) -> None:
        self.side = side
        self.folder = Path(folder)
        self.seed = seed
        self.calls: list[dict[str, Any]] = []
        self.outputs: list[str] = []
        self._inside = 0
        self._first_step: int | None = None
        self._gradient_norm: float | None = None

    def start(self) -> None:
        """Seed the generators, and patch modules when they are imported."""
        random.seed(self.seed)
        arguments, trainer = MODULES[self.side]
        acts = {
            arguments: self._watch_arguments,
            trainer: self._watch_trainer,
            "numpy.random": self._seed_numpy,
        }
        sys.meta_path.insert(0, Afterwards(acts))

    def _seed_numpy(self, module: Any) -> None:
        module.seed(self.seed)

    def _watch_arguments(self, module: Any) -> None:
        """Keep the output folder of all arguments in the folder of this side, and prevent
        uploads.
        """
        made = module.TrainingArguments.__post_init__

        @functools.wraps(made)
        def __post_init__(args: Any) -> None:  # noqa: N807 - replaces that method
            args.output_dir = self._own(args.output_dir)
            args.push_to_hub = False
            made(args)

        module.TrainingArguments.__post_init__ = __post_init__

    def _own(self, folder: str | None) -> str:
        """Return the output folder, or one of its name in the side's working folder if it is
        outside of the side's.
        """
        wanted = Path(os.path.abspath(folder or "trainer_output"))
        own = wanted if self.folder in wanted.parents else self.folder / "work" / wanted.name
        self.outputs.append(str(own))
        return str(own)

    def _watch_trainer(self, module: Any) -> None:
        for name in ("train", "evaluate", "predict"):
            setattr(module.Trainer, name, self._recorded(name, getattr(module.Trainer, name)))
        module.Trainer.training_step = self._measured(module.Trainer.training_step)

    def _measured(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `training_step`, and keep the norm of the gradients that the first optimizer step
        gets, before clipping.

        Both sides have the same weights there.
        """

        @functools.wraps(method)
        def training_step(trainer: Any, *positional: Any, **keywords: Any) -> Any:
            loss = method(trainer, *positional, **keywords)
            step = trainer.state.global_step
            if self._first_step is None:
                self._first_step = step
            if step == self._first_step and not _is_sharded(trainer.args):
                self._gradient_norm = _norm_of_gradients(trainer.model)
            return loss

        del training_step.__wrapped__  # or ours takes it for an override of the script
        return training_step

    def _recorded(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a method, and record each call that is not made by another one."""

        @functools.wraps(method)
        def call(trainer: Any, *positional: Any, **keywords: Any) -> Any:
            self._inside += 1
            try:
                result = method(trainer, *positional, **keywords)
            finally:
                self._inside -= 1
            if not self._inside and os.environ.get("RANK", "0") == "0":
                self._write(
                    name, trainer, result, [*positional, keywords.get("resume_from_checkpoint")]
                )
            return result

        return call

    def _write(self, name: str, trainer: Any, result: Any, given: list[Any]) -> None:
        if not self.calls:
            atexit.register(self._write_process)
        metrics = result if isinstance(result, dict) else getattr(result, "metrics", {})
        entry = {"call": name, "metrics": metrics, "arguments": self._facts(trainer.args)}
        if name == "train":
            entry["log_history"] = list(trainer.state.log_history)
            entry["weights"] = self._save_weights(trainer)
            entry["gradient_norm"] = self._gradient_norm
            entry["arguments"]["resume_from_checkpoint"] = bool(
                given[0] or trainer.args.resume_from_checkpoint
            )
        self.calls.append(entry)
        self._write_process()

    def _facts(self, args: Any) -> dict[str, Any]:
        facts = {name: getattr(args, name, None) for name in _FACTS}
        facts["on_cpu"] = getattr(getattr(args, "device", None), "type", "cpu") == "cpu"
        return facts

    def _save_weights(self, trainer: Any) -> str | None:
        """Save the model; None if it is sharded over processes."""
        if _is_sharded(trainer.args):
            return None
        import torch

        tensors = {
            name: it
            for name, it in trainer.model.state_dict().items()
            if isinstance(it, torch.Tensor)
        }
        path = self.folder / f"weights-{os.getpid()}-{len(self.calls)}.pt"
        torch.save({name: tensor.detach().cpu() for name, tensor in tensors.items()}, path)
        return path.name

    def _write_process(self) -> None:
        record = {
            "calls": self.calls,
            "outputs": list(dict.fromkeys(self.outputs)),
            "knows_lightrainer": "lightrainer" in sys.modules,
            "transformers": getattr(sys.modules.get("transformers"), "__version__", None),
        }
        path = self.folder / f"record-{os.getpid()}.json"
        path.write_text(json.dumps(record, default=_plain), encoding="utf-8")


class Afterwards:
    """A finder that calls functions on certain modules after they are loaded."""

    def __init__(self, acts: dict[str, Callable[[Any], None]]) -> None:
        self._acts = acts

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """As `importlib.abc.MetaPathFinder.find_spec`; None for all other modules."""
        act = self._acts.pop(name, None)
        if act is None:
            return None
        finders = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(name, path, target) for finder in finders)
        spec = next((found for found in specs if found is not None), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)
                act(module)

            spec.loader.exec_module = exec_module
        return spec


def _is_sharded(args: Any) -> bool:
    return args.world_size > 1 and bool(args.fsdp or args.deepspeed)


def _norm_of_gradients(model: Any) -> float:
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return sum(float(gradient.double().norm()) ** 2 for gradient in gradients) ** 0.5


def _plain(value: Any) -> Any:
    """Return a number of numpy or torch as a number of Python, anything else as text."""
    try:
        return value.item()
    except (AttributeError, ValueError, RuntimeError):
        return str(value)


if _SETTINGS:
    Recorder(**_SETTINGS).start()
