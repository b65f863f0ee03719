"""Rules about training arguments: the rule book, common kinds of rules, and the rules about data."""

import logging
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from ...lightning_modules.common.suggestions import did_you_mean
from ..distributed.process import state_is_configured
from .accelerator import AcceleratorConfig
from .system_fields import START_METHODS

logger = logging.getLogger(__name__)

Rule = Callable[[Any], "str | list[str] | None"]
"""Returns the errors in the arguments: one sentence, several, or none."""


class RuleBook:
    """Rules, each with the fields that it looks at."""

    def __init__(self) -> None:
        self._rules: list[tuple[frozenset[str], Rule]] = []

    def add(self, *names: str) -> Callable[[Rule], Rule]:
        """Decorate a rule that looks at these fields."""

        def register(rule: Rule) -> Rule:
            self._rules.append((frozenset(names), rule))
            return rule

        return register

    def apply(self, args: Any, names: Collection[str] | None, skip: Collection[str]) -> list[str]:
        """Return the errors of all rules about no field in `skip`, and only about fields in `names`, if given.

        Rules about fields that these arguments do not have are skipped.
        """
        said: list[str] = []
        for looked_at, rule in self._rules:
            asked = looked_at.isdisjoint(skip) and (names is None or looked_at <= set(names))
            if asked and all(hasattr(args, name) for name in looked_at):
                answer = rule(args)
                said += [answer] if isinstance(answer, str) else answer or []
        return said


@dataclass(frozen=True)
class Range:
    """A rule: a number is at least `low`, at most `high` and, where that is given, less than `below`.

    None passes: if the field does not accept it, the type check reports it.
    """

    name: str
    low: float
    high: float = math.inf
    below: float | None = None
    remedy: str = ""

    def __call__(self, args: Any) -> str | None:
        """Look at one field."""
        value = getattr(args, self.name)
        if value is None or (self.low <= value <= self.high and (self.below is None or value < self.below)):
            return None
        bounds = [f"at least {self.low:g}"]
        if self.high < math.inf:
            bounds.append(f"at most {self.high:g}")
        if self.below is not None:
            bounds.append("finite" if self.below == math.inf else f"below {self.below:g}")
        return f"{self.name}={value!r} must be {' and '.join(bounds)}.{self.remedy}"


@dataclass(frozen=True)
class OneOf:
    """A rule: a text is one of several."""

    name: str
    choices: tuple[str | None, ...]

    def __call__(self, args: Any) -> str | None:
        """Look at one field."""
        return not_a_choice(self.name, getattr(args, self.name), self.choices)


@dataclass(frozen=True)
class Member:
    """A rule: a field holds a member of an enumeration, or the text of one."""

    name: str
    kind: type[Enum]

    def __call__(self, args: Any) -> str | None:
        """Look at one field."""
        return not_a_member(self.name, getattr(args, self.name), self.kind)


def not_a_choice(name: str, value: Any, choices: Collection[str | None]) -> str | None:
    """Return an error for a value that is none of `choices`, or None."""
    if value in choices:
        return None
    names = [choice for choice in choices if choice is not None]
    return f"{name}={value!r} is not known.{did_you_mean(value, names)} Choose from: {', '.join(names)}."


def not_a_member(name: str, value: Any, kind: type[Enum]) -> str | None:
    """Return an error for a value that no member of `kind` has, or None."""
    try:
        kind(value)
    except ValueError as error:
        off = " YAML reads a bare no as False; write 'no'." if value is False else ""
        return f"{name}={value!r}: {error}{off}"
    return None


ACCUMULATION_KEYS = ("num_steps", "adjust_scheduler", "sync_with_dataloader", "sync_each_batch")
"""Keys of `gradient_accumulation_kwargs`."""

_LAYER_SETTINGS = ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs")


def add_data_rules(book: RuleBook) -> None:
    """Add the rules about data to a book."""
    book.add("dataloader_multiprocessing_context")(OneOf("dataloader_multiprocessing_context", (*START_METHODS, None)))
    book.add("dataloader_num_workers", "dataloader_multiprocessing_context")(_starting)
    book.add("accelerator_config")(_splitting_batches)
    book.add("accelerator_config", "gradient_accumulation_steps")(_accumulating)
    book.add(*_LAYER_SETTINGS)(_layers)
    book.add("ddp_static_graph", "auto_find_batch_size")(_recording)


