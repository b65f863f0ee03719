"""Export arguments to accelerate's state, and to the variables for loading weights."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...lightning_modules.common.libraries import loaded
from ..distributed.process import has_accelerate_state
from .old_names import old_names_accepted

if TYPE_CHECKING:
    from .process_view import ProcessView


def export_process(args: ProcessView) -> None:
    """Set `accelerate.PartialState` from the arguments, unless it agrees with them already.

    Needed only by scripts that import the names of transformers from this package.

    Args:
        args: The training arguments. With `accelerator_config={"use_configured_state": True}`
            nothing is changed.
    """
    module = loaded("accelerate.state")
    if module is None or getattr(args.accelerator_config, "use_configured_state", False):
        return

    # This joins the process group, which accelerate then finds.
    process = args.distributed_state
    if has_accelerate_state(module):
        state = module.PartialState()
        has_same_device = state.device.type == process.device.type
        if has_same_device and state.num_processes == process.world_size:
            return
        module.AcceleratorState._reset_state(reset_partial_state=True)
    module.PartialState(cpu=args.use_cpu)


def export_precision(args: ProcessView) -> None:
    """Set the precision of `accelerate.AcceleratorState`, as constructing an `Accelerator` does."""
    module = loaded("accelerate.state")
    accelerate = loaded("accelerate")
    if not old_names_accepted() or module is None or not hasattr(accelerate, "Accelerator"):
        return
    export_process(args)

    # A state with another precision is replaced.
    if module.is_initialized():
        if module.AcceleratorState().mixed_precision == args.mixed_precision:
            return
        module.AcceleratorState._reset_state()
    if module.PartialState().device.type == "cpu":
        with _without_engine_variables():
            accelerate.Accelerator(mixed_precision=args.mixed_precision, cpu=True)
    else:
        accelerate.Accelerator(mixed_precision=args.mixed_precision, cpu=False)


_ENGINE_VARIABLES = (
    "ACCELERATE_USE_FSDP",
    "ACCELERATE_USE_DEEPSPEED",
    "ACCELERATE_USE_PARALLELISM_CONFIG",
)
"""Variables that make accelerate create settings, some of which need a GPU."""


@contextmanager
def _without_engine_variables() -> Generator[None]:
    """Hide the variables of `_ENGINE_VARIABLES` in the block."""
    hidden = {name: os.environ.pop(name) for name in _ENGINE_VARIABLES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


LOADING_VARIABLES = ("ACCELERATE_USE_FSDP", "FSDP_CPU_RAM_EFFICIENT_LOADING")
"""Both are read by `from_pretrained` of `transformers`."""

_exported_names: set[str] = set()
"""The variables that were set here, and not by a launcher."""


def export_weight_loading(main_rank_only: bool | None) -> None:
    """Tell `from_pretrained` through the environment whether to read weights on one rank only.

    Variables that were set here for earlier arguments are removed; those of a launcher stay.

    Args:
        main_rank_only: Read weights on one rank of a machine only; None if the arguments leave it
            open.
    """
    for name in LOADING_VARIABLES:
        if main_rank_only:
            if name not in os.environ:
                _exported_names.add(name)
            os.environ[name] = "true"
        elif name in _exported_names:
            _exported_names.discard(name)
            os.environ.pop(name, None)

    # False overrides the launcher.
    if main_rank_only is False and "FSDP_CPU_RAM_EFFICIENT_LOADING" in os.environ:
        os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"


def was_exported(name: str) -> bool:
    """Return True if a variable was set here, and not by a launcher."""
    return name in _exported_names
