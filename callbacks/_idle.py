"""Methods that do nothing: calling them at every step would take a microsecond each, with all that events are given."""

from __future__ import annotations

import inspect
from dis import get_instructions
from typing import Any

_SAYS_NOTHING = {"RESUME", "NOP", "CACHE"}
_RETURNS_NOTHING = (["LOAD_CONST", "RETURN_VALUE"], ["RETURN_CONST"])


def is_empty(function: Any) -> bool:
    """Whether an event is a function with a docstring, `pass` or `...` for a body, so that nobody sees it not called.

    One that does not take what events are given is not: calling it is an error, which should be seen.
    """
    code = getattr(function, "__code__", None)
    if code is None or not code.co_flags & inspect.CO_VARKEYWORDS or code.co_argcount < 4:
        return False
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return False
    if not _takes_an_event(code, function):
        return False
    done = [instruction for instruction in get_instructions(code) if instruction.opname not in _SAYS_NOTHING]
    return [one.opname for one in done] in _RETURNS_NOTHING and done[0].argval is None


def _takes_an_event(code: Any, function: Any) -> bool:
    """Self, arguments, state and control by position, and defaults for whatever else it names."""
    named, defaults = code.co_argcount + code.co_kwonlyargcount, len(function.__defaults__ or ())
    defaults += len(function.__kwdefaults__ or ())
    return named - defaults <= 4