def warn_of_data_settings(args: Any) -> None:
    """Warn of settings of `accelerator_config` that have no effect, or less than they could."""
    config = args.accelerator_config
    if config.non_blocking and not args.dataloader_pin_memory:
        logger.warning(
            "accelerator_config: non_blocking=True works best with dataloader_pin_memory=True: only from page-locked "
            "memory batches are copied while the program goes on."
        )
    for key in ("adjust_scheduler", "sync_with_dataloader"):
        if not (config.gradient_accumulation_kwargs or {}).get(key, True):
            logger.warning(
                f"accelerator_config: gradient_accumulation_kwargs: {key}=False changes nothing: the Trainer takes a "
                "step at the end of each epoch, and the learning rate follows the steps."
            )


def _starting(args: Any) -> str | None:
    method = args.dataloader_multiprocessing_context
    if method is None or args.dataloader_num_workers != 0:
        return None
    return (
        f"dataloader_multiprocessing_context={method!r} needs worker processes, but dataloader_num_workers is 0. "
        "Leave it out, or pass dataloader_num_workers above 0."
    )


def _splitting_batches(args: Any) -> list[str]:
    config = args.accelerator_config
    if not isinstance(config, AcceleratorConfig):
        return []
    said = [
        f"accelerator_config: {item.name}={value!r} must be True or False."
        for item in fields(config)
        if item.type in (bool, bool | None) and not isinstance(value := getattr(config, item.name), (bool, type(None)))
    ]
    if config.use_configured_state and not state_is_configured():
        said.append(
            "accelerator_config: use_configured_state=True, but no state is configured yet. Before the arguments make "
            "an accelerate.PartialState() or call torch.distributed.init_process_group(), or leave it out."
        )
    return said


def _accumulating(args: Any) -> list[str]:
    given = getattr(args.accelerator_config, "gradient_accumulation_kwargs", None)
    if given is None:
        return []
    name, known = "accelerator_config: gradient_accumulation_kwargs", ", ".join(ACCUMULATION_KEYS)
    if not isinstance(given, Mapping):
        return [f"{name}={given!r} must be a dict with keys of {known}."]
    said = [
        f"{name}: {key!r} is not a known key.{did_you_mean(key, ACCUMULATION_KEYS)} Known: {known}."
        for key in given
        if key not in ACCUMULATION_KEYS
    ]
    said += [
        f"{name}: {key}={given[key]!r} must be True or False."
        for key in ACCUMULATION_KEYS[1:]
        if not isinstance(given.get(key, False), bool)
    ]
    return said + _window(name, given.get("num_steps"), args.gradient_accumulation_steps)


def _window(name: str, steps: Any, other: int) -> list[str]:
    """Return the errors of a `num_steps` beside `gradient_accumulation_steps`."""
    if steps is None or (type(steps) is int and steps == other):
        return []
    if type(steps) is not int or steps < 1:
        return [f"{name}: num_steps={steps!r} must be a whole number of at least 1."]
    return [f"{name}: num_steps={steps}, but gradient_accumulation_steps={other}. Give the one or the other."]


def _layers(args: Any) -> list[str]:
    said = []
    given = {name: getattr(args, name) or {} for name in _LAYER_SETTINGS}
    for name in _LAYER_SETTINGS[: 1 if given[_LAYER_SETTINGS[0]] == given[_LAYER_SETTINGS[1]] else 2]:
        every, offload = given[name].get("every_n_layers", 1), given[name].get("offload", False)
        if type(every) is not int or every < 1:
            said.append(f"{name}: every_n_layers={every!r} must be a whole number of at least 1.")
        if not isinstance(offload, bool):
            said.append(f"{name}: offload={offload!r} must be True or False.")
    return said


def _recording(args: Any) -> str | None:
    if not (args.ddp_static_graph and args.auto_find_batch_size):
        return None
    return (
        "ddp_static_graph=True does not go with auto_find_batch_size=True: DDP records the graph while gradients are "
        "exchanged, and a process that runs out of memory takes no part in that. Leave one of them out."
    )
