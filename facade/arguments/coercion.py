"""Convert arguments from the forms they may be written in to the one form that the rest of the code reads.

Values that cannot be converted are left as they are, for `validation` to report. Only broken JSON, missing files and
addresses of no use are errors here.
"""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from numbers import Real
from typing import Any

from ...lightning_modules.common.json_files import read_object
from ...lightning_modules.common.local_paths import local_folder
from ...lightning_modules.common.metric_directions import known_direction
from .accelerator import AcceleratorConfig
from .checkpointing import agree
from .enums import DebugOption, FSDPOption, HubStrategy, IntervalStrategy, OptimizerNames, SaveStrategy, SchedulerType
from .fields import ArgumentFields
from .fsdp_config import OLD_NAMES
from .hardware import has_mps
from .parallelism import read_parallelism

logger = logging.getLogger(__name__)

ENUM_FIELDS: dict[str, type[Enum]] = {
    "eval_strategy": IntervalStrategy,
    "logging_strategy": IntervalStrategy,
    "save_strategy": SaveStrategy,
    "hub_strategy": HubStrategy,
    "lr_scheduler_type": SchedulerType,
    "optim": OptimizerNames,
}
"""Fields that hold one member of an enumeration."""

FSDP_CONFIG_DEFAULTS: dict[str, Any] = {
    "min_num_params": 0,
    "xla": False,
    "xla_fsdp_v2": False,
    "xla_fsdp_grad_ckpt": False,
}
"""Keys that `fsdp_config` always has."""


def coerce(args: ArgumentFields, dict_fields: list[str]) -> None:
    """As the conversions in `transformers.TrainingArguments.__post_init__`, in the same order.

    Args:
        args: Changed in place.
        dict_fields: Names of the fields in which a dict may be written as JSON text.

    Raises:
        ValueError: Text that begins as JSON is not JSON, or `output_dir` is an address that cannot be.
        ImportError: The package for the address in `output_dir` is not installed.
        FileNotFoundError: A configuration file does not exist.
    """
    _output_dir(args)
    _texts(args)
    _json_text(args, dict_fields)
    _deprecated(args)
    _token_counting(args)
    _members(args)
    _whole_numbers(args)
    _evaluation(args)
    _best_model(args)
    args.report_to = report_to_list(args.report_to)
    _whole_steps(args)
    _compilation(args)
    agree(args)
    _accelerator(args)
    _accumulation(args)
    _sharding(args)
    if args.disable_tqdm is None:
        args.disable_tqdm = logger.getEffectiveLevel() > logging.WARNING
    if args.use_cpu:
        args.dataloader_pin_memory = False
    _start_method(args)


def report_to_list(report_to: Any) -> list[Any]:
    """Return the trackers named by `report_to`: a list, one name, "all", "none" or None."""
    names = list(report_to) if isinstance(report_to, (list, tuple)) else [report_to]
    if names == ["all"]:
        from ...callbacks.reporting import available_reporting_integrations

        return list(available_reporting_integrations())
    return [] if names in (["none"], [None]) else names


def schedule_waits_for_metric(args: Any) -> bool:
    """Return True if the schedule is stepped with an evaluated metric; False for an unknown schedule."""
    schedule = member(SchedulerType, args.lr_scheduler_type)
    return isinstance(schedule, SchedulerType) and schedule.waits_for_metric


def member(kind: type[Enum], value: Any) -> Any:
    """Return the member of `kind` with this value, or the value itself if there is none."""
    try:
        return kind(value)
    except ValueError:
        return value


def is_number(value: Any) -> bool:
    """Return True for a real number of Python or NumPy."""
    return isinstance(value, Real)


def _output_dir(args: ArgumentFields) -> None:
    if args.output_dir is None:
        args.output_dir = "trainer_output"
        logger.info("output_dir is not set: results go to the folder 'trainer_output'.")
    if isinstance(args.output_dir, (str, os.PathLike)):
        args.output_dir = local_folder(args.output_dir)


