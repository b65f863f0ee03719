"""A LightningModule around a model, given or made when needed: saving, loading, sharding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch.distributed as dist
from torch import nn

from ..checkpoints import save_weights
from ..common.class_paths import build_described, is_description, resolve
from ..common.dtensor import is_dtensor
from ..common.local_paths import require_local
from ..internals.lightning_internals import is_made_by_cli
from ..models.inspection import base_of_adapter, signature_columns, unwrap_model
from ..models.neftune import neftune_hook
from ..optim.module_optimizers import to_plain_setting
from .module_callback import HookedModule

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

ModelSource = Callable[[], nn.Module] | nn.Module | dict[str, Any] | None
"""A model; a function that makes it; or {"class_path": ..., "init_args": {...}}."""


class ModelModule(HookedModule):
    """The part of `LossModule` that makes, saves, loads and shards its model.

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
        self.model: Any = None
        self.model_source: Any = None
        self.label_names = list(label_names)
        self.neftune_noise_alpha = neftune_noise_alpha
        self.shard_layers = list(shard_layers)
        self._noise: Any = None
        # the config of the model, whose cache is switched off during a training
        self._cached: Any = None
        if isinstance(model, nn.Module):
            self.model = model
        elif is_description(model) or callable(model):
            self.model_source = model
        else:
            _require_own_way(self, model)

    @classmethod
    def from_pretrained(
        cls,
        model_class: Any,
        name_or_path: Any,
        *,
        model_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """As `AutoModel.from_pretrained`, and the module around what it loads.

        Args:
            model_class: a class with `from_pretrained`, such as `AutoModelForCausalLM`, or its
                dotted path.
            name_or_path: a folder, or a name on the Hub.
            model_kwargs: more arguments of its `from_pretrained`.
            kwargs: arguments of the module.
        """
        found: Any = (
            resolve(model_class, "model_class") if isinstance(model_class, str) else model_class
        )
        model = found.from_pretrained(name_or_path, **(model_kwargs or {}))
        return cls(model, **kwargs)

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: Any, *args: Any, **kwargs: Any) -> Self:
        """As Lightning's, from a file of Lightning.

        Args:
            checkpoint_path: a file.
            args: Lightning's other arguments.
            kwargs: those, and arguments of the module that the file does not hold.

        Raises:
            ValueError: it is a folder.
        """
        if isinstance(checkpoint_path, (str, Path)) and Path(checkpoint_path).is_dir():
            raise ValueError(
                f"checkpoint_path={str(checkpoint_path)!r} is a folder, not a file of Lightning. "
                "Make the module as for the training, and pass the folder to the Trainer: "
                "trainer.validate(module, ckpt_path=folder). A model of transformers is loaded "
                "by from_pretrained(...)."
            )
        return super().load_from_checkpoint(checkpoint_path, *args, **kwargs)

    def save_pretrained(self, folder: str | Path) -> None:
        """Save the model alone: one of `transformers` or PEFT by its `save_pretrained`, others as
        `model.safetensors`.

        Args:
            folder: made if needed. All processes call this; the first one writes.
        """
        from ..distributed.sharding import is_sharded, whole_state_dict

        require_local(folder, "folder")
        model = unwrap_model(self._require_model())
        first = self._is_first()
        state = whole_state_dict(model, keep=first) if is_sharded(model) else None
        if first:
            Path(folder).mkdir(parents=True, exist_ok=True)
            save_weights(model, folder, state_dict=state)

    def configure_model(self) -> None:
        """Make the model, unless it is there, and shard it under Lightning's
        `ModelParallelStrategy`.
        """
        if self.model is None and self.model_source is not None:
            made = self.model_source
            made = build_described(made, nn.Module, "model") if is_description(made) else made()
            if not isinstance(made, nn.Module):
                raise TypeError(
                    f"`model` is a function that returned a {type(made).__name__}, not a "
                    "torch.nn.Module."
                )
            self.model = made
        if self.model is None:
            return
        self.prepare_model(self.model)
        if self.device_mesh is not None:
            self._shard(self.device_mesh)

    def prepare_model(self, model: nn.Module) -> None:
        """Change the model before it is sharded; may be called again.

        Args:
            model: the model.
        """

    def begin_fit(self) -> None:
        """Put the model into training mode, in which `from_pretrained` does not leave it, and add
        NEFTune's noise.

        As under the Trainer API `config.use_cache` is off meanwhile.
        """
        super().begin_fit()
        self._require_model().train()
        self._end_fit()
        if self.neftune_noise_alpha:
            self._noise = neftune_hook(unwrap_model(self.model), self.neftune_noise_alpha)
        config: Any = getattr(self.model, "config", None)
        if getattr(config, "use_cache", False):  # a training does not need keys and values
            config.use_cache = False
            self._cached = config

    def end_fit(self) -> None:
        """End NEFTune's noise."""
        self._end_fit()
        super().end_fit()

    @property
    def input_columns(self) -> list[str]:
        """Return the columns of the data that the model takes, with labels; `DataModule` leaves
        out all others.
        """
        return signature_columns(base_of_adapter(self._require_model()), self.label_names)

    def keep_hyperparameters(self, **values: Any) -> None:
        """Keep plain values as `hparams`; for `__init__`. Under `LightningCLI` its configuration is
        kept instead.

        Args:
            values: optimizers and schedules in any form, a description of the model, plain values.
        """
        if is_made_by_cli():
            self.save_hyperparameters()
            return
        source = {"model": self.model_source} if is_description(self.model_source) else {}
        self.save_hyperparameters({**source, **values})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save configs among the hyperparameters as plain values, so that nothing is unpickled
        to read them.
        """
        super().on_save_checkpoint(checkpoint)
        kept = checkpoint.get(self.CHECKPOINT_HYPER_PARAMS_KEY) or {}
        for name, value in kept.items():
            plain = to_plain_setting(value)
            if plain is not None:
                kept[name] = plain

    def _require_model(self) -> nn.Module:
        if self.model is None:
            self.configure_model()
        if self.model is None:
            raise RuntimeError(
                f"{type(self).__name__} has no model: let configure_model() set self.model."
            )
        return self.model

    def _is_first(self) -> bool:
        return not dist.is_initialized() or dist.get_rank() == 0

    def _shard(self, mesh: DeviceMesh) -> None:
        """Shard over the data-parallel dimension of a mesh what the user has not; tensor
        parallelism is the user's.
        """
        from ..common.collectives import broadcast_tensors
        from ..distributed.sharding import is_fully_sharded, modules_by_class, shard_fully

        replicas = _dimension(mesh, "data_parallel")
        parts = _dimension(mesh, "tensor_parallel")
        parameters = list(self.model.parameters())
        is_split = any(_is_over(parameter, "tensor_parallel") for parameter in parameters)
        if parts.size() > 1 and not is_split:
            raise ValueError(
                f"tensor_parallel_size={parts.size()}, but no layer of {type(self.model).__name__} "
                f"is split: the same model would be trained {parts.size()} times. Pass "
                f"ModelParallelStrategy(data_parallel_size={mesh.size()}, tensor_parallel_size=1) "
                "to shard it over all processes, or override configure_model: make self.model, "
                'call parallelize_module(self.model, self.device_mesh["tensor_parallel"], plan), '
                "then super().configure_model()."
            )
        if is_fully_sharded(self.model) or all(
            _is_over(parameter, "data_parallel") for parameter in parameters
        ):
            return

        whole = [
            tensor for tensor in (*parameters, *self.model.buffers()) if not is_dtensor(tensor)
        ]
        if not any(tensor.is_meta for tensor in whole):
            broadcast_tensors(whole)
        if replicas.size() > 1 or not is_split:
            names = self.shard_layers or getattr(self.model, "_no_split_modules", None) or []
            shard_fully(self.model, replicas, layers=modules_by_class(self.model, set(names)))

    def _end_fit(self) -> None:
        noise = self._noise
        self._noise = None
        if noise is not None:
            noise.remove()
        config = self._cached
        self._cached = None
        if config is not None:
            config.use_cache = True


def _dimension(mesh: DeviceMesh, name: str) -> DeviceMesh:
    """Return one dimension of the mesh of a strategy."""
    names = mesh.mesh_dim_names or ()
    if set(names) != {"data_parallel", "tensor_parallel"}:
        raise ValueError(
            f"The device mesh of the strategy has the dimensions {names}, but the module shards "
            'its model over "data_parallel", after a split over "tensor_parallel", as '
            "ModelParallelStrategy names them. Override configure_model, and shard the model "
            "there."
        )
    return mesh[name]


def _is_over(tensor: Any, name: str) -> bool:
    """Return whether a tensor is a DTensor on a mesh with this dimension."""
    return is_dtensor(tensor) and name in (tensor.device_mesh.mesh_dim_names or ())


def _require_own_way(module: ModelModule, given: Any) -> None:
    """Refuse a missing model, unless a subclass makes it."""
    if given is None and type(module).configure_model is not ModelModule.configure_model:
        return
    raise TypeError(
        f"`model` is {'None' if given is None else 'a ' + type(given).__name__}: pass a "
        "torch.nn.Module, a function that makes one, or {'class_path': ..., 'init_args': "
        "{...}}. A checkpoint does not hold the module itself: "
        f"{type(module).__name__}.load_from_checkpoint(path, model=...)."
    )
