"""The command `launch`: start a script in several processes, with the options of accelerate.

torch.distributed.run starts the processes. The environment variables are those that `accelerate
launch` sets, so that the script behaves the same.
"""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .command_line import CommandParser, spellings
from .launch_file import STRATEGY_OPTIONS, default_file, read_settings

if TYPE_CHECKING:
    from ..facade.arguments.launch_variables import Variable

_DESCRIPTION = """\
Start a script in several processes, with the Trainer of lightrainer instead of that of
transformers. It is configured by a file of `accelerate config` or by the options of `accelerate
launch`; accelerate is not needed. Options override the file, and the arguments of the script
override both. torch.distributed.run starts the processes.
"""
_EPILOG = "Example: lightrainer launch --config_file fsdp2.yaml --num_processes 8 train.py"

_PROCESS_OPTIONS = {
    "num_processes": "number of processes on all machines; by default one for each GPU here",
    "num_machines": "number of machines; run the command on each of them",
    "machine_rank": "number of this machine, from 0",
    "main_process_ip": "address of the first machine",
    "main_process_port": "free port on the first machine; needed for several machines only",
    "rdzv_backend": "how machines find each other: static (the default) or c10d",
}
"""Options about the processes, by name, with their descriptions."""
_TORCHRUN_OPTIONS = {
    "rdzv_conf": "further settings of the rendezvous, as key=value,...",
    "max_restarts": "how often the processes are restarted after a failure",
    "monitor_interval": "seconds between two checks of the processes",
    "log_dir": "folder for the output of the processes",
    "role": "name of the processes in messages of torchrun",
    "tee": "streams that go to the terminal and to log_dir, see torchrun",
}
"""Options that are passed to torchrun, with their descriptions."""
_UNUSED_OPTIONS = ("main_training_function", "deepspeed_multinode_launcher")
"""Options of accelerate that have no effect on torch's launcher."""


def launch(flags: Sequence[str]) -> int:
    """Start the script: replace this process by torch's launcher, or by a single script process.

    Args:
        flags: the words of the command line after `launch`.

    Raises:
        SystemExit: an option is invalid. The status is 2, the reason is on stderr, and nothing was
            started.
    """
    from ..facade.arguments.launch_variables import refusals
    from ..interception import environment, runner

    parser = _make_parser()
    options = parser.parse_with_advice(flags, "Options of the script follow its name.")
    set_options = {name: value for name, value in vars(options).items() if value}
    file = options.config_file or default_file()
    try:
        settings = _merge_settings(file, options, set_options)
        os.environ.update(variables(settings))
        problems = refusals(_sources(set_options, settings, file))
        if problems:
            raise ValueError("; ".join(problems))
        command = _command(settings, options.script)
    except OSError as error:
        parser.error(f"--config_file {file}: {error.strerror}.")
    except ValueError as error:
        parser.error(str(error))

    # Warn about options of a feature that is off, which are probably mistakes.
    for name, switch in _options_without_effect(set_options, settings).items():
        print(f"lightrainer launch: --{name} has no effect without --{switch}.", file=sys.stderr)
    environment.switch_on(os.environ)
    environment.choose_keras_backend(os.environ)
    return runner.become([*command, *options.words])


