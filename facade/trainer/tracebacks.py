"""Shortened tracebacks for errors in user code below `trainer.train()`."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Any

_OWN = __name__.partition(".")[0]
_INNER = (_OWN, "lightning", "pytorch_lightning", "lightning_fabric", "contextlib")
_STEPS = {
    "evaluate",
    "predict",
    "evaluation_loop",
    "training_step",
    "prediction_step",
    "compute_loss",
    "save_model",
}
"""Overridable methods, which stay visible."""
_OF_MODULES = {"_wrapped_call_impl", "_call_impl"}
VARIABLE = "LIGHTRAINER_TRACEBACK"
"""Environment variable; `full` leaves tracebacks unchanged."""


class ShortTraceback:
    """Remove the frames of loops and hooks from the tracebacks of errors in user code.

    Errors raised in this package or in Lightning keep all frames, except for interrupts.
    """

    def __enter__(self) -> None:
        """Enter the block."""

    def __exit__(
        self, kind: Any, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Shorten the traceback in place; the error propagates."""
        if error is None or traceback is None or os.environ.get(VARIABLE) == "full":
            return
        links = [traceback]
        while links[-1].tb_next is not None:
            links.append(links[-1].tb_next)
        if isinstance(error, Exception) and _package(links[-1]) in _INNER:
            return
        kept = [links[0], *(link for link in links[1:] if _is_shown(link))]
        for link, following in zip(kept, [*kept[1:], None], strict=True):
            link.tb_next = following
        left_out = len(links) - len(kept)
        if left_out and sys.version_info >= (3, 11):
            error.add_note(
                f"({left_out} frames of the training loop are left out; {VARIABLE}=full shows them)"
            )


def _package(link: TracebackType) -> str:
    return str(link.tb_frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_shown(link: TracebackType) -> bool:
    name, module = link.tb_frame.f_code.co_name, str(link.tb_frame.f_globals.get("__name__", ""))
    if module == "torch.nn.modules.module":
        return name not in _OF_MODULES
    if module.startswith(f"{_OWN}.facade.trainer."):
        # hooks of Lightning are called alike
        return name in _STEPS and not module.endswith("_module")
    return _package(link) not in _INNER
