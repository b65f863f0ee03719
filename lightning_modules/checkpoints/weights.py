"""As `Trainer._save` and `Trainer._load_from_checkpoint` for weights, but tied weights of any
module can be saved.

As in the reference, models of `transformers` and PEFT save themselves by their `save_pretrained`,
as do those of `huggingface_hub`, and adapters are loaded by PEFT. Any other `nn.Module` goes
through its state dict, whatever methods it has. Classes that rename weights on saving read their
files themselves.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..common.file_names import SAFE_WEIGHTS_NAME
from ..common.local_paths import StrPath, require_local
from ..common.parameter_rules import plain_name
from ..common.torch_files import load_torch, on_host, state_on_host
from ..distributed.sharding import WholeModel
from ..internals.torch_names import renames_what_it_loads
from ..models.inspection import accepted_arguments, class_of, unwrap_model
from .adapters import (
    EXTRA_WEIGHTS_NAME,
    adapters_of,
    is_peft_model,
    load_adapters,
    saves_itself,
    weights_peft_leaves_out,
    with_peft_names,
)
from .tied_weights import require_tensors, required_missing, separate_tied_weights
from .weight_formats import (
    ADAPTER_FILES,
    INDEX_FILES,
    WEIGHT_FILES,
    LoadReport,
    adapter_folders,
    first_existing_file,
    has_model_parts,
    has_whole_weights,
    only_strings,
    read_index,
)

_log = logging.getLogger(__name__)

_LARGEST_FILE = 50 * 10**9  # bytes

_SHOWN = 6  # names in an error

_EXPECTED = ", ".join(WEIGHT_FILES + INDEX_FILES)


def save_weights(
    model: nn.Module,
    folder: StrPath,
    state_dict: Mapping[str, Any] | None = None,
    max_shard_size: int | str = _LARGEST_FILE,
) -> None:
    """As `Trainer._save` without the processor, but shared tensors are stored once instead of
    refused.

    Args:
        model: one of `transformers` or PEFT (it also writes its `config.json`), or any other
            module.
        folder: made if missing; older weight files in it are replaced.
        state_dict: tensors to save instead of `model.state_dict()`, e.g. gathered from several
            processes.
        max_shard_size: largest size of one file, in bytes or as "5GB"; beyond it there are several
            and an index.

    Raises:
        TypeError: the state dict holds something that is not a tensor; names it.
        OSError: the disk refused.
        ValueError: the folder is an address of some storage.
    """
    require_local(folder, "folder")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    state_dict = state_on_host(model) if state_dict is None else on_host(state_dict)
    with weights_written_to(folder):
        if saves_itself(model):
            before = _weight_stamps(folder)
            _save_itself(model, folder, state_dict, max_shard_size)
            if adapters_of(model):
                _save_trained_beside(model, folder, state_dict)
            # Some classes have a `save_pretrained` that writes files under other names; a
            # checkpoint must hold weights.
            if _weight_stamps(folder) != before:
                return
        _save_state_dict(
            model.state_dict() if state_dict is None else state_dict, folder, max_shard_size
        )


@contextmanager
def weights_written_to(folder: Path) -> Iterator[None]:
    """Raise errors of the writer of safetensors, which may be that of a full disk, as an
    `OSError`.
    """
    try:
        yield
    except SafetensorError as error:
        raise OSError(f"the weights could not be written to {folder}: {error}") from error


def _save_itself(
    model: Any, folder: Path, state_dict: Mapping[str, Any] | None, max_shard_size: int | str
) -> None:
    """Call the `save_pretrained` of a model of `transformers` or PEFT as the reference does; it
    may take less.
    """
    wanted: dict[str, Any] = {"state_dict": state_dict}
    if max_shard_size != _LARGEST_FILE:
        wanted["max_shard_size"] = max_shard_size
    options = accepted_arguments(model.save_pretrained, **wanted)
    with (
        _without_distributed_config(model),
        with_peft_names(model) if is_peft_model(model) else nullcontext(),
    ):
        try:
            model.save_pretrained(str(folder), **options)
        except (AttributeError, TypeError):
            # its error names the entry
            require_tensors(model.state_dict() if state_dict is None else state_dict)
            raise


def _save_trained_beside(model: Any, folder: Path, state_dict: Mapping[str, Any] | None) -> None:
    """Write the weights of a model with adapters that its `save_pretrained` leaves out, if there
    are any.
    """
    path = folder / EXTRA_WEIGHTS_NAME
    with with_peft_names(model) as adapted:
        left_out = weights_peft_leaves_out(
            adapted, adapted.state_dict() if state_dict is None else state_dict
        )
    if left_out:
        save_file(
            {name: tensor.contiguous() for name, tensor in left_out.items()},
            path,
            {"format": "pt"},
        )
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _without_distributed_config(model: Any) -> Iterator[None]:
    """Make a model that `transformers` has sharded save the whole tensors given to it, without
    gathering them.
    """
    config: Any = getattr(model, "config", None)
    distributed = getattr(config, "distributed_config", None)
    if distributed is None:
        yield
        return
    config.distributed_config = None
    try:
        yield
    finally:
        config.distributed_config = distributed


def load_weights(model: nn.Module, folder: StrPath, *, strict: bool = True) -> LoadReport:
    """As `Trainer._load_from_checkpoint`, but trained weights that the folder lacks are an error.

    Frozen ones, such as a backbone that an override of `_save` leaves out, keep the values that the
    model has, with a warning, as long as the folder has any weight of the model.

    Searched in this order: `model.safetensors`, `pytorch_model.bin`, adapters, parts of processes,
    shards of either kind. Unlike in the reference, a model of a class with `from_pretrained` whose
    file uses other names than the module (mixture-of-experts models of `transformers` 5) is loaded
    through it.

    Args:
        model: the module. A file may lack tied weights loaded under another name, and those that
            the module lists in `_keys_to_ignore_on_save` or matches by
            `_keys_to_ignore_on_load_missing`, regular expressions.
        folder: the checkpoint.
        strict: if False, missing weights are only reported and logged, as unexpected ones are.

    Raises:
        ValueError: the folder lacks trained weights of the model, or has none that fits; a tensor
            has another shape than the model's; a file is damaged, there are no weights, or only
            those of an adapter and the model cannot load them.
    """
    folder = Path(folder)

    def require(report: LoadReport) -> None:
        if not strict or not report.missing:
            return
        names = _own_names(model)
        missing = report.missing
        if not set(names) <= set(missing):
            missing = tuple(name for name in missing if names.get(name))
        if missing:
            raise ValueError(_lacking(missing, len(names), report.unexpected, folder))

    if not first_existing_file(folder, WEIGHT_FILES) and (adapters := adapter_folders(folder)):
        report = load_adapters(model, folder, adapters)
        if strict and report.missing:
            raise ValueError(
                _lacking(report.missing, len(_own_names(model)), report.unexpected, folder)
            )
    elif has_whole_weights(folder):
        report = _load_files(model, folder, *whole_files(folder), require)
    elif has_model_parts(folder):
        from .sharded_files import load_model_parts

        sharded = model.sharded if isinstance(model, WholeModel) else None
        report = load_model_parts(sharded or model, folder, together=sharded is not None)
    else:
        raise ValueError(f"no weights in {folder}: expected one of {_EXPECTED}, or adapters")
    require(report)
    _warn(report, folder)
    return report


def _load_files(
    model: nn.Module,
    folder: Path,
    parts: list[Path],
    aliases: dict[str, str],
    require: Callable[[LoadReport], None],
) -> LoadReport:
    """Load the files; missing weights are found before anything is loaded, where the names alone
    suffice.
    """
    foreseen = _foreseen(model, parts, aliases)
    if foreseen is not None and not (foreseen.unexpected and may_rename(model)):
        require(foreseen)
    report = _load_parts(model, folder, parts, aliases)
    if report.missing and report.unexpected and may_rename(model):
        return _load_through_class(model, folder, require)
    return report


def _foreseen(model: nn.Module, parts: list[Path], aliases: dict[str, str]) -> LoadReport | None:
    """Predict the report of loading; None if a module renames weights or a file has no header of
    names.
    """
    if any(part.suffix != ".safetensors" for part in parts) or renames_what_it_loads(model):
        return None
    there = {name for part in parts for name in header_of(part)[0]}
    there.update(alias for alias, saved in aliases.items() if saved in there)
    own = model.state_dict()
    missing = required_missing(model, (name for name in own if name not in there))
    return LoadReport(
        missing, tuple(name for name in there if name not in own and name not in aliases)
    )


def header_of(file: Path) -> tuple[list[str], dict[str, str]]:
    """Return the names of the tensors in a file of safetensors, and for each tied name the saved
    one.
    """
    try:
        with safe_open(file, framework="pt") as opened:
            return list(opened.keys()), only_strings(opened.metadata())
    except (SafetensorError, FileNotFoundError) as error:
        raise ValueError(f"the weights file {file} is damaged or missing: {error}") from error


def _own_names(model: Any) -> dict[str, bool]:
    """Return by name whether a weight of the model is trained."""
    names = dict.fromkeys(model.state_dict(), False)
    for name, weight in nn.Module.named_parameters(_own(model), remove_duplicate=False):
        names[plain_name(name)] = weight.requires_grad
    return names


def _lacking(
    missing: tuple[str, ...], total: int, unexpected: tuple[str, ...], folder: Path
) -> str:
    extra = f" It has {some_of(unexpected)} instead." if unexpected else ""
    return (
        f"{folder} has no values for {len(missing)} of {total} weights of the model: "
        f"{some_of(missing)}.{extra} Build the model as in the run that wrote it, or list the "
        "weights that are to begin anew: model._keys_to_ignore_on_load_missing = "
        f"[{re.escape(missing[0])!r}, ...] (regular expressions)."
    )


def some_of(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    return ", ".join(names[:_SHOWN]) + (
        f" and {len(names) - _SHOWN} more" if names[_SHOWN:] else ""
    )


def read_weights(folder: StrPath) -> dict[str, Tensor]:
    """Return all weights in a folder by name, including tied names, without a model.

    Raises:
        ValueError: a file is damaged, or there are no weights, or only those of an adapter.
    """
    folder = Path(folder)
    if not has_whole_weights(folder) and has_model_parts(folder):
        from .sharded_files import read_model_parts

        return read_model_parts(folder)
    if not has_whole_weights(folder):
        raise ValueError(
            f"{folder} does not hold all weights of a model: expected one of {_EXPECTED}"
        )
    parts, aliases = whole_files(folder)
    weights = {name: tensor for part in _read_parts(parts) for name, tensor in part.items()}
    return weights | {alias: weights[saved] for alias, saved in aliases.items() if saved in weights}


def _weight_stamps(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return inode and time of each weight file in the folder, to notice that weights were
    written.
    """
    names = {*WEIGHT_FILES, *INDEX_FILES, *ADAPTER_FILES}
    files = {
        path: path.stat() for path in (*folder.glob("*"), *folder.glob("*/*")) if path.name in names
    }
    return {path: (stat.st_ino, stat.st_mtime_ns) for path, stat in files.items()}


