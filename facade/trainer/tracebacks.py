"""Readable errors below `trainer.train()` and `trainer.evaluate()`: short tracebacks, and the
usual causes of an error that names none.
"""

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
"""Overridable methods, which stay visible."""
_DEVICE_ASSERT = "device-side assert triggered"
_CAUSES_OF_DEVICE_ASSERT = (
    "A kernel on the GPU met an index out of range. Usually a label is not below the number of "
    "classes, or a token id is not below the number of embeddings. CUDA does not say which, and "
    "often reports it at a later line: run a few steps with use_cpu=True, where the error names "
    "the index and the line. This process cannot use the GPU any more."
)
_MODULE_CALLS = {"_wrapped_call_impl", "_call_impl"}


class ShortTraceback:
    """Remove the frames of loops and hooks from the traceback of an error, and add a note to a
    failed assertion of CUDA.

    What stays is the code of users and of other libraries, the overridable methods that lead there,
    and the line that raised the error. The causes of the error are shortened, too.
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
    """Return an error and the errors that Python shows before it."""
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

    # The first frame is the one that catches the error, the last one raised it.
    kept = [links[0], *(link for link in links[1:-1] if _is_shown(link))]
    # Where in this package an interrupt came says nothing.
    is_interrupt = not isinstance(error, Exception)
    if len(links) > 1 and (_is_shown(links[-1]) or not is_interrupt):
        kept.append(links[-1])

    for link, following in zip(kept, [*kept[1:], None], strict=True):
        link.tb_next = following
    return len(links) - len(kept)


def _package(link: TracebackType) -> str:
    return str(link.tb_frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_shown(link: TracebackType) -> bool:
    name = link.tb_frame.f_code.co_name
    module = str(link.tb_frame.f_globals.get("__name__", ""))
    if module == "torch.nn.modules.module":
        return name not in _MODULE_CALLS
    if module.startswith(f"{_OWN}.facade.trainer."):
        # Modules have Lightning's hooks, some of which have the names of these steps.
        return name in _STEPS and not module.endswith("_module")
    return _package(link) not in _HIDDEN_PACKAGES
