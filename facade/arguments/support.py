"""Refuse documented values that are not supported, instead of ignoring them.

For a field with some unsupported values, a function in `PARTLY` returns the remedy.
"""

from collections.abc import Callable, Collection
from typing import Any

from ..distributed.xla_device import xla_is_chosen
from .coercion import report_to_list
from .enums import DebugOption
from .fields import ArgumentFields
from .launch_variables import refusals


def _trackers(report_to: Any) -> str | None:
    """Not there: 'neptune'."""
    if "neptune" not in report_to_list(report_to):
        return None
    return "report_to=['neptune']: the reference has deprecated it; use another tracker, or a callback of your own"


def _config_class(config: Any) -> str | None:
    """Not possible: a class in place of an object."""
    if isinstance(config, type):
        return f"accelerator_config={config.__name__}, a class: pass an object, such as {config.__name__}()"
    return None


def _watching(debug: Any) -> str | None:
    """Not there: 'tpu_metrics_debug' without torch_xla."""
    if DebugOption.TPU_METRICS_DEBUG not in (debug or ()) or xla_is_chosen():
        return None
    return "debug='tpu_metrics_debug': there is no TPU, or no torch_xla; leave it out"


def _groups(config: Any) -> str | None:
    """Not there: tp_size together with dp_replicate_size."""
    if getattr(config, "tp_enabled", False) and config.dp_replicate_enabled:
        sizes = f"dp_replicate_size={config.dp_replicate_size} with tp_size={config.tp_size}"
        return f"parallelism_config: {sizes}: Lightning's mesh has two dimensions; raise dp_shard_size instead"
    return None


PARTLY: dict[str, Callable[[Any], str | None]] = {
    "debug": _watching,
    "report_to": _trackers,
    "accelerator_config": _config_class,
    "parallelism_config": _groups,
}
"""Fields with some unsupported values, each with a function that returns the remedy.

The first line of its docstring is the remark in `docs/reference/arguments.md`.
"""


def unsupported(args: ArgumentFields, names: Collection[str] | None = None) -> list[str]:
    """Return one sentence for each unsupported argument, with its value and a remedy.

    Args:
        args: After `coerce`, or with fields changed since.
        names: Check only these fields; by default all, and the launcher's environment too.
    """
    said: list[str] = []
    for name, judge in PARTLY.items():
        if names is None or name in names:
            said += filter(None, [judge(getattr(args, name))])
    return said + (refusals() if names is None else [])


def raise_for_unsupported(args: ArgumentFields, names: Collection[str] | None = None) -> None:
    """Raise one error with all results of `unsupported`.

    Raises:
        NotImplementedError: Names each argument, its value, and a remedy.
    """
    raise_together(unsupported(args, names))


def raise_together(said: list[str]) -> None:
    """Raise one error with all sentences; do nothing without any.

    Args:
        said: one sentence for each unsupported value, with a remedy.

    Raises:
        NotImplementedError: there are sentences.
    """
    if said:
        raise NotImplementedError("\n".join(["lightrainer does not do this yet:", *said]))
