"""Fill dataclasses, such as the training arguments, from a command line or a file."""

from __future__ import annotations

import os
import re
import sys
from argparse import (
    SUPPRESS,
    Action,
    ArgumentDefaultsHelpFormatter,
    ArgumentError,
    ArgumentParser,
    Namespace,
)
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, get_type_hints

from ...lightning_modules.common.json_files import read_object
from ...lightning_modules.common.redaction import (
    option_names,
    redacted,
    secret_values,
    secret_words,
)
from ...lightning_modules.common.suggestions import did_you_mean
from ..arguments.fields import CONCERNS, ArgumentFields
from ..arguments.old_names import OLD_NAMES, advice, old_names_accepted
from ..arguments.trial_options import remove_words_of_trial, values_of_trial
from ..arguments.unknown import RejectsUnknownKeywords
from .options import AcceptsOptions, add_field, flags_of, to_bool

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ADDED_ARGUMENTS = {
    "activation_checkpointing",
    "activation_checkpointing_kwargs",
    "dataloader_in_order",
    "dataloader_multiprocessing_context",
    "ddp_static_graph",
    "eval_aggregate",
    "max_tokens_per_batch",
    "parameter_rules",
    "record_model_losses",
    "trackio_bucket_id",
    "trackio_static_space_id",
}
"""The training arguments that transformers 5.3.0 does not have."""


