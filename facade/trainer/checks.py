"""Validate the parameters of a Trainer, reporting all problems in one error, and its data."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ...lightning_modules.checkpoints.adapters import has_added_adapter, is_peft_model
from ...lightning_modules.common.suggestions import did_you_mean
from ...lightning_modules.data.lengths import has_length, is_table, why_without_length
from ...lightning_modules.models.liger import liger_patch
from ...lightning_modules.models.pretrained import number_of_classes
from ...lightning_modules.models.wrappers import base_of_adapter
from ..arguments import TrainingArguments
from ..arguments.launch_variables import set_by
from ..arguments.old_names import advice, old_names_accepted, warn_at_script_line
from ..arguments.rank_groups import spreads_model
from ..evaluation.live_metrics import (
    consists_of_metrics,
    metrics_type_problem,
    metrics_value_problem,
)
from ..evaluation.sets import metrics_of_sets, sets_problem
from .overrides import is_own

if TYPE_CHECKING:
    from .. import Trainer

_IGNORED_LABEL = -100
_LONGEST_VALUE = 60  # characters of a value that an error message shows
_STEPS_OF_THE_REFERENCE = {
    "_build_accelerator_args": (
        "create_accelerator_and_postprocess is called, and may modify trainer.accelerator"
    ),
    "_finalize_training": "on_train_end of a callback is called, and train returns the result",
    "_init_training_state": "set_initial_training_values is called",
    "_prepare_for_training": (
        "create_optimizer_and_scheduler and on_train_begin of a callback are called"
    ),
    "_run_epoch": "get_batch_samples, training_step and the events of callbacks are called",
    "_tune_save_checkpoint": "_save_checkpoint is called, for trials of Ray Tune, too",
    "_update_auto_batch_size": "_inner_training_loop is called with each batch size that is tried",
    "_wrap_model": (
        "a wrapped model is passed as the model; DDP and FSDP are configured by the training "
        "arguments"
    ),
}
"""Private methods of the reference's training loop, which has no counterpart here, with what to use
instead.
"""


_INSTEAD_OF_OPTIMIZERS = (
    "Override create_optimizer_and_scheduler, or pass optimizer_cls_and_kwargs."
)


class MissingModelError(RuntimeError, ValueError):
    """Raised if no model was passed. A RuntimeError as in the reference, and also a ValueError."""


def advice_on_keyword(cls: type, name: str, known_names: Collection[str]) -> str:
    """Return the advice for an unknown keyword of the Trainer."""
    instead = {
        "tokenizer": "It is called processing_class now",
        "tb_writer": "Pass callbacks=[TensorBoardCallback(writer)]",
    }
    if name in instead:
        return f"{cls.__name__} has no such argument. {instead[name]}."
    if any(field.name == name for field in fields(TrainingArguments)):
        return f"This is a training argument. Pass args=TrainingArguments({name}=...)."
    return f"{cls.__name__} has no such argument.{advice(name, known_names)}"


def without_tokenizer(kwargs: dict[str, Any]) -> dict[str, object]:
    """Rename the keyword `tokenizer` of transformers 4."""
    tokenizer = kwargs.pop("tokenizer")
    if tokenizer is not None and kwargs.get("processing_class") is not None:
        raise ValueError(
            "tokenizer is called processing_class now, and both were passed. Remove tokenizer."
        )
    warn_at_script_line("tokenizer is a parameter of transformers 4. Instead: `processing_class`.")
    if tokenizer is None:
        return kwargs
    return {**kwargs, "processing_class": tokenizer}


def missing_attribute(trainer: Trainer, name: str) -> object:
    """Resolve an attribute of an older version, or `model_wrapped` of a Trainer that has not run
    yet.

    Raises:
        AttributeError: the name is unknown.
    """
    # Before the first run the model is not wrapped.
    if name == "model_wrapped" and "model" in vars(trainer):
        return trainer.model

    # For any other name this raises AttributeError.
    if name != "tokenizer" or not old_names_accepted():
        return object.__getattribute__(trainer, name)

    warn_at_script_line(
        "Trainer.tokenizer is an attribute of transformers 4. Instead: `Trainer.processing_class`."
    )
    return trainer.processing_class


def check_construction(
    args: Any, parameters: Mapping[str, Any], *, calls_loss_func: bool = True
) -> None:
    """Check the parameters of `Trainer.__init__`.

    Args:
        args: the training arguments.
        parameters: the parameters by name.
        calls_loss_func: `compute_loss` is not overridden, and calls `compute_loss_func`.

    Raises:
        MissingModelError: neither `model` nor `model_init` was passed.
        TypeError: parameters have wrong types.
        ValueError: parameters are incompatible.
        RuntimeError: `optimizers` is incompatible with other parameters.
        ImportError: a required package is missing.
    """
    if not hasattr(args, "output_dir") or isinstance(args, type):
        raise TypeError(
            f"args must be TrainingArguments, but is {describe(args)}. The order is Trainer(model, "
            "args, ...)."
        )
    _check_model(parameters["model"], parameters["model_init"])

    # Types. An override of `compute_loss` may use compute_loss_func for anything.
    callables = [
        "model_init",
        "data_collator",
        "eval_data_collator",
        "preprocess_logits_for_metrics",
    ]
    if calls_loss_func:
        callables.append("compute_loss_func")
    wrong_types = [problem for problem in _type_problems(parameters, callables) if problem]
    if wrong_types:
        raise TypeError("\n".join(wrong_types))

    # Values.
    problems = [problem for problem in _value_problems(args, parameters) if problem]
    if problems:
        raise ValueError("\n".join(problems))
    _check_optimizers(args, parameters)

    # Packages.
    if args.use_liger_kernel:
        liger_patch()


def check_overrides(trainer_class: type) -> None:
    """Raise an error for overrides that would never be called.

    Raises:
        NotImplementedError: lists the methods and their alternatives.
    """
    lines = [f"{trainer_class.__name__} overrides private methods that Lightning never calls:"]
    for name, alternative in _STEPS_OF_THE_REFERENCE.items():
        if hasattr(trainer_class, name):
            lines.append(f"- {name}: {alternative}.")
    if len(lines) > 1:
        raise NotImplementedError("\n".join(lines))


def check_label_names(trainer: Trainer) -> None:
    """Check the label names of a Trainer with the default data_collator.

    Skipped for predictions, whose data may have no labels, and if `compute_loss` is overridden,
    which may remove `labels` from the inputs.

    Raises:
        ValueError: the model expects the labels as `label`, which the collator renames to `labels`.
    """
    names = trainer.label_names
    if "label" not in names or "labels" in names or not is_own(trainer, "compute_loss"):
        return

    # In a training, both of these remove `labels` from the inputs as well.
    takes_labels_out = trainer.compute_loss_func is not None or trainer.label_smoother is not None
    trains_with_labels = trainer.train_dataset is not None and not takes_labels_out
    if trains_with_labels or trainer.eval_dataset is not None:
        raise ValueError(
            f"{type(trainer.model).__name__}.forward or label_names has 'label', which the default "
            "data_collator renames to 'labels'. Call the argument 'labels', or pass a "
            "data_collator."
        )


def _check_model(model: object, model_init: object) -> None:
    if model is None and model_init is None:
        raise MissingModelError(
            "The Trainer needs a model: pass model=..., or model_init=... (it makes one)."
        )
    if model is not None and model_init is not None:
        raise ValueError(
            "Both model and model_init were passed, so it is unclear which to train. Pass one of "
            "them."
        )
    if model is not None and not isinstance(model, nn.Module):
        remedy = ""
        if isinstance(model, type):
            remedy = " Pass an instance of it, or the class as model_init."
        raise TypeError(f"model must be a torch.nn.Module, but is {describe(model)}.{remedy}")


def require_trainable_quantization(model: nn.Module) -> None:
    """Refuse a quantized model whose weights cannot be trained.

    Raises:
        ValueError: it has no adapters, or its quantization does not support training.
    """
    if not getattr(model, "is_quantized", False) or has_added_adapter(model):
        return
    quantizer = getattr(model, "hf_quantizer", None)
    trains_weights = getattr(quantizer, "is_qat_trainable", False)
    if not trains_weights and not is_peft_model(model):
        raise ValueError(
            "You cannot perform fine-tuning on purely quantized models: "
            f"{type(model).__name__} has no adapters. Add one, such as LoRA of PEFT."
        )
    if not getattr(quantizer, "is_trainable", False):
        raise ValueError(
            f"The quantization of {type(model).__name__} ({type(quantizer).__name__}) does not "
            "support training. Load the model with another one."
        )


def _type_problems(
    parameters: Mapping[str, object], callables: Collection[str]
) -> list[str | None]:
    problems: list[str | None] = []
    for name in callables:
        value = parameters[name]
        if value is not None and not callable(value):
            problems.append(f"{name} must be callable, but is {describe(value)}.")

    metrics_by_set = metrics_of_sets(parameters["compute_metrics"], parameters["eval_dataset"])
    problems += map(metrics_type_problem, metrics_by_set.values())
    problems.append(_optimizer_class_problem(parameters["optimizer_cls_and_kwargs"]))
    return [*problems, *_container_problems(parameters)]


def _optimizer_class_problem(pair: Any) -> str | None:
    is_pair = isinstance(pair, (tuple, list)) and len(pair) == 2
    if pair is None or (is_pair and callable(pair[0]) and isinstance(pair[1], Mapping)):
        return None
    return (
        "optimizer_cls_and_kwargs must be a pair (optimizer class, dict of its arguments), but is "
        f"{describe(pair)}."
    )


def _container_problems(parameters: Mapping[str, Any]) -> list[str | None]:
    problems: list[str | None] = []

    callbacks = parameters["callbacks"]
    if callbacks is not None and not isinstance(callbacks, Iterable):
        problems.append(f"callbacks must be a list of callbacks, but is {describe(callbacks)}.")

    # Rejects optimizers of other frameworks such as Keras, which would never step.
    pair = parameters["optimizers"]
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        problems.append(
            "optimizers must be a pair (optimizer or None, schedule or None), but is "
            f"{describe(pair)}."
        )
    elif pair[0] is not None and not hasattr(pair[0], "param_groups"):
        problems.append(
            f"optimizers[0] must be a torch.optim.Optimizer, but is {describe(pair[0])}."
        )

    for name in ("train_dataset", "eval_dataset"):
        for key, dataset in _datasets(parameters[name]).items():
            # Some libraries pass a string as eval_dataset, and run their own evaluation.
            is_inner = bool(key)
            is_name = isinstance(dataset, str) and name == "eval_dataset"
            if not is_inner and (dataset is None or is_name):
                continue
            problems.append(dataset_problem(dataset, f"{name}{key}", inner=is_inner))
    return problems


def dataset_problem(dataset: Any, name: str, *, inner: bool = False) -> str | None:
    """Return the problem with a dataset, or None.

    Args:
        dataset: the value passed.
        name: the name of the parameter, for the message.
        inner: whether it is a value in a dict of datasets.
    """
    expected = "a dataset (with __getitem__ and __len__, or __iter__)"
    if hasattr(dataset, "__next__") and not hasattr(dataset, "__getitem__"):
        return (
            f"{name} must be {expected}, but is {describe(dataset)}, an iterator, which can be "
            "consumed only once. Pass list(...)."
        )
    unusable = not hasattr(dataset, "__getitem__") and not hasattr(dataset, "__iter__")
    if dataset is None or isinstance(dataset, str) or unusable:
        return f"{name} must be {expected}, but is {describe(dataset)}."
    # Inspect plain lists and tuples only, because reading a sample of a subclass may be expensive.
    if type(dataset) in (list, tuple) and any(map(_is_dataset, dataset[:1])):
        remedy = "Pass a dict, {'first': ..., 'second': ...}, to evaluate each under its name"
        if name == "train_dataset":
            remedy = "Join them with torch.utils.data.ConcatDataset"
        return (
            f"{name} is a {type(dataset).__name__} of datasets, so each sample would be a whole "
            f"dataset. {remedy}."
        )
    if inner and isinstance(dataset, dict):
        return (
            f"{name} must be {expected}, but is a dict ({', '.join(map(str, dataset))}): dicts of "
            "datasets are only accepted as eval_dataset."
        )
    return None


def _is_dataset(sample: object) -> bool:
    """Return whether a sample is itself a dataset."""
    # A list may be a sample, such as the messages of a chat.
    return isinstance(sample, Dataset) or is_table(sample)


def require_dataset(dataset: object, name: str) -> None:
    """Check a dataset before it is read.

    Raises:
        TypeError: it is not a dataset.
    """
    problem = _loader_problem(dataset, name) or dataset_problem(dataset, name, inner=True)
    if problem is not None:
        raise TypeError(problem)


def _loader_problem(dataset: object, name: str) -> str | None:
    """Return the problem with a DataLoader that was passed as a dataset, or None."""
    if not isinstance(dataset, DataLoader):
        return None
    size = "per_device_train_batch_size"
    if name != "train_dataset":
        size = "per_device_eval_batch_size"
    return (
        f"{name} is a DataLoader, which returns batches. Pass its dataset (loader.dataset), and "
        f"set {size}={dataset.batch_size}; or override get_{name.removesuffix('set')}loader to "
        "return the DataLoader."
    )


def _datasets(dataset: object) -> dict[str, object]:
    if isinstance(dataset, dict):
        return {f"[{key!r}]": value for key, value in dataset.items()}
    return {"": dataset}


def _value_problems(args: TrainingArguments, parameters: Mapping[str, object]) -> list[str | None]:
    compute_metrics = parameters["compute_metrics"]
    eval_dataset = parameters["eval_dataset"]
    problems = [
        _stream_problem(args, parameters["train_dataset"]),
        _evaluation_problem(args, eval_dataset),
        sets_problem(args, compute_metrics, eval_dataset),
    ]
    for metrics in metrics_of_sets(compute_metrics, eval_dataset).values():
        problems.append(_batch_metrics_problem(args, metrics))
        problems.append(metrics_value_problem(args, metrics))
    problems.append(_backend_problem(args))
    problems.append(_compile_mode_problem(args))
    return problems


def _backend_problem(args: TrainingArguments) -> str | None:
    backend = args.torch_compile_backend
    if not args.torch_compile or callable(backend):
        return None
    backends = torch.compiler.list_backends(exclude_tags=())
    if backend in backends:
        return None

    # With an option of `accelerate launch` the user never set the training argument.
    source = f"torch_compile_backend={backend!r}"
    if "torch_compile_backend" in args.set_by_launcher:
        source = set_by("ACCELERATE_DYNAMO_BACKEND")
    return (
        f"{source} is not known to torch."
        f"{did_you_mean(backend, backends)} Choose from: {', '.join(backends)}."
    )


def _compile_mode_problem(args: TrainingArguments) -> str | None:
    # Other backends may have other modes.
    mode = args.torch_compile_mode
    if not args.torch_compile or mode is None or args.torch_compile_backend != "inductor":
        return None
    source = f"torch_compile_mode={mode!r}"
    if "torch_compile_mode" in args.set_by_launcher:
        source = set_by("ACCELERATE_DYNAMO_MODE")

    # This only wraps the module. torch's error message lists the valid modes.
    try:
        torch.compile(torch.nn.Identity(), mode=mode)
    except RuntimeError as error:
        return f"{source} is not known to torch: {error}"
    return None


def _stream_problem(args: TrainingArguments, dataset: object) -> str | None:
    if dataset is None:
        return None
    is_stream = isinstance(dataset, IterableDataset) or not has_length(dataset)
    if args.max_tokens_per_batch and is_stream:
        return (
            f"train_dataset ({type(dataset).__name__}) is a stream, but "
            "train_sampling_strategy='token_budget' needs the length of each sample. Pass one "
            "with a length, or another strategy."
        )
    if has_length(dataset) or args.max_steps > 0:
        return None
    reason = why_without_length(dataset)
    return (
        f"train_dataset ({type(dataset).__name__}) has no length{reason}. Set max_steps (currently "
        f"{args.max_steps})."
    )


def _evaluation_problem(args: Any, dataset: Any) -> str | None:
    if args.eval_strategy == "no" or args.eval_strategy is None or dataset is not None:
        return None
    return (
        f"eval_strategy={args.eval_strategy.value!r} needs an eval_dataset. Pass one, or set "
        "eval_strategy='no'."
    )


def _batch_metrics_problem(args: TrainingArguments, compute_metrics: Any) -> str | None:
    if not args.batch_eval_metrics or compute_metrics is None:
        return None
    if consists_of_metrics(compute_metrics):
        return None
    if "compute_result" in inspect.signature(compute_metrics).parameters:
        return None
    return (
        "batch_eval_metrics=True needs a compute_metrics with the argument compute_result, which "
        "is True at the end."
    )


def _check_optimizers(args: TrainingArguments, parameters: Mapping[str, Any]) -> None:
    optimizer, scheduler = parameters["optimizers"]
    if optimizer is None and scheduler is None:
        return
    replacing = None
    if args.fsdp:
        replacing = "fsdp"
    elif args.deepspeed:
        replacing = "deepspeed"
    elif spreads_model(args):
        replacing = "parallelism_config"
    elif parameters["model_init"] is not None:
        replacing = "model_init"
    if replacing is not None:
        raise RuntimeError(
            f"optimizers cannot be passed together with {replacing}: it replaces the parameters "
            f"that they hold. {_INSTEAD_OF_OPTIMIZERS}"
        )
    if parameters["optimizer_cls_and_kwargs"] is not None and optimizer is not None:
        raise RuntimeError(
            "Both optimizers and optimizer_cls_and_kwargs were passed. Pass one of them."
        )


def require_training_data(trainer: Trainer) -> None:
    """Raise an error if a training has no data, or DataLoaders instead of datasets."""
    # Check evaluation data as well; otherwise the error would only occur in mid-training.
    evaluates = trainer.args.eval_strategy != "no"
    if evaluates and is_own(trainer, "get_eval_dataloader"):
        for key, dataset in _datasets(trainer.eval_dataset).items():
            problem = _loader_problem(dataset, f"eval_dataset{key}")
            if problem is not None:
                raise TypeError(problem)

    if not is_own(trainer, "get_train_dataloader"):
        return
    dataset = trainer.train_dataset
    problem = _loader_problem(dataset, "train_dataset")
    if problem is not None:
        raise TypeError(problem)
    if dataset is None:
        raise ValueError("train() needs data: pass train_dataset=... to the Trainer.")
    if isinstance(dataset, dict):
        raise TypeError(
            f"train_dataset is a dict ({', '.join(map(str, dataset))}), but training takes one "
            "dataset. Pass one of its values, or datasets.Dataset.from_dict(...) of columns."
        )
    if has_length(dataset) and len(dataset) == 0:
        raise ValueError(
            "train_dataset is empty: it has length 0, so there is nothing to train on."
        )


def check_labels(trainer: Trainer, batch: object) -> None:
    """Check that the labels of the first batch are below the model's number of classes.

    On CUDA, a label out of range triggers a device-side assert that mentions neither.

    Nothing is checked if the number of classes is unknown, or if the user computes the loss.

    Args:
        trainer: the Trainer.
        batch: the batch as returned by the data_collator.

    Raises:
        ValueError: a label is out of range.
    """
    if trainer.compute_loss_func is not None or not is_own(trainer, "compute_loss"):
        return

    # Only integers can be class indices; floats are regression targets.
    labels = batch.get("labels") if isinstance(batch, Mapping) else None
    classes = number_of_classes(trainer.model)
    if classes is None or not isinstance(labels, torch.Tensor):
        return
    if labels.is_floating_point() or labels.dtype == torch.bool or labels.numel() == 0:
        return

    counted = labels[labels != _IGNORED_LABEL]
    wrong = counted[(counted < 0) | (counted >= classes)]
    if len(wrong) == 0:
        return
    name = type(base_of_adapter(trainer.model)).__name__
    raise ValueError(
        f"The first batch has the label {int(wrong[0])}, but {name} has {classes} classes: labels "
        f"range from 0 to {classes - 1}, or are {_IGNORED_LABEL} to be ignored. Number the classes "
        "from 0, and create the model with enough of them (num_labels; for tokens, "
        "model.resize_token_embeddings(len(tokenizer)))."
    )


def require_new_models(trainer: Trainer) -> None:
    """Raise an error if a search cannot create a new model and optimizer for each trial."""
    if trainer.model_init is None:
        raise RuntimeError(
            "hyperparameter_search needs a new model for each trial: pass model_init=... to "
            "Trainer."
        )
    was_trained = trainer._created_lr_scheduler or trainer._lightrainer.was_prepared
    if trainer.optimizer is not None and not was_trained:
        raise RuntimeError(
            "hyperparameter_search cannot use the Trainer's optimizer: it holds parameters of "
            f"another model. {_INSTEAD_OF_OPTIMIZERS}"
        )


def describe(value: object) -> str:
    """Return type and value for a message; a long value is truncated."""
    text = repr(value)
    if len(text) > _LONGEST_VALUE:
        text = f"{text[:_LONGEST_VALUE]}..."
    return f"{type(value).__name__} ({text})"
