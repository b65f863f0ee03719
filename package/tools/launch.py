"""The command `launch`: start a script with torch.distributed.run, configured by files and options
of accelerate.

It sets the environment variables of `accelerate launch`, so that the script behaves the same.
"""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from .command_line import CommandParser

_DESCRIPTION = """\
Start a script in several processes, with the Trainer of lightrainer in the place of that of
transformers, as configured by a file of `accelerate config` or by the options of `accelerate
launch`; accelerate is not needed. An option goes before the file, and what the script says itself
before both. torch.distributed.run starts the processes.
"""
_EPILOG = """\
Example: lightrainer launch --config_file fsdp2.yaml --num_processes 8 train.py --learning_rate 1e-4
"""

_PLACE = {
    "num_processes": "processes, on all machines together; by default one for each GPU here",
    "num_machines": "machines; the command is started on each of them",
    "machine_rank": "number of this machine, from 0",
    "main_process_ip": "address of the first machine",
    "main_process_port": "port that is free on the first machine; one machine finds one by itself",
    "rdzv_backend": "how machines find each other: static (the default) or c10d",
    "rdzv_conf": "further settings of that, as key=value,...",
    "max_restarts": "how often the processes are started again after a failure",
    "monitor_interval": "seconds between two checks of the processes",
    "log_dir": "folder for the output of the processes",
    "role": "name of the processes in messages of torchrun",
    "tee": "which streams go to the terminal and to log_dir, see torchrun",
}
"""Options about the processes; the last six are those of torchrun."""
_PASSED_ON = tuple(_PLACE)[-6:]
_KINDS = {"FSDP": "use_fsdp", "DEEPSPEED": "use_deepspeed", "MEGATRON_LM": "use_megatron_lm"}
_SECTIONS = {
    "fsdp_config": "fsdp_",
    "dynamo_config": "dynamo_",
    "deepspeed_config": "",
    "parallelism_config": "",
}
_OLD_KEYS = {"fsdp_backward_prefetch_policy": "fsdp_backward_prefetch"}
_UNUSED = ("main_training_function", "deepspeed_multinode_launcher")
"""Options without effect on torch's launcher."""
_EMPTY = (
    "fp8_config",
    "megatron_lm_config",
    "mpirun_config",
    "command_file",
    "commands",
    "downcast_bf16",
    "tpu_name",
)
_EMPTY += (
    "tpu_zone",
    "tpu_use_cluster",
    "tpu_use_sudo",
    "tpu_vm",
    "tpu_env",
    "deepspeed_hostfile",
)
_EMPTY += ("deepspeed_exclusion_filter", "deepspeed_inclusion_filter")
"""Keys that may be in a file if their values turn a feature off."""


def launch(flags: Sequence[str]) -> int:
    """Run the command line; it becomes torch's launcher, or in one process the script.

    Args:
        flags: The words after `launch`.

    Raises:
        SystemExit: With status 2 and the reason on stderr where an option is wrong; nothing is
            started then.
    """
    from ..facade.arguments.launch_variables import refusals
    from ..interception import environment, runner

    parser = _parser()
    given = parser.parse_own(flags, "Options of the script follow its name.")
    try:
        said = {key: value for key, value in vars(given).items() if value}
        file = given.config_file or default_file()
        settings = read_settings(file, vars(given))
        if said.keys() & {"multi_gpu", *_KINDS.values()}:
            kinds = (*_KINDS.values(), "use_parallelism_config")
            settings = {key: value for key, value in settings.items() if key not in kinds}
        elif settings.get("distributed_type") == "NO":
            settings["num_processes"] = 1  # accelerate takes no notice of the number, either
        settings |= said
        os.environ.update(variables(settings))
        if refused := refusals(_sources(said, settings, file)):
            raise ValueError("; ".join(refused))
        command = _command(settings, given.script)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    for name, switch in _without_effect(said, settings).items():
        print(f"lightrainer launch: --{name} has no effect without --{switch}.", file=sys.stderr)
    environment.switch_on(os.environ)
    environment.choose_keras_backend(os.environ)
    return runner.become([*command, *given.arguments])