def HfArg(  # noqa: N802 - the documented name
    *,
    aliases: str | list[str] | None = None,
    help: str | None = None,
    default: object = MISSING,
    default_factory: Any = MISSING,
    metadata: dict[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Declare a dataclass field with the names, help and choices of its command line option.

    Works like `transformers.hf_argparser.HfArg`, but does not change the dict passed as `metadata`.

    Args:
        aliases: Other names of the option, such as "-e"; a string or a list.
        help: A sentence for `--help`.
        default: The value if the option is not on the command line. An option with neither this nor
            `default_factory` is required.
        default_factory: A function without arguments that returns the default.
        metadata: Further metadata of the field. The keys in `ARGPARSE_KEYS`, such as "choices" and
            "metavar", are also passed to argparse.
        **kwargs: Passed to `dataclasses.field`.

    Returns:
        A field of `dataclasses`.
    """
    # Copy the dict, because the caller may use it for several fields.
    field_metadata = dict(metadata or {})
    if aliases is not None:
        field_metadata["aliases"] = aliases
    if help is not None:
        field_metadata["help"] = help
    return field(
        default=default, default_factory=default_factory, metadata=field_metadata, **kwargs
    )


class ArgumentGroup(NamedTuple):
    """A heading in the help, above a list of options."""

    title: str
    description: str | None = None


class HfArgumentParser(ArgumentParser):
    """Read dataclasses from a command line, a JSON or YAML file, or a dict.

    Works like `transformers.HfArgumentParser`, but errors suggest the nearest option.

    Each field of a dataclass is an option, written with underscores or with dashes. A bool that is
    True by default also has the option `--no_x`. The help groups the training arguments under
    headings. There are four differences from the reference: a dict is written as JSON; a
    `default_factory` is called for fields of every type; a union of `str` and another type keeps
    text that cannot be converted to the other type; and a list field whose default is a string
    keeps that string.

    Args:
        dataclass_types: One dataclass, or several. One that has `_argument_group_name` gets a
            heading in the help.
        **kwargs: Passed to `argparse.ArgumentParser`.

    Raises:
        TypeError: One of the classes is not a dataclass.
        ValueError: The type of a field cannot be read from a command line.
        RuntimeError: An annotation contains a name that its module does not define, such as that of
            a class inside a function.
    """

    dataclass_types: list[type[DataclassInstance]]
    """The dataclasses, in the order of the results."""

    def __init__(
        self,
        dataclass_types: type[DataclassInstance] | Iterable[type[DataclassInstance]] | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("formatter_class", ArgumentDefaultsHelpFormatter)
        super().__init__(**kwargs)
        remove_words_of_trial()

        # Check for a class first, because its metaclass may make it iterable. Treat any other
        # object as a single type, so that the error below names it.
        if dataclass_types is None:
            self.dataclass_types = []
        elif isinstance(dataclass_types, type) or not isinstance(dataclass_types, Iterable):
            self.dataclass_types = [dataclass_types]
        else:
            self.dataclass_types = list(dataclass_types)

        for dataclass_type in self.dataclass_types:
            self._add_dataclass_arguments(dataclass_type)
            # argparse lists all options in the usage by default, which would fill three screens.
            if self.usage is None and issubclass(dataclass_type, ArgumentFields):
                self.usage = "%(prog)s [options]"

    def _add_dataclass_arguments(self, dataclass_type: type[DataclassInstance]) -> None:
        """Add the options of a dataclass; those of training arguments get headings."""
        type_hints = _resolved_type_hints(dataclass_type)
        names = self._accepted_names(dataclass_type)
        group_name: str | None = getattr(dataclass_type, "_argument_group_name", None)
        groups: dict[ArgumentGroup, AcceptsOptions] = {}
        for item in fields(dataclass_type):
            if item.name not in names:
                continue
            heading = argument_group_of(dataclass_type, item.name)
            if group_name is not None:
                heading = ArgumentGroup(group_name)

            # A field without a heading is listed in argparse's own group, "options".
            container: AcceptsOptions = self
            if heading is not None:
                if heading not in groups:
                    groups[heading] = self.add_argument_group(heading.title, heading.description)
                container = groups[heading]
            add_field(container, item, type_hints[item.name])

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
            args: The words of the command line; by default the arguments of this program.
            return_remaining_strings: Return unknown words as a list, instead of raising.
            look_for_args_file: Read options from a file next to the program, with the program's
                name and the suffix ".args", if it exists.
            args_filename: Read options from this file instead.
            args_file_flag: An option that names such files, such as "--args_file"; it may occur
                several times.

        Returns:
            One object for each dataclass; then a Namespace if other options were added to the
            parser; then the unknown words if `return_remaining_strings` is set.

        Raises:
            ValueError: There are unknown words, or a dataclass does not accept its values.
            FileNotFoundError: A file of options was named, but does not exist.
            SystemExit: A value is missing or cannot be converted. argparse prints the problem and
                exits.
        """
        # Reassign `args`, so that tracebacks do not show tokens of the Hub.
        if args is None:
            words = secret_words(sys.argv[1:])
        else:
            args = secret_words(args)
            words = list(args)

        # The words of files come first, so that the command line wins.
        files = _default_args_files(look_for_args_file, args_filename)
        if args_file_flag:
            flagged_files, words = _split_args_files(words, args_file_flag)
            files += flagged_files
        words = _words_of_files(files) + words

        self._add_old_options(words)
        namespace, unknown_words = self.parse_known_args(words)
        if unknown_words and not return_remaining_strings:
            raise ValueError(self._unknown_words_message(unknown_words))

        results = self._build_dataclasses(namespace)
        if return_remaining_strings:
            results.append(unknown_words)
        return tuple(results)

    def _add_old_options(self, words: Sequence[str]) -> None:
        """Add the options of transformers 4 that a command line uses.

        Others are not added, so that the help does not list them.
        """
        option_names_used: set[str] = set()
        for word in words:
            if word.startswith("--"):
                option_name = word[2:].partition("=")[0]
                option_names_used.add(option_name.replace("-", "_"))

        old_names: set[str] = set()
        for dataclass_type in self.dataclass_types:
            old_names |= _old_names(dataclass_type)

        existing_options = self._option_string_actions
        for name in sorted(option_names_used & old_names):
            # The script may have added an option with this name.
            if f"--{name}" in existing_options:
                continue

            parse_word = OLD_NAMES[name].parse_word
            settings: dict[str, Any]
            if parse_word:
                settings = {"type": parse_word}
            else:
                settings = {"nargs": "?", "const": True, "type": to_bool}
            self.add_argument(*flags_of(name), **settings, default=SUPPRESS, help=SUPPRESS)

    def _build_dataclasses(self, namespace: Namespace) -> list[object]:
        """Return one object for each dataclass, then a Namespace of the other options, if any."""
        parsed = secret_values(vars(namespace))
        results: list[Any] = []
        for dataclass_type in self.dataclass_types:
            names = self._accepted_names(dataclass_type)
            values = {name: value for name, value in parsed.items() if name in names}

            # `_list_settings` hides a list's default from argparse if it is a string, so that the
            # parsed value is None. Let the dataclass use its default instead.
            for item in fields(dataclass_type):
                if isinstance(item.default, str) and values.get(item.name, "") is None:
                    del values[item.name]

            # If the command line has an old name, leave out defaults, because that of its successor
            # would conflict with it.
            if not _old_names(dataclass_type).isdisjoint(values):
                values = {
                    name: value
                    for name, value in values.items()
                    if value is not self.get_default(name)
                }
            results.append(dataclass_type(**values))

        all_names = self._all_accepted_names()
        other_values = {name: value for name, value in parsed.items() if name not in all_names}
        if other_values:
            results.append(Namespace(**other_values))
        return results

    def _accepted_names(self, dataclass_type: type[DataclassInstance]) -> set[str]:
        """Return the names that a dataclass accepts: its fields, and names of transformers 4.

        Training arguments that transformers 5.3.0 does not have are left out if another dataclass
        has a field of the same name, so that a script may define such an option.
        """
        old_names = _old_names(dataclass_type)
        names = {item.name for item in fields(dataclass_type) if item.init} | old_names
        if not issubclass(dataclass_type, ArgumentFields):
            return names

        may_be_of_script = ADDED_ARGUMENTS | old_names
        for other_type in self.dataclass_types:
            if not issubclass(other_type, ArgumentFields):
                other_names = {item.name for item in fields(other_type)}
                names -= other_names & may_be_of_script
        return names

    def _all_accepted_names(self) -> set[str]:
        """Return the names that at least one of the dataclasses accepts."""
        names: set[str] = set()
        for dataclass_type in self.dataclass_types:
            names |= self._accepted_names(dataclass_type)
        return names

    def _unknown_words_message(self, unknown_words: list[str]) -> str:
        """Return the error about words that no option accepts, with suggested options."""
        option_names_in_help = re.findall(r"--([\w-]+)", self.format_help())
        valid_names = {name.replace("-", "_") for name in option_names_in_help}

        sentences = [
            f"The command line has words that no option accepts: {option_names(unknown_words)}."
        ]
        for word in unknown_words:
            if not word.startswith("-"):
                continue
            option = word.partition("=")[0]
            suggestion = self._advice(option.lstrip("-").replace("-", "_"), valid_names)
            if suggestion:
                sentences.append(f"{option}:{suggestion}")
        return " ".join(sentences)

    def _advice(self, name: str, valid_names: set[str]) -> str:
        """Suggest the successor of an old training argument, or a similar valid name."""
        for dataclass_type in self.dataclass_types:
            if issubclass(dataclass_type, ArgumentFields):
                return advice(name, sorted(valid_names))
        return did_you_mean(name, sorted(valid_names))

    def _check_value(self, action: Action, value: object) -> None:
        """Check a value against the choices; the error suggests a similar one."""
        # `optim` also accepts the path of a class, such as "package.module.Class".
        if action.dest == "optim" and "." in str(value):
            return
        try:
            super()._check_value(action, value)
        except ArgumentError as error:
            suggestion = did_you_mean(value, action.choices or ())
            raise ArgumentError(action, f"{error.message}.{suggestion}") from None

    def error(self, message: str) -> NoReturn:
        """Print an error about the command line, and exit.

        Tokens of the Hub are masked.

        Args:
            message: the error message.

        Raises:
            SystemExit: always.
        """
        super().error(redacted(message))

    def parse_dict(self, args: dict[str, Any], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """Build one object for each dataclass from a dict.

        Args:
            args: The fields of all dataclasses by name; values are passed on unchanged.
            allow_extra_keys: Ignore keys that are not fields, instead of raising.

        Raises:
            ValueError: A key is not a field, or a dataclass does not accept its values.
        """
        # Reassign `args`, so that tracebacks do not show tokens of the Hub.
        args = secret_values(args)

        all_names = self._all_accepted_names()
        extra_keys = [key for key in args if key not in all_names]
        if extra_keys and not allow_extra_keys:
            dataclass_names = self._dataclass_names()
            sentences: list[str] = []
            for key in extra_keys:
                suggestion = self._advice(key, all_names)
                sentences.append(f"{key!r} is not a field of {dataclass_names}.{suggestion}")
            sentences.append("Pass allow_extra_keys=True to ignore such keys.")
            raise ValueError(" ".join(sentences))

        args = args | values_of_trial(self, all_names)
        results: list[Any] = []
        for dataclass_type in self.dataclass_types:
            names = self._accepted_names(dataclass_type)
            values = {key: value for key, value in args.items() if key in names}
            results.append(dataclass_type(**values))
        return tuple(results)

    def _dataclass_names(self) -> str:
        """Return the names of the dataclasses for an error."""
        if not self.dataclass_types:
            return "any dataclass, because the parser has none"
        return " or ".join(dataclass_type.__name__ for dataclass_type in self.dataclass_types)

    def parse_json_file(
        self, json_file: str | os.PathLike[str], allow_extra_keys: bool = False
    ) -> tuple[Any, ...]:
        """Build one object for each dataclass from a JSON file.

        Args:
            json_file: The path of the file, an object with the fields of all the dataclasses.
            allow_extra_keys: Ignore keys that are not fields, instead of raising.

        Returns:
            The objects, in the order of the dataclasses.

        Raises:
            ValueError: The file is not JSON (the message has the position), or as in `parse_dict`.
        """
        content = secret_values(read_object(json_file, keys="field names and their values"))
        return self.parse_dict(content, allow_extra_keys=allow_extra_keys)

    def parse_yaml_file(
        self, yaml_file: str | os.PathLike[str], allow_extra_keys: bool = False
    ) -> tuple[Any, ...]:
        """Build one object for each dataclass from a YAML file.

        Args:
            yaml_file: The path of the file, a mapping with the fields of all the dataclasses.
            allow_extra_keys: Ignore keys that are not fields, instead of raising.

        Returns:
            The objects, in the order of the dataclasses.

        Raises:
            ImportError: PyYAML is not installed.
            ValueError: The file is not YAML (the message has the position), or as in `parse_dict`.
        """
        import yaml

        content: object = None
        problem = ""
        try:
            content = yaml.safe_load(Path(yaml_file).read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            problem = str(getattr(error, "problem", None) or error)
            mark = getattr(error, "problem_mark", None)
            if mark:
                problem = f"{problem} in line {mark.line + 1}, column {mark.column + 1}"

        # Raise outside of the handler, because the frames of the YAML parser hold the text of the
        # file, which may contain a token.
        if problem:
            raise ValueError(f"{yaml_file}: the file is not YAML: {problem}.")
        if not isinstance(content, dict):
            raise ValueError(
                f"{yaml_file} must contain field names and their values, but contains a "
                f"{type(content).__name__}."
            )

        # Reassign `content`, so that tracebacks do not show tokens of the Hub.
        content = secret_values(content)
        return self.parse_dict(content, allow_extra_keys=allow_extra_keys)


def argument_group_of(dataclass_type: type, field_name: str) -> ArgumentGroup | None:
    """Return the argument group of a training argument.

    The group is that of the base class that declares the field, even if a subclass declares the
    field again to change its default.

    Args:
        dataclass_type: Any dataclass.
        field_name: One of its fields.

    Returns:
        None for a field that is not one of the training arguments.
    """
    # The declaring class is the last class of the MRO that has the field.
    declaring_class = dataclass_type
    for base in dataclass_type.__mro__:
        if field_name in getattr(base, "__dataclass_fields__", ()):
            declaring_class = base

    for title, (description, classes) in CONCERNS.items():
        if declaring_class in classes:
            return ArgumentGroup(title, description)
    return None


def _old_names(dataclass_type: type[DataclassInstance]) -> set[str]:
    """Return the names of transformers 4 that a dataclass accepts; none if they are disabled."""
    if old_names_accepted() and issubclass(dataclass_type, RejectsUnknownKeywords):
        return set(dataclass_type._old_names())
    return set()


def _resolved_type_hints(dataclass_type: type[DataclassInstance]) -> dict[str, object]:
    """Return the types of the fields, by name.

    Raises:
        RuntimeError: An annotation contains a name that its module does not define.
    """
    try:
        return get_type_hints(dataclass_type)
    except NameError as error:
        raise RuntimeError(
            f"The annotations of {dataclass_type.__qualname__} cannot be resolved: {error}. Define "
            "the class, and every name in its annotations, at the top level of a module."
        ) from error


def _default_args_files(
    look_for_args_file: bool, args_filename: str | os.PathLike[str] | None
) -> list[Path]:
    """Return the options file that was passed, or the one next to the program if it exists."""
    if args_filename:
        return [Path(args_filename)]

    # In an interactive session `sys.argv` does not name a program.
    if not look_for_args_file or not sys.argv or not Path(sys.argv[0]).name:
        return []
    args_file = Path(sys.argv[0]).with_suffix(".args")
    if not args_file.is_file():
        return []
    return [args_file]


def _split_args_files(words: list[str], flag: str) -> tuple[list[Path], list[str]]:
    """Return the options files that the flag names, and the other words."""
    parser = ArgumentParser(add_help=False)
    parser.add_argument(flag, dest="files", action="append", default=[])
    namespace, other_words = parser.parse_known_args(words)
    return [Path(name) for name in namespace.files], other_words


def _words_of_files(files: list[Path]) -> list[str]:
    """Return the words of options files, with tokens masked."""
    words: list[str] = []
    for file in files:
        words = secret_words(words + file.read_text(encoding="utf-8").split())
    return words