def _texts(args: ArgumentFields) -> None:
    """Convert paths to text, but for `generation_config`, and drop the placeholders of tokens that `to_dict` writes."""
    for name in [item.name for item in fields(args)]:
        value = getattr(args, name)
        if isinstance(value, os.PathLike) and name != "generation_config":
            setattr(args, name, os.fspath(value))
        elif name.endswith("_token") and value == f"<{name.upper()}>":
            setattr(args, name, None)


def _json_text(args: ArgumentFields, dict_fields: list[str]) -> None:
    for name in dict_fields:
        value = getattr(args, name)
        if not (isinstance(value, str) and value.startswith("{")):
            continue
        try:
            setattr(args, name, typed(json.loads(value)))
        except json.JSONDecodeError as error:
            said = f"{name}={value!r} is not JSON ({error.msg}), keys and texts need double quotes"
            raise json.JSONDecodeError(said, error.doc, error.pos) from None


def typed(value: Any) -> Any:
    """Parse numbers and truth values that are text in JSON of a command line, and in environment variables."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    if value.isdigit():
        return int(value)
    return float(value) if value.replace(".", "", 1).isdigit() else value


def _deprecated(args: ArgumentFields) -> None:
    if args.warmup_ratio is not None:
        logger.warning(
            "warmup_ratio=%s is deprecated: pass it as warmup_steps, a share of all steps.", args.warmup_ratio
        )
        args.warmup_steps = args.warmup_ratio
    if args.logging_dir is not None:
        said = "logging_dir=%r is deprecated: set the environment variable TENSORBOARD_LOGGING_DIR."
        logger.warning(said, args.logging_dir)


def _token_counting(args: ArgumentFields) -> None:
    choice = args.include_num_input_tokens_seen
    # A command line gives "true" where a program gives True.
    if isinstance(choice, str) and choice.lower() in ("true", "false"):
        choice = choice.lower() == "true"
    if isinstance(choice, bool):
        args.include_num_input_tokens_seen = "all" if choice else "no"


def _members(args: ArgumentFields) -> None:
    for name, kind in ENUM_FIELDS.items():
        setattr(args, name, member(kind, getattr(args, name)))
    if args.debug is None or isinstance(args.debug, str):
        args.debug = [member(DebugOption, word) for word in (args.debug or "").split()]


def _whole_numbers(args: ArgumentFields) -> None:
    """Convert whole floats of integer fields, such as 1e3 steps, to int."""
    for item in fields(ArgumentFields):
        value = getattr(args, item.name)
        if item.type in (int, int | None) and isinstance(value, float) and value.is_integer():
            setattr(args, item.name, int(value))


def _evaluation(args: ArgumentFields) -> None:
    if args.do_eval is False and args.eval_strategy != IntervalStrategy.NO:
        args.do_eval = True
    unset = args.eval_steps is None or args.eval_steps == 0
    if args.eval_strategy == IntervalStrategy.STEPS and unset and is_number(args.logging_steps):
        args.eval_steps = args.logging_steps


def watched_metric(args: ArgumentFields) -> str:
    """Return the metric that a plateau schedule and the best model depend on: the loss unless another one is set."""
    if args.metric_for_best_model is not None:
        return args.metric_for_best_model
    return f"{args.eval_aggregate}_loss" if args.eval_aggregate else "loss"


def _best_model(args: ArgumentFields) -> None:
    if args.load_best_model_at_end or schedule_waits_for_metric(args):
        args.metric_for_best_model = watched_metric(args)
    if args.greater_is_better is None and isinstance(args.metric_for_best_model, str):
        args.greater_is_better = not args.metric_for_best_model.endswith("loss")
        if args.greater_is_better and known_direction(args.metric_for_best_model) == "minimize":
            logger.warning(
                "metric_for_best_model=%r is maximized: greater_is_better is unset, and its name does not end in loss. "
                "Set greater_is_better=False if less is better.",
                args.metric_for_best_model,
            )


def _whole_steps(args: ArgumentFields) -> None:
    for kind in ("logging", "eval", "save"):
        steps = getattr(args, f"{kind}_steps")
        counted = getattr(args, f"{kind}_strategy") == "steps" and is_number(steps) and steps > 1
        if counted and float(steps).is_integer():
            setattr(args, f"{kind}_steps", int(steps))


def _compilation(args: ArgumentFields) -> None:
    if args.torch_compile_mode is not None or args.torch_compile_backend is not None:
        args.torch_compile = True
    if args.torch_compile and args.torch_compile_backend is None:
        args.torch_compile_backend = "inductor"


def _accelerator(args: Any) -> None:
    config: Any = args.accelerator_config
    if config is None:
        config = AcceleratorConfig()
    elif isinstance(config, str) and not config.startswith("{"):
        config = AcceleratorConfig.from_json_file(_existing("accelerator_config", config))
    elif not isinstance(config, (type, Mapping, AcceleratorConfig)) and hasattr(config, "even_batches"):
        config = vars(config)  # an object of the reference's own class
    if isinstance(config, Mapping) and not AcceleratorConfig.unknown_keys(dict(config)):
        config = AcceleratorConfig(**config)
    args.accelerator_config = config


def _accumulation(args: Any) -> None:
    """Take the accumulation steps from `accelerator_config` if given there; `validation` refuses two values."""
    given = getattr(args.accelerator_config, "gradient_accumulation_kwargs", None)
    steps = given.get("num_steps") if isinstance(given, Mapping) else None
    if isinstance(steps, int) and steps >= 1 and args.gradient_accumulation_steps == 1:
        args.gradient_accumulation_steps = steps


def _start_method(args: ArgumentFields) -> None:
    """Fork the data loader's workers on a machine with an Apple GPU."""
    given, workers = args.dataloader_multiprocessing_context, args.dataloader_num_workers
    if given is None and isinstance(workers, int) and workers > 1 and has_mps():
        args.dataloader_multiprocessing_context = "fork"


