"""LightningModule that creates, saves, loads and shards its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import torch
import torch.distributed as dist
from torch import nn

from ..checkpoints import save_weights
from ..common.class_paths import build_described, is_description, resolve
from ..common.dtensor import is_dtensor
from ..common.local_paths import require_local
from ..internals.lightning_internals import is_made_by_cli
from ..models.neftune import neftune_hook
from ..models.signatures import signature_columns
from ..models.wrappers import base_of_adapter, unwrap_model
from ..optim.module_optimizers import to_plain_setting
from .module_callback import HookedModule

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor
    from torch.utils.hooks import RemovableHandle

ModelSource = Callable[[], nn.Module] | nn.Module | dict[str, Any] | None
"""A model, a function that creates it, or {"class_path": ..., "init_args": {...}}."""


class ModelModule(HookedModule):
    """Base class of `LossModule` that creates, saves, loads and shards the model.

    Args:
        model: see `LossModule`.
        label_names: names of the labels in a batch.
        neftune_noise_alpha: see `LossModule`.
        shard_layers: see `LossModule`.
    """

    def __init__(
        self,
        model: ModelSource,
        *,
        label_names: Sequence[str],
        neftune_noise_alpha: float | None,
        shard_layers: Sequence[str],
    ) -> None:
        super().__init__()
        # Typed as Any, so that users can access attributes of their model.
        self.model: Any = None
        self.model_source: Callable[[], nn.Module] | Mapping[str, Any] | None = None
        self.label_names = list(label_names)
        self.neftune_noise_alpha = neftune_noise_alpha
        self.shard_layers = list(shard_layers)
        self._neftune_handle: RemovableHandle | None = None
        # The config of the model while its cache is disabled during a training.
        self._config_without_cache: Any = None
        if isinstance(model, nn.Module):
            self.model = model
        elif is_description(model) or callable(model):
            self.model_source = model
        else:
            _require_configure_model(self, model)

    @classmethod
    def from_pretrained(
        cls,
        model_class: Any,
        name_or_path: str | Path,
        *,
        model_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Load a pretrained model, and create a module around it.

        Args:
            model_class: a class with `from_pretrained`, such as `AutoModelForCausalLM`, or its
                dotted path.
            name_or_path: a folder, or a name on the Hub.
            model_kwargs: additional arguments of its `from_pretrained`.
            kwargs: arguments of the module.

        Returns:
            The module.
        """
        if isinstance(model_class, str):
            model_class = resolve(model_class, "model_class")
        model = model_class.from_pretrained(name_or_path, **(model_kwargs or {}))
        return cls(model, **kwargs)

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: Any, *args: Any, **kwargs: Any) -> Self:
        """Load the module from a Lightning checkpoint file.

        Args:
            checkpoint_path: a path, an address or an open file, as in Lightning.
            args: Lightning's other positional arguments.
            kwargs: Lightning's keyword arguments, and arguments of the module that the file does
                not contain.

        Raises:
            ValueError: `checkpoint_path` is a folder.
        """
        if isinstance(checkpoint_path, (str, Path)) and Path(checkpoint_path).is_dir():
            raise ValueError(
                f"checkpoint_path={str(checkpoint_path)!r} is a folder, not a file of Lightning. "
                "Make the module as for the training, and pass the folder to the Trainer: "
                "trainer.validate(module, ckpt_path=folder). To load a model of transformers, use "
                "from_pretrained(...)."
            )
        return super().load_from_checkpoint(checkpoint_path, *args, **kwargs)

    def save_pretrained(self, folder: str | Path) -> None:
        """Save the model alone.

        Models of `transformers` and PEFT are saved with their own `save_pretrained`, others as
        `model.safetensors`. Must be called on all processes; rank 0 writes.

        Args:
            folder: created if needed.
        """
        from ..distributed.sharding import full_state_dict, is_sharded

        require_local(folder, "folder")
        model = unwrap_model(self._require_model())

        # All processes are needed to gather a sharded model; rank 0 writes.
        is_first = not dist.is_initialized() or dist.get_rank() == 0
        state_dict = None
        if is_sharded(model):
            state_dict = full_state_dict(model, keep=is_first)
        if is_first:
            Path(folder).mkdir(parents=True, exist_ok=True)
            save_weights(model, folder, state_dict=state_dict)

    def configure_model(self) -> None:
        """Create the model unless it exists, and shard it under `ModelParallelStrategy`."""
        # Lightning calls this hook at the start of each fit, validation and test.
        source = self.model_source
        if self.model is None and source is not None:
            if isinstance(source, Mapping):
                model = build_described(source, nn.Module, "model")
            else:
                model = source()
            if not isinstance(model, nn.Module):
                raise TypeError(
                    f"`model` is a function that returned a {type(model).__name__}: it has to "
                    "return a torch.nn.Module."
                )
            self.model = model
        if self.model is None:
            return

        self.prepare_model(self.model)
        if self.device_mesh is not None:
            self._shard(self.device_mesh)

    def prepare_model(self, model: nn.Module) -> None:
        """Modify the model before it is sharded; may be called repeatedly.

        Args:
            model: the model.
        """

    def begin_fit(self) -> None:
        """Put the model into training mode, disable its cache, and enable NEFTune noise.

        `from_pretrained` returns a model in evaluation mode. As in the Trainer API,
        `config.use_cache` is off during training.
        """
        super().begin_fit()
        self._require_model().train()
        self._undo_begin_fit()

        if self.neftune_noise_alpha:
            self._neftune_handle = neftune_hook(unwrap_model(self.model), self.neftune_noise_alpha)

        # The key-value cache is not needed in training.
        config = getattr(self.model, "config", None)
        if config is not None and getattr(config, "use_cache", False):
            config.use_cache = False
            self._config_without_cache = config

    def end_fit(self) -> None:
        """Disable NEFTune noise, and restore the cache setting."""
        self._undo_begin_fit()
        super().end_fit()

    @property
    def input_columns(self) -> list[str]:
        """Return the columns that the model accepts, and labels; `DataModule` drops all others."""
        return signature_columns(base_of_adapter(self._require_model()), self.label_names)

    def keep_hyperparameters(self, **values: object) -> None:
        """Keep plain values as `hparams`; called by `__init__`.

        Under `LightningCLI` its configuration is kept instead.

        Args:
            values: optimizers and schedules in any form, and plain values.
        """
        if is_made_by_cli():
            self.save_hyperparameters()
            return
        if isinstance(self.model_source, Mapping):
            values = {"model": self.model_source, **values}
        self.save_hyperparameters(values)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save configs among the hyperparameters as plain values, which need no unpickling."""
        super().on_save_checkpoint(checkpoint)
        hyperparameters = checkpoint.get(self.CHECKPOINT_HYPER_PARAMS_KEY) or {}
        for name, value in hyperparameters.items():
            plain = to_plain_setting(value)
            if plain is not None:
                hyperparameters[name] = plain

    def _require_model(self) -> nn.Module:
        if self.model is None:
            self.configure_model()
        if self.model is None:
            raise RuntimeError(
                f"{type(self).__name__} has no model: set self.model in configure_model()."
            )
        return self.model

    def _shard(self, mesh: DeviceMesh) -> None:
        """Shard the model over the data-parallel dimension of a mesh, unless the user has.

        Sharding layers over the tensor-parallel dimension is left to the user.
        """
        from ..common.collectives import broadcast_tensors
        from ..distributed.sharding import is_fully_sharded, modules_by_class, shard_fully

        data_parallel = _dimension(mesh, "data_parallel")
        tensor_parallel_size = _dimension(mesh, "tensor_parallel").size()
        parameters = list(self.model.parameters())
        has_dtensors = any(_is_over(parameter, "tensor_parallel") for parameter in parameters)
        if tensor_parallel_size > 1 and not has_dtensors:
            raise ValueError(
                f"tensor_parallel_size={tensor_parallel_size}, but no layer of "
                f"{type(self.model).__name__} is split: the same model would be trained "
                f"{tensor_parallel_size} times. Pass "
                f"ModelParallelStrategy(data_parallel_size={mesh.size()}, tensor_parallel_size=1) "
                "to shard it over all processes, or override configure_model: make self.model, "
                'call parallelize_module(self.model, self.device_mesh["tensor_parallel"], plan), '
                "then super().configure_model()."
            )

        # An override of `configure_model` may have sharded the model.
        if is_fully_sharded(self.model):
            return
        if all(_is_over(parameter, "data_parallel") for parameter in parameters):
            return

        # All processes start with the weights of rank 0; weights on "meta" are loaded later.
        tensors = [*parameters, *self.model.buffers()]
        full_tensors = [tensor for tensor in tensors if not is_dtensor(tensor)]
        if not any(tensor.is_meta for tensor in full_tensors):
            broadcast_tensors(full_tensors)

        if data_parallel.size() > 1 or not has_dtensors:
            names = self.shard_layers or getattr(self.model, "_no_split_modules", None) or []
            layers = modules_by_class(self.model, set(names))
            shard_fully(self.model, data_parallel, layers=layers)

    def _undo_begin_fit(self) -> None:
        handle = self._neftune_handle
        self._neftune_handle = None
        if handle is not None:
            handle.remove()

        config = self._config_without_cache
        self._config_without_cache = None
        if config is not None:
            config.use_cache = True


def _dimension(mesh: DeviceMesh, name: str) -> DeviceMesh:
    """Return one dimension of the mesh of a strategy."""
    names = mesh.mesh_dim_names or ()
    if set(names) != {"data_parallel", "tensor_parallel"}:
        raise ValueError(
            f"The device mesh of the strategy has the dimensions {names}, but the module needs "
            '"data_parallel" and "tensor_parallel", as ModelParallelStrategy names them. Override '
            "configure_model, and shard the model there."
        )
    return mesh[name]


def _is_over(tensor: torch.Tensor, name: str) -> bool:
    """Return whether a tensor is a DTensor on a mesh with this dimension."""
    if not is_dtensor(tensor):
        return False
    mesh = cast("DTensor", tensor).device_mesh
    return name in (mesh.mesh_dim_names or ())


def _require_configure_model(module: ModelModule, model: object) -> None:
    """Raise an error for a missing model, unless a subclass creates it in `configure_model`."""
    description = f"a {type(model).__name__}"
    if model is None:
        if type(module).configure_model is not ModelModule.configure_model:
            return
        description = "None"
    raise TypeError(
        f"`model` is {description}: pass a torch.nn.Module, a function that makes one, or "
        "{'class_path': ..., 'init_args': {...}}. A checkpoint does not hold the model itself, so "
        f"it is passed again: {type(module).__name__}.load_from_checkpoint(path, model=...)."
    )
