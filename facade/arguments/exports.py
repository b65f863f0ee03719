"""Export arguments to other libraries: accelerate's state, and the variables for loading weights
in `transformers`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from ...lightning_modules.common.libraries import loaded
from ..distributed.process import is_set_up
from . import old_names

if TYPE_CHECKING:
    from .process_view import ProcessView


def export_process(args: ProcessView) -> None:
    """Set `accelerate.PartialState` from the arguments, unless it agrees with them already.

    This is for scripts of `transformers`: only where its names are served.

    Args:
        args: With `accelerator_config={"use_configured_state": True}` the state is left unchanged.
    """
    module = loaded("accelerate.state")
    if module is None or getattr(args.accelerator_config, "use_configured_state", False):
        return
    process = args.distributed_state  # joins the process group, which is then found
    if is_set_up(module):
        known = module.PartialState()
        if known.device.type == process.device.type and known.num_processes == process.world_size:
            return
        module.AcceleratorState._reset_state(reset_partial_state=True)
    module.PartialState(cpu=args.use_cpu)


def export_precision(args: ProcessView) -> None:
    """Set the precision of `accelerate.AcceleratorState`, as constructing an `Accelerator` does."""
    module = loaded("accelerate.state")
    accelerate = loaded("accelerate")
    if not old_names.accepted() or module is None or not hasattr(accelerate, "Accelerator"):
        return
    export_process(args)
    if module.is_initialized():
        if module.AcceleratorState().mixed_precision == args.mixed_precision:
            return
        module.AcceleratorState._reset_state()
    cpu = module.PartialState().device.type == "cpu"
    with _without_engines() if cpu else nullcontext():
        accelerate.Accelerator(mixed_precision=args.mixed_precision, cpu=cpu)


_ENGINES = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_PARALLELISM_CONFIG")
"""Variables by which accelerate makes settings that it does not use on the CPU, some of which
need a GPU.
"""


@contextmanager
def _without_engines() -> Iterator[None]:
    """Hide the variables of `_ENGINES` in the block."""
    hidden = {name: os.environ.pop(name) for name in _ENGINES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


LOADING_VARIABLES = ("ACCELERATE_USE_FSDP", "FSDP_CPU_RAM_EFFICIENT_LOADING")
"""Both are read by `from_pretrained` of `transformers`."""

_told: set[str] = set()


def export_loaders(once: bool | None) -> None:
    """Set the variables for these arguments, or unset those set here for earlier arguments.

    Args:
        once: read weights on one rank of a machine only; None if the arguments leave it open.
    """
    for name in LOADING_VARIABLES:
        if once:
            _told.update({name} - os.environ.keys())
            os.environ[name] = "true"
        elif name in _told:
            _told.discard(name)
            os.environ.pop(name, None)
    if once is False and LOADING_VARIABLES[1] in os.environ:  # override the launcher
        os.environ[LOADING_VARIABLES[1]] = "false"


def is_ours(name: str) -> bool:
    """Return True if a variable was set here, and not by a launcher."""
    return name in _told
