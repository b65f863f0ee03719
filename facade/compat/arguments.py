"""Parse argument values, count the parameters of a function, and compare a run with its checkpoint."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterable
from typing import Any, NewType

from ..arguments.result_fields import LOG_LEVELS
from ..parser.options import to_bool as string_to_bool

__all__ = [
    "DataClass",
    "DataClassType",
    "compare_trainer_and_checkpoint_args",
    "log_levels",
    "make_choice_type_function",
    "number_of_arguments",
    "str_to_bool",
    "string_to_bool",
    "trainer_log_levels",
]

logger = logging.getLogger(__name__)

DataClass = NewType("DataClass", object)
"""As `transformers.hf_argparser.DataClass`: an object of a dataclass."""
DataClassType = NewType("DataClassType", object)
"""As `transformers.hf_argparser.DataClassType`: a dataclass."""

log_levels = {name: level for name, level in LOG_LEVELS.items() if name != "passive"}
"""As `transformers.training_args.log_levels`."""
trainer_log_levels = {**log_levels, "passive": -1}
"""As `transformers.training_args.trainer_log_levels`: the values of `log_level`."""


def make_choice_type_function(choices: Iterable[Any]) -> Callable[[str], Any]:
    """As `transformers.hf_argparser.make_choice_type_function`: map a text to the choice of that spelling."""
    by_text = {str(choice): choice for choice in choices}
    return lambda text: by_text.get(text, text)


def str_to_bool(value: str, to_bool: bool = True) -> int | bool:
    """As `transformers.training_args.str_to_bool`.

    Raises:
        ValueError: The text is neither a true nor a false word.
    """
    word = value.lower()
    if word not in ("y", "yes", "t", "true", "on", "1", "n", "no", "f", "false", "off", "0"):
        raise ValueError(f"{value!r} is neither true nor false. Write yes or no.")
    found = word in ("y", "yes", "t", "true", "on", "1")
    return found if to_bool else int(found)


def _convert_str_dict(passed_value: dict[str, Any]) -> dict[str, Any]:
    """As `transformers.training_args._convert_str_dict`: parse truth values and numbers, in place."""
    for key, value in passed_value.items():
        if isinstance(value, dict):
            _convert_str_dict(value)
        elif isinstance(value, str):
            passed_value[key] = _converted(value)
    return passed_value


def _converted(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.isdigit():
        return int(text)
    return float(text) if text.replace(".", "", 1).isdigit() else text


def number_of_arguments(func: Callable[..., Any]) -> int:
    """As `transformers.trainer_utils.number_of_arguments`: count the parameters left to pass."""
    if isinstance(func, functools.partial):
        return len(inspect.signature(func.func).parameters) - len(func.args) - len(func.keywords)
    return len(inspect.signature(func).parameters)


def compare_trainer_and_checkpoint_args(training_args: Any, trainer_state: Any) -> None:
    """As `transformers.trainer_utils.compare_trainer_and_checkpoint_args`: warn of arguments that differ.

    Args:
        training_args: of the run.
        trainer_state: of the checkpoint.
    """
    pairs = {
        name: (getattr(training_args, name, None), getattr(trainer_state, name, None))
        for name in ("logging_steps", "eval_steps", "save_steps")
    }
    batch = (trainer_state.train_batch_size or 0) // max(1, training_args.n_gpu)
    pairs["per_device_train_batch_size"] = training_args.per_device_train_batch_size, batch
    differing = [
        f"{name} is {now} now and was {then}"
        for name, (now, then) in pairs.items()
        if now is not None and then is not None and now != then
    ]
    if differing:
        logger.warning("The checkpoint was written with other arguments: %s.", "; ".join(differing))