def _sources(
    said: Mapping[str, Any], settings: Mapping[str, Any], file: str | None
) -> dict[str, str]:
    """Return what set each variable, as the user wrote it: an option, or a key of the file.

    Args:
        said: values of options.
        settings: of options and of the file.
        file: path of the file.
    """
    from ..facade.arguments.launch_variables import VARIABLES

    sources = {}
    for name, row in VARIABLES.items():
        value = said.get(row.option)
        if value is not None:
            sources[name] = f"--{row.option}" if row.flag else f"--{row.option} {value}"
        elif settings.get(row.option) is not None:
            sources[name] = f"{file}: {row.option}={settings[row.option]!r}"
    return sources


def default_file() -> str | None:
    """Return the file that `accelerate config` writes; None where there is none."""
    cache = os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    path = Path(os.environ.get("HF_HOME", cache), "accelerate", "default_config.yaml").expanduser()
    return str(path) if path.is_file() else None


def read_settings(path: str | None, options: Collection[str]) -> dict[str, Any]:
    """Read a file of `accelerate config`: settings by the names of the options.

    Args:
        path: YAML or JSON; None for no file.
        options: the known names.

    Raises:
        ValueError: It holds unknown keys, or keys for features that are not supported.
        OSError: It cannot be read.
    """
    import yaml

    if path is None:
        return {}
    try:
        read = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from None
    if not isinstance(read, dict):
        raise ValueError(f"{path} holds a {type(read).__name__}, not settings by name.")
    place, kind = read.pop("compute_environment", "LOCAL_MACHINE"), read.pop("distributed_type", "")
    kind = "NO" if kind is False else str(kind)  # YAML reads NO as False
    if place != "LOCAL_MACHINE" or not (kind in ("", "NO", *_KINDS) or kind.startswith("MULTI_")):
        raise ValueError(
            f"{path}: compute_environment={place}, distributed_type={kind} needs accelerate launch."
        )
    settings = {key: value for key, value in read.items() if key not in _SECTIONS}
    for section, prefix in _SECTIONS.items():
        for key, value in (read.get(section) or {}).items():
            name = key if key.startswith(prefix) else prefix + key
            settings[_OLD_KEYS.get(name, name)] = value
    _check(path, settings, options)
    if kind in _KINDS:
        settings[_KINDS[kind]] = True
    fields = [
        *(read.get("deepspeed_config") or {}),
        *(["mixed_precision"] if "mixed_precision" in read else []),
    ]
    groups = bool(read.get("parallelism_config"))
    return {
        **settings,
        "distributed_type": kind,
        "use_parallelism_config": groups,
        "deepspeed_fields": fields,
    }


def _check(path: str, settings: Mapping[str, Any], options: Collection[str]) -> None:
    from ..lightning_modules.common.suggestions import did_you_mean

    for key, value in settings.items():
        if key in _EMPTY and value not in (None, "", False, "no", [], {}):
            raise ValueError(
                f"{path}: {key}={value!r} is not supported: take it out, or use accelerate launch."
            )
        if key not in (*options, *_EMPTY):
            raise ValueError(
                f"{path}: {key!r} is no known setting.{did_you_mean(key, options)} Take it out."
            )