def _save_state_dict(
    state_dict: Mapping[str, Any], folder: Path, max_shard_size: int | str
) -> None:
    tensors, aliases = separate_tied_weights(state_dict)
    # Most often one file is enough, without the import of `huggingface_hub`, which takes a second.
    if (
        isinstance(max_shard_size, int)
        and sum(tensor.nbytes for tensor in tensors.values()) <= max_shard_size
    ):
        path = folder / SAFE_WEIGHTS_NAME
        save_file(tensors, path, {"format": "pt", **aliases})
        if aliases:
            _sort_metadata(path)
        return
    from huggingface_hub import save_torch_state_dict

    save_torch_state_dict(tensors, folder, max_shard_size=max_shard_size, metadata=aliases)


def _sort_metadata(path: Path) -> None:
    """Sort the metadata of a file of safetensors, which the library writes in any order: equal
    weights, equal files.
    """
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= size:
            file.seek(8)
            file.write(text.ljust(size))


def whole_files(folder: Path) -> tuple[list[Path], dict[str, str]]:
    """Return the files of all weights, and for each tied name the saved one."""
    file = first_existing_file(folder, WEIGHT_FILES + INDEX_FILES)
    assert file is not None
    if file.name in INDEX_FILES:
        index = read_index(file)
        return [folder / name for name in index.shards], index.aliases
    return [file], header_of(file)[1] if file.suffix == ".safetensors" else {}


