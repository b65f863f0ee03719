"""The docstring of a public name states in one line what it does, before any comparison with its
counterpart; public functions, and methods of the Trainer and its arguments, describe each
parameter.
"""

import importlib
import inspect
import re

MODULES = ["lightrainer", "lightrainer.callbacks", "lightrainer.lightning_modules"]
COMPLETE = ["Trainer", "Seq2SeqTrainer", "TrainingArguments", "Setters", "TrainerState"]
"""Classes whose methods describe each parameter."""


def public_names():
    """Return the public classes and functions of the modules by name."""
    objects = {}
    for module in map(importlib.import_module, MODULES):
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                objects[name] = value
    return objects


def methods(cls):
    """Yield the public functions and properties that a class has from lightrainer, by path."""
    for base in cls.__mro__:
        if not base.__module__.startswith("lightrainer"):
            continue
        for name, member in vars(base).items():
            if isinstance(member, (staticmethod, classmethod)):
                member = member.__func__
            elif isinstance(member, property):
                member = member.fget
            if inspect.isfunction(member) and not name.startswith("_"):
                yield f"{base.__name__}.{name}", member


def described():
    """Return everything that needs a docstring by path: public names, and methods of classes."""
    objects = public_names()
    for value in public_names().values():
        if inspect.isclass(value):
            objects.update(methods(value))
    return objects


def fault_of_summary(docstring):
    """Return what is wrong with the first line of a docstring; empty if nothing is."""
    lines = (docstring or "").strip().splitlines()
    if not lines:
        return "no docstring"
    if lines[0].startswith("As "):
        return "begins with its counterpart"
    if len(lines) > 1 and lines[1].strip():
        return "has a summary of several lines"
    return ""


def undescribed(function):
    """Return the parameters of a function that its section `Args` does not name."""
    section = inspect.getdoc(function).partition("Args:\n")[2]
    # A description may be that of several parameters.
    headings = re.findall(r"^ {4}([\w*, ]+):", section, re.MULTILINE)
    names = set(re.findall(r"\w+", " ".join(headings)))
    return sorted(set(inspect.signature(function).parameters) - names - {"self", "cls"})


def test_docstrings_summaries_describe_the_name():
    faults = {}
    for path, value in described().items():
        fault = fault_of_summary(inspect.getdoc(value))
        if fault:
            faults[path] = fault
    assert len(described()) > 600
    assert faults == {}


def test_parameters_of_functions_and_of_the_trainer_are_described():
    missing = {}
    for path, value in described().items():
        owner, _, _ = path.rpartition(".")
        if inspect.isfunction(value) and (not owner or owner in COMPLETE):
            missing[path] = undescribed(value)
    assert len(missing) > 100
    assert {path: names for path, names in missing.items() if names} == {}


def test_docstrings_check_finds_a_fault():
    """Negative control."""

    def function(known, left_out):
        """As `another.function`.

        Args:
            known: described.
        """

    assert fault_of_summary(function.__doc__) == "begins with its counterpart"
    assert fault_of_summary("Do this\nand that.") == "has a summary of several lines"
    assert fault_of_summary(None) == "no docstring"
    assert undescribed(function) == ["left_out"]
