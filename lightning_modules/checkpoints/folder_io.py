"""Checkpoint plugin for `lightning.Trainer` that uses folders of the documented format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from torch import nn

from ..common.file_names import OPTIMIZER_NAME
from ..common.local_paths import require_local
from ..common.torch_files import load_torch
from ..internals.lightning_import import CheckpointIO, LightningModule, TorchCheckpointIO, Trainer
from ..internals.loop_states import current_loop_position, pop_loader_states
from ..models.wrappers import inside_compiled
from ..optim.optimizer_fit import require_fitting_optimizer_state
from . import manifest, staging
from .callback_paths import remove_foreign_paths
from .lightning_files import LIGHTNING_STATE_NAME, read_states, write_states
from .verify import require_intact
from .weights import load_weights, save_weights

__all__ = ["FolderCheckpointIO", "FolderReader", "split_weights"]

_LOAD_METHOD = "load_optimizer_state_dict"
"""Name of the strategy's method that loads optimizer states."""


class FolderCheckpointIO(CheckpointIO):
    """Write and read the checkpoints of Lightning as folders `checkpoint-N` of the Trainer API.

    A plugin, as Lightning's `TorchCheckpointIO`.

    `lightrainer.Trainer.train(resume_from_checkpoint=folder)` and transformers can resume from the
    folders, and `lightning.Trainer.fit(module, ckpt_path=folder)` can resume from theirs. Folders
    are written under a temporary name and renamed, and only tensors and plain values are unpickled.
    Lightning's own checkpoint files can be read too, with the same restriction.

        checkpoint = ModelCheckpoint(
            dirpath="out", filename="checkpoint-{step}", auto_insert_metric_name=False
        )
        checkpoint.FILE_EXTENSION = ""
        trainer = lightning.Trainer(
            plugins=[FolderCheckpointIO(module)], callbacks=[checkpoint]
        )
        trainer.fit(module, loader, ckpt_path="out/checkpoint-500")

    Wrap it in Lightning's `AsyncCheckpointIO` to write in the background.

    Args:
        module: the LightningModule that is trained. A `ResumableModule`, such as `LossModule`,
            resumes exactly.
        attribute: name of the module's attribute that holds the model. The model's weights are
            written to the documented files, by its `save_pretrained` for models of `transformers`
            and PEFT. All other weights are written to a separate file.
        processing_class: tokenizer or processor, saved beside the model if it has
            `save_pretrained`.
    """

    def __init__(
        self,
        module: LightningModule,
        *,
        attribute: str = "model",
        processing_class: object = None,
    ) -> None:
        model = getattr(module, attribute, None)
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"attribute={attribute!r}: {type(module).__name__}.{attribute} is a "
                f"{type(model).__name__}, not a torch.nn.Module. Pass the name of the attribute "
                "that holds the model."
            )
        self.module = module
        self.attribute = attribute
        self.processing_class = processing_class
        self._cleaned_folders: set[Path] = set()

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: object = None
    ) -> None:
        """Write a folder at `path`, replacing an older one.

        A path that ends in `.ckpt` is written as a Lightning checkpoint file.

        Raises:
            TypeError: `storage_options` were passed.
            ValueError: the path is a URL of remote storage.
        """
        if storage_options is not None:
            raise TypeError(
                f"storage_options={storage_options!r} is not supported: checkpoint folders are "
                "written to a local disk"
            )
        final = _local(path)
        if final.suffix == ".ckpt" and not final.is_dir():
            TorchCheckpointIO().save_checkpoint(checkpoint, path)
            return

        # Remove leftovers of killed runs, once for each folder.
        if final.parent not in self._cleaned_folders:
            self._cleaned_folders.add(final.parent)
            staging.remove_leftovers(final.parent)
        model, prefix = self._model()
        model_weights, other_weights = split_weights(checkpoint["state_dict"], prefix)
        with staging.staged_folder(final) as folder:
            save_weights(model, folder, state_dict=model_weights)
            save_processing: Any = getattr(self.processing_class, "save_pretrained", None)
            if save_processing is not None:
                save_processing(str(folder))
            write_states(checkpoint, folder, other_weights, **self._state_entries())
            manifest.write_manifest(folder)

    def load_checkpoint(
        self, path: str | Path, map_location: object = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a folder or a Lightning checkpoint file.

        Weights in a folder are loaded into the model.

        Raises:
            FileNotFoundError: the path does not exist.
            ValueError: the checkpoint is damaged, holds objects other than tensors and plain
                values, or lacks trained weights of the model while the module's `strict_loading` is
                not False.
        """
        folder = _local(path)
        convert_to_double(self.module)
        if folder.is_file():
            return _safe_to_load(load_torch(folder), folder, self.module.trainer)

        require_intact(folder)
        model, _ = self._model()
        load_weights(model, folder, strict=self.module.strict_loading)

        trainer = self.module.trainer
        checkpoint = read_states(folder, accumulation=trainer.accumulate_grad_batches)
        # The weights of the model are loaded already.
        checkpoint["state_dict"] = {**self.module.state_dict(), **checkpoint["state_dict"]}
        return _safe_to_load(checkpoint, folder, trainer)

    def remove_checkpoint(self, path: str | Path) -> None:
        """Delete a folder atomically, or a file."""
        target = _local(path)
        if target.is_dir():
            staging.discard(target)
        elif target.exists():
            target.unlink()

    def _model(self) -> tuple[nn.Module, str]:
        """Return the model under `torch.compile`, and the prefix of its weights in the module."""
        model: nn.Module = getattr(self.module, self.attribute)
        prefix = f"{self.attribute}."
        while True:
            inner = inside_compiled(model)
            if inner is None:
                return model, prefix
            model = inner
            prefix = f"{prefix}_orig_mod."

    def _state_entries(self) -> dict[str, int]:
        """Return the entries of `trainer_state.json` that Lightning's checkpoints do not hold."""
        trainer = self.module.trainer
        entries: dict[str, Any] = {
            "max_steps": max(trainer.max_steps, 0),
            "num_train_epochs": max(trainer.max_epochs or 0, 0),
        }
        batch_size = getattr(trainer.train_dataloader, "batch_size", None)
        if batch_size:
            entries["train_batch_size"] = batch_size

        # The length of a stream is unknown. Its current epoch always counts as incomplete.
        batches = trainer.num_training_batches
        if batches == float("inf"):
            batches = current_loop_position(trainer).done + 1
        entries["batches_in_epoch"] = batches
        return entries


class FolderReader(TorchCheckpointIO):
    """As Lightning's `TorchCheckpointIO`, but also reads folders, and loads weights without
    rounding.

    Args:
        trainer: the weights go to the attribute `model` of its module.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: object = None
    ) -> None:
        """Write a file as Lightning does, but without loader states if it has weights only.

        Lightning calls no callback for such a file, and loader states hold arrays, which
        `weights_only` loading rejects.
        """
        if "optimizer_states" not in checkpoint and "loops" in checkpoint:
            pop_loader_states(checkpoint)
        super().save_checkpoint(checkpoint, path, storage_options)

    def load_checkpoint(
        self, path: str | Path, map_location: object = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a folder as `FolderCheckpointIO` does, and a file as Lightning does."""
        if Path(path).is_dir():
            return FolderCheckpointIO(self.trainer.lightning_module).load_checkpoint(path)
        convert_to_double(self.trainer.lightning_module)
        # Lightning declares the function in `map_location` without its types.
        files: Any = super()
        checkpoint = files.load_checkpoint(path, map_location, weights_only)
        return _safe_to_load(checkpoint, Path(path), self.trainer)


def convert_to_double(module: LightningModule) -> None:
    """Convert the module to double precision before double-precision weights are loaded.

    Lightning converts it afterwards, when the weights have been rounded already.
    """
    if module.trainer.precision == "64-true":
        module.double()


def split_weights(
    state_dict: Mapping[str, object], prefix: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the weights whose names begin with the prefix, without it, and all others.

    Raises:
        ValueError: no name begins with it.
    """
    with_prefix: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, value in state_dict.items():
        if name.startswith(prefix):
            with_prefix[name.removeprefix(prefix)] = value
        else:
            others[name] = value
    if others and not with_prefix:
        first_names = ", ".join(list(others)[:3])
        raise ValueError(
            f"prefix={prefix!r}: no weight name starts with it; the names are {first_names}, ..."
        )
    return with_prefix, others


def _safe_to_load(checkpoint: dict[str, Any], path: Path, trainer: Trainer) -> dict[str, Any]:
    """Return a checkpoint that is safe to load.

    Paths outside of the run are removed from the states of callbacks, because Lightning's callbacks
    delete the files that their states list. Optimizer states are checked when they are loaded,
    because optimizers accept states of any shape.
    """
    _check_before_loading(trainer, path)
    states = checkpoint.get("callbacks")
    if not isinstance(states, dict):
        return checkpoint
    callbacks: list[Any] = getattr(trainer, "callbacks", [])
    checked = remove_foreign_paths(cast("dict[str, Any]", states), callbacks, path)
    return {**checkpoint, "callbacks": checked}


def _check_before_loading(trainer: Trainer, path: Path) -> None:
    """Make the strategy check that optimizer states fit the parameters before it loads them."""
    strategy = trainer.strategy
    attributes: dict[str, Any] = vars(strategy)
    # The check of an earlier checkpoint may remain, if its optimizer states were never loaded.
    attributes.pop(_LOAD_METHOD, None)
    load = getattr(strategy, _LOAD_METHOD)

    def load_checked(checkpoint: Mapping[str, Any]) -> None:
        # The check is for this checkpoint only.
        attributes.pop(_LOAD_METHOD, None)
        # Lightning itself ignores surplus states.
        pairs = zip(strategy.optimizers, checkpoint["optimizer_states"], strict=False)
        for index, (optimizer, state) in enumerate(pairs):
            file = path
            if path.is_dir():
                file = path / (OPTIMIZER_NAME if index == 0 else LIGHTNING_STATE_NAME)
            require_fitting_optimizer_state(optimizer, state, file, model=trainer.lightning_module)
        load(checkpoint)

    setattr(strategy, _LOAD_METHOD, load_checked)


def _local(path: str | Path) -> Path:
    require_local(path, "path")
    return Path(path)
