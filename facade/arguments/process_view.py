"""Attributes of training arguments that are not fields.

They are what the launcher or `derive` has set, and properties about this process and its device. A
property reads `current_process` on access, so that arguments neither store, compare nor pickle it.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..distributed.process import (
    ProcessEnvironment,
    current_process,
    first_process_first,
    forwarded,
)
from .enums import ParallelMode
from .fields import ArgumentFields
from .result_fields import LOG_LEVELS

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


class ProcessOptions(NamedTuple):
    """The arguments of `current_process`."""

    use_cpu: bool
    ddp_backend: str | None
    ddp_timeout: float
    configured: bool


class ProcessView(ArgumentFields):
    """The properties of `transformers.TrainingArguments` that depend on the current process."""

    # These are not fields, since this class is not a dataclass: the constructor does not take them,
    # and they are not serialized.
    launcher_precision = "no"
    """Precision set by `accelerate launch`; used if neither fp16 nor bf16 is set."""
    set_by_launcher: tuple[str, ...] = ()
    """The arguments that were taken from the launcher's variables."""
    derived_checkpointing: tuple[Any, Any] | None = None
    """`activation_checkpointing` and its settings as `derive` has set them.

    `checkpointing` finds by them which of two names was changed later. A plain tuple, since it is
    pickled with the arguments.
    """
    hf_deepspeed_config: Any = None
    """The active configuration of DeepSpeed, an `HfTrainerDeepSpeedConfig`."""
    _n_gpu_override: int | None = None
    """The number of GPUs that a script has set."""
    compile_options: Mapping[str, bool] = MappingProxyType({})
    """`fullgraph` and `dynamic` of torch.compile, which only a launcher can set."""

    @property
    def mixed_precision(self) -> str:
        """Precision of mixed computation, from `fp16` and `bf16`: "no", "fp16" or "bf16"."""
        if self.fp16:
            return "fp16"
        if self.bf16:
            return "bf16"
        return self.launcher_precision

    @mixed_precision.setter
    def mixed_precision(self, value: str) -> None:
        if value not in ("no", "fp16", "bf16"):
            raise ValueError(
                f"mixed_precision={value!r} is not known. Choose from: no, fp16, bf16."
            )
        self.fp16 = value == "fp16"
        self.bf16 = value == "bf16"
        self.launcher_precision = "no"

    @property
    def distributed_state(self) -> ProcessEnvironment:
        """Rank, world size and device of this process."""
        return current_process(*self._process_options)

    @property
    def _process_options(self) -> ProcessOptions:
        use_configured_state = getattr(self.accelerator_config, "use_configured_state", False)
        return ProcessOptions(
            self.use_cpu, self.ddp_backend, self.ddp_timeout, use_configured_state
        )

    @property
    def device(self) -> torch.device:
        """The device this process computes on."""
        return self._setup_devices

    @property
    def _setup_devices(self) -> torch.device:
        """The `device`, under the private name that older scripts read or override."""
        return self.distributed_state.device

    @property
    def n_gpu(self) -> int:
        """Number of GPUs of this process: 1, or 0 on the CPU and through torch_xla."""
        return self._n_gpu

    @property
    def _n_gpu(self) -> int:
        """The `n_gpu` for older scripts, which set this name to 1 if they see several GPUs."""
        if self._n_gpu_override is not None:
            return self._n_gpu_override
        return 0 if self.device.type in ("cpu", "xla") else 1

    @_n_gpu.setter
    def _n_gpu(self, value: int) -> None:
        self._n_gpu_override = value

    @property
    def parallel_mode(self) -> ParallelMode:
        """TPU with torch_xla, else DISTRIBUTED with several processes and NOT_PARALLEL with one."""
        if self.device.type == "xla":
            return ParallelMode.TPU
        if self.world_size > 1:
            return ParallelMode.DISTRIBUTED
        return ParallelMode.NOT_PARALLEL

    world_size: int = forwarded("distributed_state.world_size", "Number of processes.")
    process_index: int = forwarded("distributed_state.rank", "Rank of this process, from 0.")
    local_process_index: int = forwarded(
        "distributed_state.local_rank", "Rank of this process on its machine, from 0."
    )

    @property
    def should_log(self) -> bool:
        """True on the rank that logs: rank 0, or with `log_on_each_node` local rank 0."""
        if self.log_on_each_node:
            return self.local_process_index == 0
        return self.process_index == 0

    @property
    def should_save(self) -> bool:
        """True on the rank that writes files: rank 0, or with `save_on_each_node` local rank 0."""
        if self.save_on_each_node:
            return self.local_process_index == 0
        return self.process_index == 0

    @property
    def place_model_on_device(self) -> bool | None:
        """None lets the Trainer decide; a subclass may return True or False."""
        return None

    @property
    def ddp_timeout_delta(self) -> timedelta:
        """`ddp_timeout` as a time span."""
        return timedelta(seconds=self.ddp_timeout)

    @property
    def _no_sync_in_gradient_accumulation(self) -> bool:
        """Whether accumulation may skip the exchange of gradients, under transformers' name.

        DeepSpeed decides that itself.
        """
        return not self.deepspeed

    def get_process_log_level(self) -> int:
        """Return the level of `log_level`, or of `log_level_replica` on ranks that do not log.

        Returns:
            A number of the `logging` module; for "passive" the level of lightrainer's logger.
        """
        level_name = self.log_level if self.should_log else self.log_level_replica
        level = LOG_LEVELS[level_name]
        if level >= 0:
            return level
        package_name = __name__.partition(".")[0]
        return logging.getLogger(package_name).getEffectiveLevel()

    @contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Generator[None]:
        """Run the block in the main process first; the other processes wait until it has left it.

        Args:
            local: The first process of each machine runs it first; otherwise rank 0.
            desc: What the block does, for the debug log.
        """
        process = self.distributed_state
        is_first = process.is_main_process
        if local:
            is_first = process.is_local_main_process
        if is_first:
            logger.debug("Rank %s runs first: %s", process.rank, desc)
        else:
            logger.debug("Rank %s waits for the main process: %s", process.rank, desc)
        with first_process_first(is_first, process.world_size):
            yield