def _merge_settings(
    file: str | None, options: argparse.Namespace, set_options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings of a file, overridden by options.

    Args:
        file: path of the file; None for no file.
        options: all options of the command.
        set_options: the options that the command line sets.

    Raises:
        ValueError: the file has settings that are unknown or not supported.
        OSError: the file cannot be read.
    """
    settings = read_settings(file, vars(options))

    # An option that chooses a strategy overrides the strategy of the file.
    strategy_options = set(STRATEGY_OPTIONS.values())
    if set_options.keys() & {"multi_gpu", *strategy_options}:
        for name in (*strategy_options, "use_parallelism_config"):
            settings.pop(name, None)
    elif settings.get("distributed_type") == "NO":
        # accelerate also ignores num_processes in such a file.
        settings["num_processes"] = 1
    return {**settings, **set_options}


def _sources(
    set_options: Mapping[str, object], settings: Mapping[str, object], file: str | None
) -> dict[str, str]:
    """Return the source of each environment variable, which errors quote: an option, or a key.

    Args:
        set_options: the options that the command line sets.
        settings: the merged settings of the file and the options.
        file: path of the file.
    """
    from ..facade.arguments.launch_variables import VARIABLES

    sources = {}
    for name, variable in VARIABLES.items():
        option = variable.option
        value = set_options.get(option)
        if value is not None:
            sources[name] = f"--{option}" if variable.flag else f"--{option} {value}"
        elif settings.get(option) is not None:
            sources[name] = f"{file}: {option}={settings[option]!r}"
    return sources


def variables(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables for these settings, as `accelerate launch` sets them."""
    from ..facade.arguments.launch_variables import VARIABLES

    environment = {}
    for name, variable in VARIABLES.items():
        value = settings.get(variable.option) if variable.option else None
        # `accelerate config` writes "all" for the default, which is to use all GPUs.
        if value in (None, "", "all") or (variable.flag and not value):
            value = variable.default
        if value == "":
            continue
        # Set the variable of a feature only if the feature is on.
        if variable.switch and not settings.get(VARIABLES[variable.switch].option):
            continue
        environment[name] = str(value).lower() if isinstance(value, bool) else str(value)
    if "ACCELERATE_DEEPSPEED_CONFIG_FILE" in environment:
        fields = settings.get("deepspeed_fields", ())
        environment["ACCELERATE_CONFIG_DS_FIELDS"] = ",".join(fields)
    return environment


def _options_without_effect(
    set_options: Mapping[str, object], settings: Mapping[str, object]
) -> dict[str, str]:
    """Return the set options of features that are off, each with the option that turns it on."""
    from ..facade.arguments.launch_variables import VARIABLES

    switches = {}
    for variable in VARIABLES.values():
        if variable.option and variable.switch:
            switches[variable.option] = VARIABLES[variable.switch].option

    without_effect = {}
    for name in set_options:
        if name in switches and not settings.get(switches[name]):
            without_effect[name] = switches[name]
    return without_effect


def _command(settings: Mapping[str, object], script: str) -> list[str]:
    """Return the command that starts the processes, including the script but not its arguments.

    Raises:
        ValueError: settings contradict each other.
    """
    machines = _number(settings, "num_machines") or 1
    processes = _number(settings, "num_processes")
    if settings.get("num_processes") is None:
        processes = _number_of_devices(settings)
    if settings.get("module") and settings.get("no_python"):
        raise ValueError("module and no_python cannot be combined: leave one of them out.")
    if processes < 1 or processes % machines:
        raise ValueError(
            f"num_processes={processes} is not a positive multiple of num_machines={machines}: "
            "pass --num_processes."
        )

    # With these options even a single process needs torch's launcher.
    launcher_options = (*STRATEGY_OPTIONS.values(), "multi_gpu")
    needs_launcher = any(settings.get(name) for name in launcher_options)
    if processes == 1 and not needs_launcher:
        return _command_of_one_process(settings, script)

    words = ["-m", "torch.distributed.run", f"--nproc_per_node={processes // machines}"]
    for name in _TORCHRUN_OPTIONS:
        if settings.get(name) is not None:
            words.append(f"--{name}={settings[name]}")
    words += _rendezvous(settings, machines)
    for name in ("module", "no_python"):
        if settings.get(name):
            words.append(f"--{name}")
    return [sys.executable, *words, script]


def _command_of_one_process(settings: Mapping[str, object], script: str) -> list[str]:
    """Return the command that runs a script without a launcher."""
    if settings.get("no_python"):
        program = shutil.which(script)
        if program is None:
            raise ValueError(
                f"{script} is not an executable program: leave no_python out, or pass its path."
            )
        return [program]
    if settings.get("module"):
        return [sys.executable, "-m", script]
    return [sys.executable, script]


def _rendezvous(settings: Mapping[str, object], machines: int) -> list[str]:
    """Return the options of torchrun for the rendezvous of the machines."""
    address = settings.get("main_process_ip")
    port = _number(settings, "main_process_port")
    if machines == 1:
        return [f"--master_port={port}"] if port else ["--standalone"]
    if not address or not port:
        raise ValueError(
            f"num_machines={machines} needs main_process_ip and main_process_port: set both."
        )
    backend = settings.get("rdzv_backend") or "static"
    return [
        f"--nnodes={machines}",
        f"--node_rank={_number(settings, 'machine_rank')}",
        f"--rdzv_backend={backend}",
        f"--rdzv_endpoint={address}:{port}",
    ]


def _number(settings: Mapping[str, Any], name: str) -> int:
    """Return a setting as a number; 0 if it is not set."""
    try:
        return int(settings.get(name) or 0)
    except ValueError:
        raise ValueError(f"{name}={settings[name]!r} is not a whole number.") from None


def _number_of_devices(settings: Mapping[str, object]) -> int:
    """Return the number of GPUs of this machine, or 1 if it has none."""
    if settings.get("use_cpu"):
        return 1
    import torch

    return torch.cuda.device_count() or 1


def _make_parser() -> CommandParser:
    """Return the parser of the command."""
    usage = "lightrainer launch [OPTIONS] SCRIPT [ARGUMENTS]"
    parser = CommandParser("launch", _DESCRIPTION, _EPILOG, usage)
    parser.add_script("the script to run")
    parser.add_argument(
        *spellings("config_file"),
        metavar="FILE",
        help="file with settings; by default that of `accelerate config`",
    )
    parser.add_argument(
        "-m", "--module", action="store_true", help="the script is the name of a module"
    )
    parser.add_argument(
        *spellings("no_python"), action="store_true", help="the script is a program of any kind"
    )
    _add_process_options(parser)
    _add_script_settings(parser)
    return parser


def _add_process_options(parser: CommandParser) -> None:
    """Add the options about the processes."""
    group = parser.add_argument_group("processes")
    for name, description in {**_PROCESS_OPTIONS, **_TORCHRUN_OPTIONS}.items():
        flags = spellings(name)
        if name == "tee":
            flags.insert(0, "-t")
        group.add_argument(*flags, metavar="VALUE", help=description)
    group.add_argument(
        *spellings("multi_gpu"),
        action="store_true",
        help="use torch's launcher for a single process, too",
    )

    # Accept these options, because command lines for `accelerate launch` may have them.
    no_effect = "option of accelerate without effect here"
    group.add_argument("-q", "--quiet", action="store_true", help=no_effect)
    group.add_argument(*spellings("same_network"), action="store_true", help=no_effect)
    for name in _UNUSED_OPTIONS:
        group.add_argument(*spellings(name), metavar="VALUE", help=no_effect)


def _add_script_settings(parser: CommandParser) -> None:
    """Add the options that become environment variables of the script."""
    from ..facade.arguments.launch_variables import VARIABLES

    group = parser.add_argument_group("settings of the script")
    for variable in VARIABLES.values():
        if not variable.option:
            continue
        flags = spellings(variable.option)
        if variable.option == "use_cpu":
            flags.append("--cpu")

        description = _meaning(variable)
        if variable.flag:
            group.add_argument(*flags, action="store_true", help=description)
        else:
            group.add_argument(*flags, metavar="VALUE", help=description)


def _meaning(variable: Variable) -> str:
    """Return the help of an option: the training argument it sets, or why it is rejected."""
    from ..facade.arguments.fsdp_config import REFUSED as REFUSED_BY_FSDP

    if variable.option == "mixed_precision":
        return "bf16, fp16 or no: the arguments bf16 and fp16"
    if variable.refused:
        return f"refused: {variable.refused}"
    if variable.elsewhere:
        return f"for {variable.elsewhere}"
    argument, _, key = variable.argument.rstrip(".").partition(".")
    if argument == "fsdp_config" and key in REFUSED_BY_FSDP:
        return f"refused: {REFUSED_BY_FSDP[key]}"
    return f"the argument {variable.argument.rstrip('.')}"
