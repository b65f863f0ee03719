"""Shorten tracebacks of `train()` and `evaluate()`, and explain device-side asserts."""

from __future__ import annotations

import os
from types import TracebackType

from ...lightning_modules.distributed.health import FULL_TRACEBACK

_OWN = __name__.partition(".")[0]
_HIDDEN_PACKAGES = (_OWN, "lightning", "pytorch_lightning", "lightning_fabric", "contextlib")
_STEPS = {
    "evaluate",
    "predict",
    "evaluation_loop",
    "training_step",
    "prediction_step",
    "compute_loss",
    "save_model",
}
"""Overridable methods, whose frames are kept."""
_DEVICE_ASSERT = "device-side assert triggered"
_CAUSES_OF_DEVICE_ASSERT = (
    "A GPU kernel received an index out of range. Usually a label is not below the number of "
    "classes, or a token id is not below the number of embeddings. CUDA does not say which, and "
    "often reports it at a later line: run a few steps with use_cpu=True, where the error names "
    "the index and the line. This process cannot use the GPU any more."
)
_MODULE_CALLS = {"_wrapped_call_impl", "_call_impl"}


class ShortTraceback:
    """Remove frames of loops and hooks from the traceback of an error, and explain device-side
    asserts of CUDA in a note.

    Frames of user code and of other libraries, the overridable methods that lead to them, and the
    line that raised the error are kept. Errors that caused the error are shortened as well.
    """

    def __enter__(self) -> None:
        """Enter the block."""

    def __exit__(
        self, kind: object, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Shorten the traceback in place; the error propagates."""
        if error is None:
            return
        if _DEVICE_ASSERT in str(error):
            error.add_note(_CAUSES_OF_DEVICE_ASSERT)
        if os.environ.get(FULL_TRACEBACK) == "full":
            return

        left_out = sum(_shorten(shown_error) for shown_error in _with_causes(error))
        if left_out:
            error.add_note(
                f"(frames of the training loop that are left out: {left_out}; "
                f"{FULL_TRACEBACK}=full shows them)"
            )


def _with_causes(error: BaseException) -> list[BaseException]:
    """Return an error, and the errors that Python prints before it as its causes."""
    errors: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in errors:
        errors.append(current)
        cause = current.__cause__
        if cause is None and not current.__suppress_context__:
            cause = current.__context__
        current = cause
    return errors


def _shorten(error: BaseException) -> int:
    """Shorten the traceback of one error, and return how many frames were removed."""
    links: list[TracebackType] = []
    link = error.__traceback__
    while link is not None:
        links.append(link)
        link = link.tb_next
    if not links:
        return 0

    # Keep the first frame, which catches the error, and the last one, which raised it.
    shown = [links[0], *(link for link in links[1:-1] if _is_shown(link))]
    # The line at which an interrupt arrived is irrelevant if it is in this package.
    is_interrupt = not isinstance(error, Exception)
    if len(links) > 1 and (_is_shown(links[-1]) or not is_interrupt):
        shown.append(links[-1])

    for link, following in zip(shown, [*shown[1:], None], strict=True):
        link.tb_next = following
    return len(links) - len(shown)


def _package(link: TracebackType) -> str:
    return str(link.tb_frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_shown(link: TracebackType) -> bool:
    name = link.tb_frame.f_code.co_name
    module = str(link.tb_frame.f_globals.get("__name__", ""))
    if module == "torch.nn.modules.module":
        return name not in _MODULE_CALLS
    if module.startswith(f"{_OWN}.facade.trainer."):
        # LightningModules have hooks with the same names as some of these steps.
        return name in _STEPS and not module.endswith("_module")
    return _package(link) not in _HIDDEN_PACKAGES
