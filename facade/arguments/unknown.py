"""Refuse unknown arguments, with their new name or the nearest one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Collection, Iterable, Set
from typing import TYPE_CHECKING, Any, TypeVar

from ...lightning_modules.common.redaction import hidden_values, is_secret_name, redacted, secret_values
from ...lightning_modules.common.suggestions import did_you_mean
from . import old_style

if TYPE_CHECKING:
    from typing_extensions import Self

REPLACED: dict[str, str] = {
    "adafactor": "Pass optim='adafactor'",
    "dispatch_batches": "Pass accelerator_config={'dispatch_batches': ...}",
    "evaluate_during_training": "Pass eval_strategy='steps'",
    "evaluation_strategy": "It is called eval_strategy now",
    "fp16_backend": "Leave it out, fp16=True takes torch's own",
    "fp16_opt_level": "Leave it out, fp16=True is torch's own mixed precision",
    "fsdp_min_num_params": "Pass fsdp_config={'min_num_params': ...}",
    "fsdp_transformer_layer_cls_to_wrap": "Pass fsdp_config={'transformer_layer_cls_to_wrap': ...}",
    "group_by_length": "Pass train_sampling_strategy='group_by_length'",
    "half_precision_backend": "Leave it out, fp16=True and bf16=True take torch's own",
    "include_inputs_for_metrics": "Pass include_for_metrics=['inputs']",
    "include_tokens_per_second": "Pass include_num_input_tokens_seen='all'",
    "jit_mode_eval": "Pass torch_compile=True",
    "mp_parameters": "Leave it out, start the script with torchrun",
    "no_cuda": "It is called use_cpu now",
    "overwrite_output_dir": "Leave it out, a folder is written to as it is; empty it beforehand if need be",
    "past_index": "Leave it out, models keep no state from one batch to the next",
    "per_gpu_eval_batch_size": "It is called per_device_eval_batch_size now",
    "per_gpu_train_batch_size": "It is called per_device_train_batch_size now",
    "push_to_hub_model_id": "It is called hub_model_id now",
    "push_to_hub_organization": "Pass hub_model_id='organization/name'",
    "push_to_hub_token": "It is called hub_token now",
    "ray_scope": "Pass scope=... to hyperparameter_search",
    "save_safetensors": "Leave it out, weights are always written as safetensors",
    "sharded_ddp": "Pass fsdp='full_shard'",
    "split_batches": "Pass accelerator_config={'split_batches': ...}",
    "torchdynamo": "It is called torch_compile_backend now",
    "tpu_metrics_debug": "Pass debug='tpu_metrics_debug'",
    "tpu_num_cores": "Leave it out, the launcher says it",
    "use_ipex": "Leave it out, pass torch_compile=True if need be",
    "use_legacy_prediction_loop": "Leave it out, there is one loop",
    "use_mps_device": "Leave it out, the device is found by itself",
    "xpu_backend": "It is called ddp_backend now",
}
"""Training arguments of older versions, each with its replacement."""


class NamesItsArguments:
    """A class whose constructor refuses unknown keywords, with their new name or the nearest one.

    The check is in `__new__`, which gets all keywords, of subclasses too, before `__init__`; Python itself reports the
    first one only.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """As `object.__new__`, but unknown keywords are refused with advice.

        Raises:
            TypeError: see `refuse_unknown`.
        """
        kwargs = hidden_values(kwargs)
        refuse_unknown(cls, kwargs)
        return super().__new__(cls)

    @classmethod
    def _old_names(cls) -> Set[str]:
        """Return the names of transformers 4 that can be converted."""
        return frozenset()

    def _modernise(self, given: dict[str, Any]) -> dict[str, Any]:
        """Convert keywords with old names to current ones."""
        return given

    @classmethod
    def _advice(cls, name: str, known: Collection[str]) -> str:
        return f"{cls.__name__} has no such argument.{advice(name, known)}"


def refuse_unknown(cls: Any, kwargs: dict[str, Any]) -> None:
    """Refuse keywords that the constructor of a class does not take.

    Args:
        cls: the class, which has the methods of `NamesItsArguments`.
        kwargs: the keywords, without secrets.

    Raises:
        TypeError: Names each unknown keyword, its value, and a remedy.
    """
    known = _parameters(cls.__init__)
    if known is not None and "hub_token" in known:
        understand_old_names(cls)  # masks tokens for a subclass's constructor, which appears in tracebacks
    unknown = [] if known is None else [name for name in kwargs if name not in known]
    if unknown and old_style.accepted() and not cls._old_names().isdisjoint(unknown):
        # For the constructor of a subclass; those of this package are decorated.
        understand_old_names(cls)
        unknown = [name for name in unknown if name not in cls._old_names()]
    if unknown:
        said = [f"{shown(name, kwargs[name])}: {cls._advice(name, known or ())}" for name in unknown]
        several = f"{len(said)} arguments that {cls.__name__} does not have:\n" if len(said) > 1 else ""
        raise TypeError(several + "\n".join(said))


class SignatureOfInit:
    """Descriptor that gives a class with a generic `__new__` the signature of its `__init__`."""

    def __get__(self, instance: object, owner: Any) -> inspect.Signature:
        """Return the signature without `self`."""
        signature = inspect.signature(owner.__init__)
        return signature.replace(parameters=list(signature.parameters.values())[1:])


T = TypeVar("T", bound=type)


def understand_old_names(cls: T) -> T:
    """Decorate a class so that its constructor takes keywords of transformers 4, where these are accepted.

    Tokens among the keywords are masked before the constructor runs, so that tracebacks do not show them.
    """
    plain: Any = cls.__init__
    if getattr(plain, "understands", False):
        return cls

    @functools.wraps(plain)
    def understanding(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs = secret_values(kwargs)
        if old_style.accepted() and not self._old_names().isdisjoint(kwargs):
            kwargs = self._modernise(kwargs)
        plain(self, *args, **kwargs)

    marked: Any = understanding
    marked.understands = True
    cls.__init__ = marked
    return cls


def advice(name: str, known: Iterable[str]) -> str:
    """Return the replacement of an old argument, or the nearest known name; often an empty text.

    Args:
        name: A name that is not known.
        known: All names that are.
    """
    return f" {REPLACED[name]}." if name in REPLACED else did_you_mean(name, known)


def _parameters(init: Any) -> tuple[str, ...] | None:
    """Return the parameter names of a constructor; None if it takes any, or has no code object."""
    code = getattr(inspect.unwrap(init), "__code__", None)
    if code is None or code.co_flags & inspect.CO_VARKEYWORDS:
        return None
    return code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]


def shown(name: str, value: Any) -> str:
    """Format a keyword and its value on one short line, with secrets masked."""
    hidden = name.endswith("token") or is_secret_name(name)
    return f"{name}=..." if hidden else redacted(f"{name}={' '.join(repr(value).split())}")[: len(name) + 61]