def _load_parts(
    model: nn.Module, folder: Path, parts: list[Path], aliases: dict[str, str]
) -> LoadReport:
    """Load the files one at a time, to keep only one in memory."""
    own_names = model.state_dict().keys()
    missing: list[str] | None = None
    unexpected: list[str] = []
    for state_dict in _read_parts(parts):
        for alias, saved in aliases.items():
            if alias in own_names and saved in state_dict:
                state_dict.setdefault(alias, state_dict[saved])
        try:
            result = model.load_state_dict(state_dict, False)
        except RuntimeError as error:
            raise ValueError(f"the weights in {folder} do not fit the model: {error}") from error
        unexpected += result.unexpected_keys
        absent = set(result.missing_keys)
        missing = [
            name for name in (result.missing_keys if missing is None else missing) if name in absent
        ]
    return LoadReport(required_missing(model, missing or []), tuple(unexpected))


def _read_parts(parts: list[Path]) -> Iterator[dict[str, Tensor]]:
    for part in parts:
        try:
            yield load_file(part) if part.suffix == ".safetensors" else load_torch(part)
        except (SafetensorError, FileNotFoundError) as error:
            raise ValueError(f"the weights file {part} is damaged or missing: {error}") from error


def _warn(report: LoadReport, folder: Path) -> None:
    if report.missing:
        _log.warning(
            "%s has no values for %s; they keep what they had.", folder, some_of(report.missing)
        )
    if report.unexpected:
        _log.warning(
            "%s has values that the model has no place for: %s.",
            folder,
            some_of(report.unexpected),
        )


