"""Give a Trainer its model: at the construction, and again for each trial."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.models.pretrained import set_in_config
from ...lightning_modules.models.signatures import (
    accepts_loss_kwargs,
    can_return_loss,
    find_labels,
)
from ...lightning_modules.models.wrappers import base_of_adapter
from ...lightning_modules.training.label_smoothing import LabelSmoother
from ..arguments import TrainingArguments
from ..arguments.old_names import warn_at_script_line
from ..arguments.rank_groups import parts_of_sequences, set_parallelism_of_model, spreads_model
from ..strategies.model_parallel import prepare_spread_model
from .checks import require_trainable_quantization
from .construction import seed_everything
from .optimization import freeze_by_rules

if TYPE_CHECKING:
    from .. import Trainer


class ModelSetup:
    """Give a Trainer its model, and set the attributes that are derived from it.

    Args:
        trainer: the Trainer.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def adopt(self, model: nn.Module) -> None:
        """Set the model and the attributes derived from it."""
        trainer = self.trainer
        args = trainer.args
        require_trainable_quantization(model)
        set_parallelism_of_model(args, prepare_spread_model(args, model))

        # Device.
        trainer.is_model_parallel = is_model_parallel(model, args.device)
        if trainer.is_model_parallel:
            args._n_gpu = 1
        trainer.place_model_on_device = moves_model_at_once(
            args, is_on_several_devices=trainer.is_model_parallel
        )
        if trainer.place_model_on_device:
            trainer._move_model_to_device(model, args.device)
        trainer.model = model
        trainer.model_wrapped = model
        if args.parameter_rules:
            freeze_by_rules(trainer)

        # Loss and labels. For a model with adapters, inspect the signature of the base model.
        base = base_of_adapter(model)
        trainer.model_accepts_loss_kwargs = accepts_loss_kwargs(base)
        trainer.label_names = find_label_names(args, base)
        trainer.can_return_loss = can_return_loss(type(base))
        trainer.label_smoother = make_label_smoother(args, model)
        trainer.neftune_noise_alpha = args.neftune_noise_alpha
        config = getattr(model, "config", None)
        if config is not None:
            set_in_config(config, "use_cache", args.use_cache)

    def renew(self, trial: object) -> None:
        """Create a new model for a trial.

        The values of a trial are sampled after a first model was created, as in transformers. If
        they change the seed, the model is created again with that seed.
        """
        trainer = self.trainer
        self._replace(trial)
        seed = (trainer.args.seed, trainer.args.full_determinism)
        trainer._hp_search_setup(trial)
        if seed != (trainer.args.seed, trainer.args.full_determinism):
            self._replace(trial)

    def _replace(self, trial: object) -> None:
        """Replace the model if there is a `model_init`."""
        trainer = self.trainer
        if trainer.model_init is None:
            return

        # Free the model of the previous trial first, so that memory never has to hold both.
        if trainer._lightrainer.search.current is not None:
            trainer._lightrainer.search.current.free_model()
        seed_everything(trainer.args)
        self.install(trainer.call_model_init(trial))

    def install(self, model: nn.Module) -> None:
        """Set a new model, move it to the device, and free the optimizer of the old one."""
        trainer = self.trainer
        trainer.model = model
        if trainer.place_model_on_device:
            trainer._move_model_to_device(model, trainer.args.device)
        trainer.model_wrapped = model
        trainer.callback_handler.model = model
        free_optimizer(trainer)

    def update(self, changed: set[str]) -> None:
        """Update the attributes that were derived from the arguments with these names.

        An attribute that was set on the Trainer directly is kept, unless its argument has changed
        too.
        """
        trainer = self.trainer
        args = trainer.args
        if changed & {"per_device_train_batch_size", "auto_find_batch_size"}:
            trainer._train_batch_size = args.train_batch_size
        if "label_names" in changed and args.label_names is not None:
            trainer.label_names = args.label_names
        if "label_smoothing_factor" in changed:
            trainer.label_smoother = make_label_smoother(args, trainer.model)
        if "neftune_noise_alpha" in changed:
            trainer.neftune_noise_alpha = args.neftune_noise_alpha


def free_optimizer(trainer: Trainer) -> None:
    """Remove the references to the optimizer and the data of a finished trial.

    The state of an optimizer may be twice as large as the model.
    """
    trainer.optimizer = None
    trainer.lr_scheduler = None
    handler = trainer.callback_handler
    handler.optimizer = None
    handler.lr_scheduler = None
    handler.train_dataloader = None
    handler.eval_dataloader = None


def make_model(model_init: Callable[..., nn.Module], trial: object) -> nn.Module:
    """Call a `model_init`, with the trial if it takes one.

    Raises:
        RuntimeError: it takes more than one argument, or returns None.
        TypeError: it does not return a model.
    """
    count = len(inspect.signature(model_init).parameters)
    if count > 1:
        raise RuntimeError(
            f"model_init takes {count} arguments. It must take either none or one, the trial."
        )
    if count == 1:
        model = model_init(trial)
    else:
        model = model_init()

    if isinstance(model, nn.Module):
        return model

    # As in the reference, returning None raises a RuntimeError.
    message = f"model_init returned {model!r:.60}. It must return the model, a torch.nn.Module."
    if model is None:
        raise RuntimeError(message)
    raise TypeError(message)


def is_model_parallel(model: nn.Module, device: torch.device) -> bool:
    """Return whether `hf_device_map` places layers on other devices than that of this process.

    Layers that are offloaded to the CPU or the disk do not count.
    """
    device_map = getattr(model, "hf_device_map", None) or {}
    devices = set(device_map.values()) - {"cpu", "disk"}
    if len(devices) != 1:
        return len(devices) > 1
    (only,) = devices
    if isinstance(only, int):
        return only != device.index
    return torch.device(only) != device


def moves_model_at_once(args: TrainingArguments, *, is_on_several_devices: bool) -> bool:
    """Return whether to move the model to the device when the Trainer is constructed.

    Args:
        args: the training arguments.
        is_on_several_devices: whether its layers are already placed on several devices.
    """
    if args.place_model_on_device is not None:
        return args.place_model_on_device

    # An evaluation in half precision moves the model when it casts it; a strategy that shards the
    # model moves the shards.
    is_cast_later = args.fp16_full_eval or args.bf16_full_eval
    is_sharded_later = bool(args.fsdp or args.deepspeed or spreads_model(args))
    return not (is_on_several_devices or is_cast_later or is_sharded_later)


def find_label_names(args: TrainingArguments, model: nn.Module) -> list[str]:
    """Return the label names set in the arguments, or those in the signature of the model."""
    if args.label_names is not None:
        return args.label_names
    names = find_labels(type(model))

    # If ranks share sequences, `shift_labels` is computed from `labels`.
    if parts_of_sequences(args) > 1:
        return [name for name in names if name != "shift_labels"]
    return names


def make_label_smoother(args: TrainingArguments, model: nn.Module) -> LabelSmoother | None:
    """Return the label smoother for `label_smoothing_factor`, or None."""
    if args.label_smoothing_factor == 0:
        return None
    config = getattr(model, "config", None)
    if getattr(config, "problem_type", None) == "multi_label_classification":
        warn_at_script_line(
            "Label smoothing is not compatible with multi-label classification, so it is disabled. "
            "Remove label_smoothing_factor.",
            UserWarning,
        )
        return None
    return LabelSmoother(epsilon=args.label_smoothing_factor)
