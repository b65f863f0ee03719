"""Fill dataclasses, such as the training arguments, from a command line or a file."""

from __future__ import annotations

import os
import re
import sys
from argparse import SUPPRESS, Action, ArgumentError, ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, field, fields
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

from ...lightning_modules.common.json_files import read_object
from ...lightning_modules.common.redaction import (
    option_names,
    redacted,
    secret_values,
    secret_words,
)
from ...lightning_modules.common.suggestions import did_you_mean
from ..arguments.fields import ArgumentFields
from ..arguments.old_names import OLD_NAMES, accepted, advice
from ..arguments.unknown import NamesItsArguments
from .help_formatter import ArgumentHelpFormatter, concern
from .options import add_field, flags_of, to_bool


def HfArg(  # noqa: N802 - the documented name
    *,
    aliases: str | list[str] | None = None,
    help: str | None = None,
    default: Any = MISSING,
    default_factory: Any = MISSING,
    metadata: dict[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Declare a field of a dataclass, with what its option on the command line shows and accepts.

    As `transformers.hf_argparser.HfArg`, but a dict of metadata that is passed is not changed.

    Args:
        aliases: Further names of the option, such as "-e"; one or a list.
        help: A sentence for `--help`.
        default: Value where the option is not given. Without it and `default_factory` the option is
            required.
        default_factory: A function without arguments that makes the default.
        metadata: Further metadata; "choices" and "metavar" are meant for argparse too.
        **kwargs: Passed to `dataclasses.field`.

    Returns:
        A field of `dataclasses`.
    """
    said = {"aliases": aliases, "help": help}
    known = {
        **(metadata or {}),
        **{key: value for key, value in said.items() if value is not None},
    }
    return field(default=default, default_factory=default_factory, metadata=known, **kwargs)


class HfArgumentParser(ArgumentParser):
    """Read dataclasses from a command line, a JSON or YAML file, or a dict.

    As `transformers.HfArgumentParser`, but a misspelt option is answered with the nearest one.

    Each field of a dataclass is an option, written with underscores or with dashes; a truth value
    that is True by default has an opposite, `--no_x`. In the help the training arguments stand
    under headings. Beyond the reference: a dict is written as JSON, a `default_factory` is called
    for fields of all types, a field declared as `str` or something else keeps text that is not
    something else, and a list field with text as its default keeps that.

    Args:
        dataclass_types: One dataclass, or several. One that has `_argument_group_name` gets a
            heading in the help.
        **kwargs: Passed to `argparse.ArgumentParser`.

    Raises:
        TypeError: One of the classes is not a dataclass.
        ValueError: A field is of a type that cannot be read from a command line.
        RuntimeError: An annotation names what cannot be found from its module, such as a class
            inside a function.
    """

    dataclass_types: list[Any]
    """The dataclasses, in the order of the results."""

    def __init__(self, dataclass_types: Any = None, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", ArgumentHelpFormatter)
        super().__init__(**kwargs)
        if dataclass_types is None:
            dataclass_types = []
        several = isinstance(dataclass_types, Iterable) and not isinstance(dataclass_types, type)
        self.dataclass_types = list(dataclass_types) if several else [dataclass_types]
        for kind in self.dataclass_types:
            self._add_dataclass_arguments(kind)

    def _add_dataclass_arguments(self, kind: Any) -> None:
        hints = _hints(kind)
        headings: dict[Any, Any] = {}
        whole = getattr(kind, "_argument_group_name", None)
        for item in fields(kind):
            if not item.init:
                continue
            heading = (whole, None) if whole is not None else concern(kind, item.name)
            if heading not in headings:
                headings[heading] = self.add_argument_group(*heading) if heading else self
            add_field(headings[heading], item, hints[item.name])

    def parse_args_into_dataclasses(
        self,
        args: Sequence[str] | None = None,
        return_remaining_strings: bool = False,
        look_for_args_file: bool = True,
        args_filename: str | os.PathLike[str] | None = None,
        args_file_flag: str | None = None,
    ) -> tuple[Any, ...]:
        """Build one object for each dataclass from the command line.

        Later options win over earlier ones: files are read first, then the command line.

        Args:
            args: The words of the command line; by default those this program was started with.
            return_remaining_strings: Return unknown words as a list, instead of raising.
            look_for_args_file: Read options from the file beside the program that is named like it,
                except for the ending ".args", if it exists.
            args_filename: Read them from this file instead.
            args_file_flag: An option that names such files, such as "--args_file"; it may be given
                several times.

        Returns:
            The objects; then a Namespace, if other options were added to the parser; then the list,
            if asked for.

        Raises:
            ValueError: There are unknown words, or a dataclass does not accept its values.
            FileNotFoundError: A file of options that was named does not exist.
            SystemExit: A value cannot be converted, or is missing: argparse prints what is wrong
                and ends the program.
        """
        # rebound, so that tracebacks hold no secret
        args = None if args is None else secret_words(args)
        words = secret_words(sys.argv[1:]) if args is None else list(args)
        files = _files_beside(look_for_args_file, args_filename)
        if args_file_flag:
            named, words = _named_files(words, args_file_flag)
            files += named
        words = (
            secret_words(
                [word for file in files for word in file.read_text(encoding="utf-8").split()]
            )
            + words
        )
        self._add_old_options(words)
        namespace, rest = self.parse_known_args(words)
        if rest and not return_remaining_strings:
            raise ValueError(self._not_understood(rest))
        found = self._fill(namespace)
        return (*found, rest) if return_remaining_strings else tuple(found)

    def _add_old_options(self, words: Sequence[str]) -> None:
        """Add the options of transformers 4 that occur on a command line, and no others: the
        help stays as it is.
        """
        written = {
            word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--")
        }
        understood = set().union(*map(_old_names, self.dataclass_types))
        own_options = self._option_string_actions
        for name in sorted(written & understood):
            if f"--{name}" in own_options:  # of the script itself
                continue
            convert = OLD_NAMES[name].kind
            options: dict[str, Any] = (
                {"type": convert} if convert else {"nargs": "?", "const": True, "type": to_bool}
            )
            self.add_argument(*flags_of(name), **options, default=SUPPRESS, help=SUPPRESS)

    def _fill(self, namespace: Namespace) -> list[Any]:
        """Return an object of each dataclass, and a Namespace of what is left."""
        rest = secret_values(vars(namespace))
        found: list[Any] = []
        for kind in self.dataclass_types:
            values = {name: value for name, value in rest.items() if name in _accepted_names(kind)}
            for item in fields(kind):
                if isinstance(item.default, str) and values.get(item.name, "") is None:
                    # a list that was not given keeps the text that it has as its default
                    del values[item.name]
            # a default must not conflict with an old name
            if not _old_names(kind).isdisjoint(values):
                values = {
                    name: value
                    for name, value in values.items()
                    if value is not self.get_default(name)
                }
            found.append(kind(**values))
        known = set().union(*map(_accepted_names, self.dataclass_types))
        others = {name: value for name, value in rest.items() if name not in known}
        return [*found, Namespace(**others)] if others else found

    def _not_understood(self, rest: list[str]) -> str:
        names = {name.replace("-", "_") for name in re.findall(r"--([\w-]+)", self.format_help())}
        said = [f"The command line has words that no option takes: {option_names(rest)}."]
        for word in rest:
            name = word.lstrip("-").partition("=")[0].replace("-", "_")
            near = self._advice(name, names) if word.startswith("-") else ""
            if near:
                said.append(f"{word.partition('=')[0]}:{near}")
        return " ".join(said)

    def _advice(self, name: str, known: set[str]) -> str:
        """Suggest the successor of a training argument, or the nearest known name."""
        training = any(issubclass(kind, ArgumentFields) for kind in self.dataclass_types)
        return (advice if training else did_you_mean)(name, sorted(known))

    def _check_value(self, action: Action, value: Any) -> None:
        """As in argparse, but suggest the nearest choice; an optimizer may be the path of a
        class.
        """
        if action.dest == "optim" and "." in str(value):
            return
        try:
            super()._check_value(action, value)
        except ArgumentError as error:
            raise ArgumentError(
                action, f"{error.message}.{did_you_mean(value, action.choices or ())}"
            ) from None

    def error(self, message: str) -> NoReturn:
        """Print what is wrong on the command line, and end the program.

        Tokens of the Hub are masked.

        Args:
            message: what is wrong.

        Raises:
            SystemExit: always.
        """
        super().error(redacted(message))

    def parse_dict(self, args: dict[str, Any], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """Build one object for each dataclass from a dict.

        Args:
            args: The fields of all the dataclasses; values are passed on as they are.
            allow_extra_keys: Ignore keys that are no field, instead of raising.

        Raises:
            ValueError: There are such keys, or a dataclass does not accept its values.
        """
        args = secret_values(args)
        names = set().union(*map(_accepted_names, self.dataclass_types))
        extra = [key for key in args if key not in names]
        if extra and not allow_extra_keys:
            said = [
                f"{key!r} is not a field of {self._kinds()}.{self._advice(key, names)}"
                for key in extra
            ]
            raise ValueError(" ".join(said) + " Pass allow_extra_keys=True to leave such keys out.")
        found: list[Any] = []
        for kind in self.dataclass_types:
            values = {key: value for key, value in args.items() if key in _accepted_names(kind)}
            found.append(kind(**values))
        return tuple(found)

    def _kinds(self) -> str:
        return (
            " or ".join(kind.__name__ for kind in self.dataclass_types)
            or "any dataclass, as none was given"
        )

    def parse_json_file(
        self, json_file: str | os.PathLike[str], allow_extra_keys: bool = False
    ) -> tuple[Any, ...]:
        """Build one object for each dataclass from a JSON file.

        Args:
            json_file: The file, an object with the fields of all the dataclasses.
            allow_extra_keys: Ignore keys that are not fields, instead of raising.

        Returns:
            The objects, in the order of the dataclasses.

        Raises:
            ValueError: The file is not JSON, names the position; or see `parse_dict`.
        """
        content = secret_values(read_object(json_file, keys="field names and their values"))
        return self.parse_dict(content, allow_extra_keys=allow_extra_keys)

    def parse_yaml_file(
        self, yaml_file: str | os.PathLike[str], allow_extra_keys: bool = False
    ) -> tuple[Any, ...]:
        """Build one object for each dataclass from a YAML file.

        Args:
            yaml_file: The file, a mapping with the fields of all the dataclasses.
            allow_extra_keys: Ignore keys that are not fields, instead of raising.

        Returns:
            The objects, in the order of the dataclasses.

        Raises:
            ImportError: PyYAML is not installed.
            ValueError: The file is not YAML, names the position; or see `parse_dict`.
        """
        import yaml

        content: Any = None
        problem = ""
        try:
            content = yaml.safe_load(Path(yaml_file).read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            place = getattr(error, "problem_mark", None)
            where = f" in line {place.line + 1}, column {place.column + 1}" if place else ""
            problem = f"{getattr(error, 'problem', None) or error}{where}"
        # raised outside the handler: the YAML parser's frames hold the text, which may contain a
        # token
        if problem:
            raise ValueError(f"{yaml_file}: the file is not YAML: {problem}.")
        if not isinstance(content, dict):
            raise ValueError(
                f"{yaml_file} holds a {type(content).__name__}; write field names and values "
                "into it."
            )
        content = secret_values(content)  # rebound, so that tracebacks hold no secret
        return self.parse_dict(content, allow_extra_keys=allow_extra_keys)


def _accepted_names(kind: Any) -> set[str]:
    """Return the fields of a dataclass, and the names of transformers 4 that it takes beside
    them.
    """
    return {item.name for item in fields(kind) if item.init} | _old_names(kind)


def _old_names(kind: Any) -> set[str]:
    """Return the names of transformers 4 that a dataclass takes; none if they are not accepted."""
    return set(kind._old_names()) if accepted() and issubclass(kind, NamesItsArguments) else set()


def _hints(kind: type) -> dict[str, Any]:
    try:
        return get_type_hints(kind)
    except NameError as error:
        said = f"The annotations of {kind.__qualname__} cannot be read: {error}"
        raise RuntimeError(
            f"{said}. Define the class, and what they name, at the top level."
        ) from error


def _files_beside(look: bool, filename: str | os.PathLike[str] | None) -> list[Path]:
    """Return the file of options that was passed, or the one beside the program, if it exists."""
    if filename:
        return [Path(filename)]
    # In an interactive session the program has no name.
    if not look or not sys.argv or not Path(sys.argv[0]).name:
        return []
    beside = Path(sys.argv[0]).with_suffix(".args")
    return [beside] if beside.is_file() else []


def _named_files(words: list[str], flag: str) -> tuple[list[Path], list[str]]:
    """Split words into the files that follow the flag, and the others."""
    parser = ArgumentParser(add_help=False)
    parser.add_argument(flag, dest="files", action="append", default=[])
    namespace, rest = parser.parse_known_args(words)
    return [Path(name) for name in namespace.files], rest