def _sharding(args: ArgumentFields) -> None:
    chosen: Any = args.fsdp
    if not chosen:
        args.fsdp = []
    elif isinstance(chosen, str):
        # TRL's command line, which takes the type of this field apart, cannot pass a bool.
        as_bool = {"true": True, "false": []}.get(chosen.strip().lower())
        args.fsdp = [member(FSDPOption, word) for word in chosen.split()] if as_bool is None else as_bool
    config: Any = {} if args.fsdp_config is None else args.fsdp_config
    if isinstance(config, str) and not config.startswith("{"):
        config = read_object(_existing("fsdp_config", config), "fsdp_config", "settings of FSDP")
    args.fsdp_config = _fsdp_settings(config) if isinstance(config, Mapping) else config
    args.parallelism_config = read_parallelism(args.parallelism_config)


def _existing(name: str, path: str) -> str:
    if not os.path.isfile(path):
        kind = "is a folder" if os.path.isdir(path) else "there is no such file"
        raise FileNotFoundError(f"{name}={path!r}: {kind}. Pass a dict, or the path of a JSON file.")
    return path


def _fsdp_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a new dict with default keys, and without the prefix "fsdp_"."""
    settings = FSDP_CONFIG_DEFAULTS | {key.removeprefix("fsdp_"): value for key, value in config.items()}
    for old in [key for key in settings if key in OLD_NAMES]:
        logger.warning(f"fsdp_config[{old!r}] is deprecated: it is called {OLD_NAMES[old]!r} now.")
        settings[OLD_NAMES[old]] = settings.pop(old)
    layer = settings.get("transformer_layer_cls_to_wrap")
    if isinstance(layer, str):
        settings["transformer_layer_cls_to_wrap"] = [layer]
    return settings