def variables(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables for these settings, as `accelerate launch` sets them."""
    from ..facade.arguments.launch_variables import VARIABLES

    found = {}
    for name, row in VARIABLES.items():
        value = settings.get(row.option) if row.option else None
        if value in (None, "", "all") or (row.flag and not value):
            value = row.default
        if value != "" and (not row.switch or settings.get(VARIABLES[row.switch].option)):
            found[name] = str(value).lower() if isinstance(value, bool) else str(value)
    if "ACCELERATE_DEEPSPEED_CONFIG_FILE" in found:
        found["ACCELERATE_CONFIG_DS_FIELDS"] = ",".join(settings.get("deepspeed_fields", ()))
    return found


def _without_effect(said: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the options whose switch is off, with the option that enables them."""
    from ..facade.arguments.launch_variables import VARIABLES

    switches = {
        row.option: VARIABLES[row.switch].option
        for row in VARIABLES.values()
        if row.option and row.switch
    }
    return {
        name: switches[name]
        for name in said
        if name in switches and not settings.get(switches[name])
    }


def _command(settings: Mapping[str, Any], script: str) -> list[str]:
    """Return the words that start the processes, up to the script."""
    machines = _number(settings, "num_machines") or 1
    processes = _number(settings, "num_processes") or _devices(settings)
    form = [name for name in ("module", "no_python") if settings.get(name)]
    if len(form) > 1:
        raise ValueError("module and no_python exclude each other: leave one out.")
    if processes < 1 or processes % machines:
        raise ValueError(
            f"num_processes={processes} is no multiple of num_machines={machines}: pass "
            "--num_processes."
        )
    several = processes > 1 or any(settings.get(name) for name in (*_KINDS.values(), "multi_gpu"))
    if not several:
        program = shutil.which(script)
        if form == ["no_python"] and program is None:
            raise ValueError(
                f"{script} is no program that can be run: leave no_python out, or give its path."
            )
        return (
            [str(program)]
            if form == ["no_python"]
            else [sys.executable, *(["-m"] if form else []), script]
        )
    words = ["-m", "torch.distributed.run", f"--nproc_per_node={processes // machines}"]
    words += [f"--{name}={settings[name]}" for name in _PASSED_ON if settings.get(name) is not None]
    address, port = settings.get("main_process_ip"), _number(settings, "main_process_port")
    if machines == 1:
        words += [f"--master_port={port}"] if port else ["--standalone"]
    elif not address or not port:
        raise ValueError(
            f"num_machines={machines} needs main_process_ip and main_process_port: set both."
        )
    else:
        words += [f"--nnodes={machines}", f"--node_rank={_number(settings, 'machine_rank')}"]
        words += [
            f"--rdzv_backend={settings.get('rdzv_backend') or 'static'}",
            f"--rdzv_endpoint={address}:{port}",
        ]
    return [sys.executable, *words, *(f"--{name}" for name in form), script]


def _number(settings: Mapping[str, Any], name: str) -> int:
    """Return a setting as a number; 0 if it is not set."""
    try:
        return int(settings.get(name) or 0)
    except ValueError:
        raise ValueError(f"{name}={settings[name]!r} is not a whole number.") from None


def _devices(settings: Mapping[str, Any]) -> int:
    if settings.get("use_cpu"):
        return 1
    import torch

    return torch.cuda.device_count() or 1


def _parser() -> CommandParser:
    from ..facade.arguments.launch_variables import VARIABLES

    usage = "lightrainer launch [OPTIONS] SCRIPT [ARGUMENTS]"
    parser = CommandParser("launch", _DESCRIPTION, _EPILOG, usage)
    parser.add_argument("script", help="the script to run")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the arguments of the script")
    file = "settings; by default those of `accelerate config`"
    parser.add_argument(*_spelled("config_file"), metavar="FILE", help=file)
    parser.add_argument(
        "-m", "--module", action="store_true", help="the script is the name of a module"
    )
    parser.add_argument(
        *_spelled("no_python"), action="store_true", help="the script is a program of any kind"
    )
    place = parser.add_argument_group("processes")
    for name, text in _PLACE.items():
        place.add_argument(
            *(["-t"] if name == "tee" else []), *_spelled(name), metavar="VALUE", help=text
        )
    place.add_argument(
        *_spelled("multi_gpu"),
        action="store_true",
        help="use torch's launcher for one process, too",
    )
    idle = "of accelerate; has no effect here"
    place.add_argument("-q", "--quiet", action="store_true", help=idle)
    place.add_argument(*_spelled("same_network"), action="store_true", help=idle)
    for name in _UNUSED:
        place.add_argument(*_spelled(name), metavar="VALUE", help=idle)
    handed = parser.add_argument_group("settings of the script")
    for row in (row for row in VARIABLES.values() if row.option):
        kind: dict[str, Any] = {"action": "store_true"} if row.flag else {"metavar": "VALUE"}
        spelled = [*_spelled(row.option), *(["--cpu"] if row.option == "use_cpu" else [])]
        becomes = (
            f"the argument {row.argument.rstrip('.')}"
            if row.argument
            else row.refused or f"for {row.elsewhere}"
        )
        handed.add_argument(*spelled, help=becomes, **kind)
    return parser


def _spelled(name: str) -> list[str]:
    return list(dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"]))