def may_rename(model: Any) -> bool:
    """Return whether the model's files may use other names than the module (mixture-of-experts
    in `transformers` 5).
    """
    return any(base.__name__ == "PreTrainedModel" for base in type(_own(model)).__mro__)


def _own(model: Any) -> Any:
    """Return the module itself of a `WholeModel`."""
    return unwrap_model(model.sharded if isinstance(model, WholeModel) else model)


def _load_through_class(
    model: Any, folder: Path, require: Callable[[LoadReport], None]
) -> LoadReport:
    """Load a second model with the class's `from_pretrained`, and copy its weights.

    `from_pretrained` knows the names in the files, but can only make new models.

    Args:
        model: the model.
        folder: the checkpoint.
        require: raises for a report of missing weights; called before anything is copied.
    """
    with torch.random.fork_rng(devices=[]):  # building a model draws random numbers
        own = _own(model)
        twin, found = class_of(own).from_pretrained(
            folder,
            config=own.config,
            dtype=own.dtype,
            output_loading_info=True,
            local_files_only=True,
        )
    # Missing weights were drawn at random in the second model, and must not replace the model's own
    # values.
    absent = set(found["missing_keys"])
    missing = required_missing(model, [name for name in model.state_dict() if name in absent])
    report = LoadReport(missing, tuple(sorted(found["unexpected_keys"])))
    require(report)
    model.load_state_dict(
        {name: value for name, value in twin.state_dict().items() if name not in absent}, False
    )
    return report
