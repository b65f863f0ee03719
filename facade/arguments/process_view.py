"""Properties of training arguments about this process and its device.

Each property reads `current_process` on access, so that arguments store, compare and pickle none of
it.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING

from ..distributed.process import ProcessEnvironment, current_process, forwarded, others_wait
from .enums import ParallelMode
from .fields import ArgumentFields
from .result_fields import LOG_LEVELS

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


class ProcessView(ArgumentFields):
    """The properties of `transformers.TrainingArguments` that depend on the process they are
    read in.
    """

    _launcher_precision = "no"
    """Precision set by `accelerate launch`; used if neither fp16 nor bf16 is set."""
    _from_launcher: tuple[str, ...] = ()
    """The arguments that were taken from the launcher's variables."""
    _set_n_gpu: int | None = None
    """The number of GPUs that a script has set."""
    compile_options: Mapping[str, bool] = MappingProxyType({})
    """`fullgraph` and `dynamic` of torch.compile, which only a launcher can set."""

    @property
    def mixed_precision(self) -> str:
        """As the attribute of that name in the reference, but it follows `fp16` and `bf16`:
        "no", "fp16" or "bf16".
        """
        if self.fp16:
            return "fp16"
        return "bf16" if self.bf16 else self._launcher_precision

    @mixed_precision.setter
    def mixed_precision(self, value: str) -> None:
        if value not in ("no", "fp16", "bf16"):
            raise ValueError(
                f"mixed_precision={value!r} is not known. Choose from: no, fp16, bf16."
            )
        self.fp16, self.bf16, self._launcher_precision = value == "fp16", value == "bf16", "no"

    @property
    def distributed_state(self) -> ProcessEnvironment:
        """As the attribute of that name in the reference: rank, world size and device of this
        process.
        """
        return current_process(*self._asked_of_process)

    @property
    def _asked_of_process(self) -> tuple[bool, str | None, float, bool]:
        """The arguments of `current_process`."""
        configured = getattr(self.accelerator_config, "use_configured_state", False)
        return self.use_cpu, self.ddp_backend, self.ddp_timeout, configured

    @property
    def device(self) -> "torch.device":
        """The device this process computes on."""
        return self.distributed_state.device

    @property
    def _setup_devices(self) -> "torch.device":
        """As `device`, under the private name that older scripts read."""
        return self.device

    @property
    def n_gpu(self) -> int:
        """Number of GPUs of this process: 1, or 0 on the CPU and through torch_xla."""
        return self._n_gpu

    @property
    def _n_gpu(self) -> int:
        """As `n_gpu`; older scripts read this name, and set it to 1 where they see several GPUs."""
        if self._set_n_gpu is not None:
            return self._set_n_gpu
        return 0 if self.device.type in ("cpu", "xla") else 1

    @_n_gpu.setter
    def _n_gpu(self, value: int) -> None:
        self._set_n_gpu = value

    @property
    def parallel_mode(self) -> ParallelMode:
        """DISTRIBUTED with several processes, NOT_PARALLEL with one; TPU where torch_xla
        computes.
        """
        if self.device.type == "xla":
            return ParallelMode.TPU
        return ParallelMode.DISTRIBUTED if self.world_size > 1 else ParallelMode.NOT_PARALLEL

    world_size: int = forwarded("distributed_state.world_size", "Number of processes.")
    process_index: int = forwarded("distributed_state.rank", "Its number among all, from 0.")
    local_process_index: int = forwarded(
        "distributed_state.local_rank", "Its number on its machine, from 0."
    )
    local_world_size: int = forwarded(
        "distributed_state.local_world_size", "Number of processes on this machine."
    )

    @property
    def should_log(self) -> bool:
        """True on the rank that logs: rank 0, or with `log_on_each_node` local rank 0."""
        return (self.local_process_index if self.log_on_each_node else self.process_index) == 0

    @property
    def should_save(self) -> bool:
        """True on the rank that writes files: rank 0, or with `save_on_each_node` local rank 0."""
        return (self.local_process_index if self.save_on_each_node else self.process_index) == 0

    @property
    def place_model_on_device(self) -> bool | None:
        """None, so that the Trainer decides; a subclass may return True or False."""
        return None

    @property
    def ddp_timeout_delta(self) -> timedelta:
        """`ddp_timeout` as a time span."""
        return timedelta(seconds=self.ddp_timeout)

    @property
    def _no_sync_in_gradient_accumulation(self) -> bool:
        return not self.deepspeed

    def get_process_log_level(self) -> int:
        """As the method of that name in the reference: `log_level`, or `log_level_replica` on ranks
        that do not log.

        Returns:
            A number of the `logging` module; for "passive" the level that lightrainer's logger has.
        """
        level = LOG_LEVELS[self.log_level if self.should_log else self.log_level_replica]
        return (
            level
            if level >= 0
            else logging.getLogger(__name__.partition(".")[0]).getEffectiveLevel()
        )

    @contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Iterator[None]:
        """As the method of that name in the reference: the others wait until the first process has
        left the block.

        Args:
            local: The first process of each machine goes first; otherwise the first one of all.
            desc: Description of the block, for the log.
        """
        process = self.distributed_state
        first = process.is_local_main_process if local else process.is_main_process
        logger.debug(
            "Process %s %s: %s",
            process.rank,
            "goes first" if first else "waits for the first one",
            desc,
        )
        with others_wait(first, process.world_size):
            yield
