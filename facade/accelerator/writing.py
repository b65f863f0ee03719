"""Unwrapped models, full state dicts, and files."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from ...lightning_modules.checkpoints.tied_weights import without_sharing
from ...lightning_modules.common.local_paths import StrPath, require_local
from ...lightning_modules.internals.precision import uncast
from ...lightning_modules.models import inspection
from .gradients import Gradients


class Writing(Gradients):
    """The members of `accelerate.Accelerator` that unwrap models and write files."""

    def unwrap_model(self, model: nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True) -> Any:
        """Return the user's model inside DistributedDataParallel, FSDP, DeepSpeed and DataParallel.

        Args:
            model: wrapped or not.
            keep_fp32_wrapper: False also removes the casts of forward passes that `prepare` added, but not of a run.
            keep_torch_compile: False also unwraps `torch.compile`. Otherwise a compiled model stays compiled; unlike in
                the reference, `model` is not modified.
        """
        inner = inspection.unwrap_model(model)
        if not keep_fp32_wrapper:
            uncast(inner)
        compiled: Any = model if inspection.inside_compiled(model) is not None else None
        if compiled is None or not keep_torch_compile:
            return inner
        return compiled if compiled._orig_mod is inner else type(compiled)(inner, compiled.dynamo_ctx)

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """Return the full state dict of a model under the names of the unwrapped one.

        With sharded weights this is a collective: process 0 gets them in host memory, the others an empty dict.

        Args:
            model: wrapped or not.
            unwrap: False keeps the names of the wrapper, if the model is not sharded.
        """
        weights = self.strategy.whole_weights(model, keep=self.is_main_process)
        return (inspection.unwrap_model(model) if unwrap else model).state_dict() if weights is None else weights

    def save(self, obj: Any, f: Any, safe_serialization: bool = False) -> None:
        """Write an object to a file, on the saving process only.

        Args:
            obj: anything `torch.save` takes; with `safe_serialization`, tensors by name.
            f: path; for torch's format also an open file.
            safe_serialization: write safetensors. Tensors that share memory are written once.
        """
        if not self._writes:
            return
        if safe_serialization:
            from safetensors.torch import save_file

            save_file(without_sharing(obj)[0], f, metadata={"format": "pt"})
        else:
            torch.save(obj, f)

    def save_model(
        self,
        model: nn.Module,
        save_directory: StrPath,
        max_shard_size: int | str = "10GB",
        safe_serialization: bool = True,
    ) -> None:
        """Write the weights of a model, not its configuration, to a folder, on the saving process only.

        Args:
            model: wrapped or not; with a sharded one this is a collective.
            save_directory: created if missing; older weight shards in it are removed.
            max_shard_size: of a file, in bytes or such as "5GB"; larger weights are split, with an index.
            safe_serialization: `model.safetensors`, otherwise `pytorch_model.bin`.

        Raises:
            RuntimeError: some weights are on the meta device.
        """
        weights = self.get_state_dict(model)
        if not self._writes:
            return
        from huggingface_hub import save_torch_state_dict

        # safetensors holds a shared tensor once: the other names of tied weights go into the metadata.
        own, aliases = without_sharing(weights) if safe_serialization else (weights, None)
        require_local(save_directory, "save_directory")
        os.makedirs(save_directory, exist_ok=True)
        options: Any = {"max_shard_size": max_shard_size, "metadata": aliases, "safe_serialization": safe_serialization}
        save_torch_state_dict(own, os.fspath(save_directory), **options)

    @property
    def _writes(self) -> bool:
        return self.is_local_main_process if self.args.save_on_each_node else self.is_main_process

    @property
    def should_save_model(self) -> bool:
        """Return whether this process has to call `save_model`; True on all if weights may be sharded."""
        return self.is_local_main_process if self.args.parallelism_config is None else True
