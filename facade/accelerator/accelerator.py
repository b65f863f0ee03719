"""The members of `accelerate.Accelerator` that Trainer scripts and subclasses use, over Lightning and torch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ...lightning_modules.common.followed import followed
from ..arguments.exports import export_precision
from ..arguments.fsdp_config import settings_of
from ..distributed.process import forwarded
from ..distributed.process_group import leave
from .fsdp_plugin import FSDPPlugin
from .gradient_state import GradientState
from .preparing import Preparing
from .processes import DistributedType, Grid, ProcessDecorators, Processes, fsdp_version
from .refusals import REFUSED, refusal
from .writing import Writing

if TYPE_CHECKING:
    from ..arguments import TrainingArguments
    from ..strategies.strategy import Strategy


class Accelerator(Preparing, Writing, Grid, ProcessDecorators):
    """As `accelerate.Accelerator`, for the members that are used through `trainer.accelerator`.

    Outside a run it prepares custom loops; while Lightning runs, `bind` connects it to the strategy, so that `backward`
    scales and synchronises as strategy and precision plugin do. Missing members raise an AttributeError with the reason
    and the alternative; docs/user/accelerator.md lists them.

    Args:
        args: the training arguments.
    """

    project_dir: str | None = None
    logging_dir: str | None = None
    delayed_fp8_autocast = has_fp8_handler = fp8_enabled = False
    fp8_backend = "NO"
    _PROFILE = "profile_{}.json"

    def __init__(self, args: TrainingArguments) -> None:
        self.args = args
        config: Any = args.accelerator_config
        self.gradient_state = GradientState(dict(config.gradient_accumulation_kwargs or {}))
        self.apply_accumulation(args)
        known = {"data_seed": args.data_seed, "use_stateful_dataloader": False}
        self.dataloader_config = SimpleNamespace(**{**config.to_dict(), **known})
        self.state = StateView(args)
        self._models, self._optimizers, self._schedulers, self._dataloaders = [], [], [], []
        export_precision(args)

    def apply_accumulation(self, args: TrainingArguments) -> None:
        """Set the accumulation of the arguments; 1 as in later versions, where the Trainer divides losses itself."""
        self.gradient_accumulation_steps = 1 if followed().hides_accumulation else args.gradient_accumulation_steps

    def __getattr__(self, name: str) -> Any:
        """Raise the error of a missing member; `hasattr` returns False."""
        raise refusal(name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse members that would have no effect; allow attributes of subclasses and scripts."""
        if name in REFUSED and not hasattr(type(self), name):
            raise refusal(name)
        super().__setattr__(name, value)

    def __deepcopy__(self, memo: Any) -> Accelerator:
        """Return this object: there is one for each Trainer, as in the reference."""
        return self

    def bind(
        self, backward: Callable[..., None] | None, optimizer: Any = None, strategy: Strategy | None = None
    ) -> None:
        """Connect to a run of Lightning, or disconnect with None.

        Args:
            backward: the backward pass of the run; None for torch's own.
            optimizer: returns the optimizer of the run.
            strategy: of the run; kept after it.
        """
        self._backward = backward
        self._optimizer = optimizer or (lambda: None)
        self.strategy = strategy or self.strategy
        self._unscaled_run = False
        self._unscaled_run = strategy is not None and self.scaler is None

    @property
    def trackers(self) -> list[Any]:
        """Return an empty list: the trackers of `report_to` are callbacks."""
        return []

    log_with = trackers
    deepspeed_plugin: None = forwarded("state.deepspeed_plugin", "See `StateView.deepspeed_plugin`.")

    @property
    def multi_device(self) -> bool:
        """Return whether there are several processes, each with its own device and the whole model on it."""
        return self.use_distributed and self.distributed_type.on_several_devices

    is_fsdp2: bool = forwarded("state.is_fsdp2", "See `StateView.is_fsdp2`.")
    is_composable_parallelism_enabled: bool = forwarded("state.is_fsdp2", "As `is_fsdp2`.")
    torch_device_mesh: Any = forwarded("strategy.device_mesh", "The device mesh of the running strategy, or None.")

    @contextlib.contextmanager
    def maybe_context_parallel(
        self, buffers: Any = None, buffer_seq_dims: Any = None, no_restore_buffers: Any = None
    ) -> Iterator[Any]:
        """Split sequences over ranks within the block (`cp_size`, `sp_size`); do nothing outside of a training.

        Args:
            buffers: tensors that are replaced in place by the part of this rank.
            buffer_seq_dims: the sequence dimension of each buffer.
            no_restore_buffers: set of buffers that stay split after the block.
        """
        with self.strategy.split_sequences(buffers, buffer_seq_dims, no_restore_buffers) as calls:
            yield calls

    @contextlib.contextmanager
    def profile(self, profile_handler: Any = None) -> Iterator[Any]:
        """Profile the block with torch's profiler.

        Args:
            profile_handler: object like `accelerate.utils.ProfileKwargs`, with `build()` and `output_trace_dir`, the
                folder for the trace of each process.
        """
        folder = None if profile_handler is None else profile_handler.output_trace_dir
        with torch.profiler.profile() if profile_handler is None else profile_handler.build() as profiler:
            yield profiler
        if folder is not None:
            os.makedirs(folder, exist_ok=True)
            profiler.export_chrome_trace(os.path.join(folder, self._PROFILE.format(self.process_index)))
            self.wait_for_everyone()

    def end_training(self) -> None:
        """Destroy the process group at the end of a custom loop; no collective may follow."""
        self.state.destroy_process_group()


class StateView(Processes):
    """As `accelerate.state.AcceleratorState`, but without state: a view of the arguments.

    Args:
        args: the training arguments.
    """

    debug = False
    fork_launched = False
    initialized = True
    deepspeed_plugins = None
    torch_tp_plugin = None
    device_mesh: Any = None

    def __init__(self, args: TrainingArguments) -> None:
        self.args = args

    backend: str | None = forwarded("args.distributed_state.backend", "The backend of the process group, or None.")

    @property
    def is_fsdp2(self) -> bool:
        """Return whether weights are sharded by `fully_shard`."""
        return self.distributed_type == DistributedType.FSDP and fsdp_version(self.args) == 2

    @property
    def deepspeed_plugin(self) -> None:
        """Return None without DeepSpeed.

        Raises:
            NotImplementedError: DeepSpeed is configured.
        """
        if self.args.deepspeed:
            raise NotImplementedError(
                "trainer.accelerator.state.deepspeed_plugin: deepspeed shards the model that is trained, and no other. "
                "Leave deepspeed out, or do without a second model (by an adapter)."
            )

    @property
    def fsdp_plugin(self) -> FSDPPlugin | None:
        """Return the plugin with the settings of FSDP; None without FSDP."""
        settings = settings_of(self.args)
        if settings is None:
            return None
        return FSDPPlugin(settings)

    def destroy_process_group(self, group: Any = None) -> None:
        """Destroy a process group, by default that of all processes if there is one."""
        leave() if group is None else dist.destroy_process_group(group)

    def __getattr__(self, name: str) -> Any:
        """Look up other members in `args.distributed_state`."""
        if name.startswith("__") or name == "args":
            raise AttributeError(name)
        return getattr(self.args.distributed_state, name)

    def __repr__(self) -> str:
        """Return a one-line summary."""
        place = f"process {self.process_index} of {self.num_processes} ({self.local_process_index} on this machine)"
        on = f"{place}, device {self.device}, mixed precision {self.mixed_precision}"
        return f"Distributed environment: {self.distributed_type.value}, backend {self.backend}, {on}"
