"""Save and load the weights of a model.

As `Trainer._save` and `Trainer._load_from_checkpoint`, but tied weights of any module can be saved.
As in the reference, models of `transformers`, PEFT and `huggingface_hub` are saved by their
`save_pretrained`, and PEFT loads adapters. For any other `nn.Module` the state dict is saved, even
if the module has a `save_pretrained`. Classes that rename weights when saving are loaded by their
`from_pretrained`.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..common.file_names import SAFE_WEIGHTS_NAME
from ..common.local_paths import StrPath, require_local
from ..common.parameter_rules import plain_name
from ..common.seeding import preserved_host_rng
from ..common.torch_files import load_torch, on_host, state_on_host, writing_to
from ..distributed.sharding import FullModel, KeyDifferences
from ..internals.torch_names import renames_what_it_loads
from ..models.signatures import accepted_arguments
from ..models.wrappers import class_of, unwrap_model
from .adapters import (
    EXTRA_WEIGHTS_NAME,
    adapter_names,
    is_peft_model,
    load_adapters,
    saves_itself,
    weights_not_saved_by_peft,
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
    has_full_weights,
    has_model_parts,
    only_strings,
    read_index,
)

_log = logging.getLogger(__name__)

_LARGEST_FILE = 50 * 10**9
"""Bytes."""

_SHOWN_NAMES = 6
"""Maximum number of names in a message."""

_METADATA = {"format": "pt"}
"""Metadata of a safetensors file, from which transformers sees that it was written by torch."""

_EXPECTED = ", ".join(WEIGHT_FILES + INDEX_FILES)


def save_weights(
    model: nn.Module,
    folder: StrPath,
    state_dict: Mapping[str, Any] | None = None,
    max_shard_size: int | str = _LARGEST_FILE,
) -> None:
    """Save the weights of a model to a folder, tied weights only once.

    As `Trainer._save` of transformers, but without the processor.

    Args:
        model: any module. Models of `transformers` and PEFT also write their configuration.
        folder: created if missing. Older weights files in it are replaced.
        state_dict: tensors to save instead of `model.state_dict()`, e.g. gathered from several
            processes.
        max_shard_size: maximum size of one file, in bytes or as "5GB". Larger models are split into
            several files with an index.

    Raises:
        TypeError: an entry of the state dict is not a tensor. The message names it.
        OSError: the weights could not be written.
        ValueError: the folder is a URL of remote storage.
    """
    require_local(folder, "folder")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)

    # Tensors of torch_xla are saved from the CPU.
    state_dict = state_on_host(model) if state_dict is None else on_host(state_dict)

    with weights_written_to(folder):
        if saves_itself(model):
            before = _weight_stamps(folder)
            _save_itself(model, folder, state_dict, max_shard_size)
            if adapter_names(model):
                _save_extra_weights(model, folder, state_dict)
            # Some classes have a `save_pretrained` that writes files under other names. Save the
            # state dict too in that case, because a checkpoint must contain weights.
            if _weight_stamps(folder) != before:
                return
        if state_dict is None:
            state_dict = model.state_dict()
        _save_state_dict(state_dict, folder, max_shard_size)


@contextmanager
def weights_written_to(folder: Path) -> Generator[None]:
    """Correct what safetensors does otherwise than Python when it writes files in the block.

    Its errors, such as a full disk, become an `OSError`. Its files get the access rights of other
    new files in the folder; since version 0.8 only their owner may read them.

    Args:
        folder: the folder, whose subfolders may be written to as well.
    """
    before = _file_stamps(folder)
    try:
        with writing_to(folder):
            yield
    except SafetensorError as error:
        raise OSError(f"the weights could not be written to {folder}: {error}") from error

    # Create a file to learn its rights, because the umask cannot be read without changing it, and
    # a folder may have default rights.
    sample = folder / f".rights-{os.urandom(4).hex()}.tmp"
    sample.touch()
    rights = sample.stat().st_mode
    sample.unlink()
    for path, stamp in _file_stamps(folder).items():
        if path.suffix == ".safetensors" and stamp != before.get(path):
            # Some file systems have no access rights.
            with suppress(OSError):
                path.chmod(rights)


def _save_itself(
    model: Any, folder: Path, state_dict: Mapping[str, Any] | None, max_shard_size: int | str
) -> None:
    """Save a model by its `save_pretrained`, with the same arguments as the reference."""
    arguments: dict[str, Any] = {"state_dict": state_dict}
    if max_shard_size != _LARGEST_FILE:
        arguments["max_shard_size"] = max_shard_size
    # Other classes may accept fewer arguments.
    options = accepted_arguments(model.save_pretrained, **arguments)

    peft_names: AbstractContextManager[object] = nullcontext()
    if is_peft_model(model):
        peft_names = with_peft_names(model)
    with _without_distributed_config(model), peft_names:
        try:
            model.save_pretrained(str(folder), **options)
        except (AttributeError, TypeError):
            # The usual cause is an entry that is not a tensor. Raise an error that names it.
            if state_dict is None:
                state_dict = model.state_dict()
            require_tensors(cast("Mapping[str, Any]", state_dict))
            raise


def _save_extra_weights(
    model: nn.Module, folder: Path, state_dict: Mapping[str, object] | None
) -> None:
    """Write the weights of a model with adapters that its `save_pretrained` does not save."""
    with with_peft_names(model) as adapted:
        if state_dict is None:
            state_dict = adapted.state_dict()
        left_out = weights_not_saved_by_peft(adapted, cast("Mapping[str, Tensor]", state_dict))

    path = folder / EXTRA_WEIGHTS_NAME
    if not left_out:
        path.unlink(missing_ok=True)
        return
    contiguous = {name: tensor.contiguous() for name, tensor in left_out.items()}
    save_file(contiguous, path, _METADATA)


@contextmanager
def _without_distributed_config(model: nn.Module) -> Generator[None]:
    """Let a model that `transformers` has sharded save full tensors without gathering them."""
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


def load_weights(
    model: nn.Module | FullModel, folder: StrPath, *, strict: bool = True
) -> LoadReport:
    """Load the weights in a folder into a model. Missing trained weights raise.

    Missing frozen weights, such as a backbone that an override of `_save` omits, keep their present
    values with a warning, as long as the folder has at least one weight of the model.

    Formats are tried in this order: `model.safetensors`, `pytorch_model.bin`, adapters, shards with
    an index, shards of ranks. Unlike in the reference, a model whose class renames weights when
    saving (mixture-of-experts models of `transformers` 5) is loaded by `from_pretrained`.

    Args:
        model: the module. Files may lack tied weights that are loaded under another name, names in
            the module's `_keys_to_ignore_on_save`, and names that match its
            `_keys_to_ignore_on_load_missing` (regular expressions).
        folder: the folder of the checkpoint.
        strict: if False, missing weights are only logged and returned, like unexpected ones.

    Raises:
        ValueError: the folder lacks trained weights of the model, or all of its weights; a tensor's
            shape differs from the model's; a file is damaged; the folder has no weights, or only
            those of an adapter that the model does not have.
    """
    folder = Path(folder)

    def require_weights(report: LoadReport) -> None:
        if not strict or not report.missing:
            return
        is_trained = _trained_by_name(model)
        missing = report.missing
        # Frozen weights may be missing, but not all weights of the model.
        has_some = not is_trained.keys() <= set(missing)
        if has_some:
            missing = tuple(name for name in missing if is_trained.get(name))
        if missing:
            raise ValueError(_missing_message(missing, len(is_trained), report.unexpected, folder))

    adapters: Mapping[str, Path] = {}
    if first_existing_file(folder, WEIGHT_FILES) is None:
        adapters = adapter_folders(folder)

    if adapters:
        report = load_adapters(model, folder, adapters)
        if strict and report.missing:
            total = len(_trained_by_name(model))
            raise ValueError(_missing_message(report.missing, total, report.unexpected, folder))
    elif has_full_weights(folder):
        report = _load_files(model, folder, unsharded_files(folder), require_weights)
    elif has_model_parts(folder):
        from .sharded_files import load_model_parts

        if isinstance(model, FullModel):
            report = load_model_parts(model.sharded, folder, all_ranks=True)
        else:
            report = load_model_parts(model, folder, all_ranks=False)
    else:
        raise ValueError(f"no weights in {folder}: expected one of {_EXPECTED}, or adapters")
    require_weights(report)
    _warn(report, folder)
    return report


class WeightFiles(NamedTuple):
    """Files that hold all weights of a model."""

    paths: list[Path]

    aliases: dict[str, str]
    """For each tied name the name under which its values were saved."""


def _load_files(
    model: nn.Module | FullModel,
    folder: Path,
    files: WeightFiles,
    require_weights: Callable[[LoadReport], None],
) -> LoadReport:
    """Load weights files. If possible, missing weights raise before anything is loaded."""
    # If the class may have renamed weights, missing ones are known only after loading.
    expected = _expected_report(model, files)
    if expected is not None and not (expected.unexpected and may_rename(model)):
        require_weights(expected)

    report = _load_file_by_file(model, folder, files)
    if report.missing and report.unexpected and may_rename(model):
        return _load_through_class(model, folder, require_weights)
    return report


def _expected_report(model: nn.Module | FullModel, files: WeightFiles) -> LoadReport | None:
    """Predict the result of loading from the names in the files.

    Returns None if a module renames weights or a file has no header with names.
    """
    # Only safetensors files have a header. Pickle files would have to be loaded.
    has_headers = all(path.suffix == ".safetensors" for path in files.paths)
    if not has_headers or renames_what_it_loads(model):
        return None

    available: set[str] = set()
    for path in files.paths:
        names, _ = header_of(path)
        available.update(names)
    for alias, saved in files.aliases.items():
        if saved in available:
            available.add(alias)

    in_model = model.state_dict().keys()
    missing = required_missing(model, [name for name in in_model if name not in available])
    unexpected = available - in_model - files.aliases.keys()
    return LoadReport(missing, tuple(unexpected))


def header_of(file: Path) -> tuple[list[str], dict[str, str]]:
    """Return the tensor names in a safetensors file, and the saved names of tied weights.

    Raises:
        ValueError: the file is damaged or missing.
    """
    try:
        with safe_open(file, framework="pt") as header:
            return list(header.keys()), only_strings(header.metadata())
    except (SafetensorError, FileNotFoundError) as error:
        raise ValueError(f"the weights file {file} is damaged or missing: {error}") from error


def _trained_by_name(model: nn.Module | FullModel) -> dict[str, bool]:
    """Return for each weight of the model whether it is trained."""
    is_trained: dict[str, bool] = dict.fromkeys(model.state_dict(), False)
    for name, weight in nn.Module.named_parameters(_module_of(model), remove_duplicate=False):
        is_trained[plain_name(name)] = weight.requires_grad
    return is_trained


def _missing_message(
    missing: tuple[str, ...], total: int, unexpected: tuple[str, ...], folder: Path
) -> str:
    others = ""
    if unexpected:
        others = f" It has {abbreviate(unexpected)} instead."
    return (
        f"{folder} has no values for {len(missing)} of {total} weights of the model: "
        f"{abbreviate(missing)}.{others} Build the model as in the run that wrote it, or list the "
        "weights that keep their initial values: model._keys_to_ignore_on_load_missing = "
        f"[{re.escape(missing[0])!r}, ...] (regular expressions)."
    )


def abbreviate(names: Sequence[str]) -> str:
    """Join the first names, and append the number of the others."""
    shown = ", ".join(names[:_SHOWN_NAMES])
    others = len(names) - _SHOWN_NAMES
    if others > 0:
        shown = f"{shown} and {others} more"
    return shown


def read_weights(folder: StrPath) -> dict[str, Tensor]:
    """Read all weights in a folder, including tied names, without a model.

    Raises:
        ValueError: a file is damaged, or the folder does not contain all weights of a model.
    """
    folder = Path(folder)
    if not has_full_weights(folder):
        if has_model_parts(folder):
            from .sharded_files import read_model_parts

            return read_model_parts(folder)
        raise ValueError(
            f"{folder} does not hold all weights of a model: expected one of {_EXPECTED}"
        )

    files = unsharded_files(folder)
    weights: dict[str, Tensor] = {}
    for state_dict in _read_files(files.paths):
        weights.update(state_dict)

    # Add tied weights, which are stored only once.
    tied: dict[str, Tensor] = {}
    for alias, saved in files.aliases.items():
        if saved in weights:
            tied[alias] = weights[saved]
    return weights | tied


def _weight_stamps(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return inode and modification time of each weights file, to detect new ones."""
    names = {*WEIGHT_FILES, *INDEX_FILES, *ADAPTER_FILES}
    stamps = _file_stamps(folder)
    return {path: stamp for path, stamp in stamps.items() if path.name in names}


def _file_stamps(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return inode and modification time of each file in a folder and its subfolders."""
    stamps: dict[Path, tuple[int, int]] = {}
    for root, subfolders, names in os.walk(folder):
        # Adapters have a subfolder each, which has none.
        if Path(root) != folder:
            subfolders.clear()
        for name in names:
            path = Path(root, name)
            # A thread may be deleting older checkpoints in the folder.
            with suppress(FileNotFoundError):
                status = path.stat()
                stamps[path] = (status.st_ino, status.st_mtime_ns)
    return stamps


def _save_state_dict(
    state_dict: Mapping[str, object], folder: Path, max_shard_size: int | str
) -> None:
    tensors, aliases = separate_tied_weights(state_dict)

    # Write a single file without `huggingface_hub`, whose import takes a second.
    size = sum(tensor.nbytes for tensor in tensors.values())
    if isinstance(max_shard_size, int) and size <= max_shard_size:
        path = folder / SAFE_WEIGHTS_NAME
        save_file(tensors, path, _METADATA | aliases)
        if aliases:
            _sort_metadata(path)
        return
    from huggingface_hub import save_torch_state_dict

    save_torch_state_dict(tensors, folder, max_shard_size=max_shard_size, metadata=aliases)


def _sort_metadata(path: Path) -> None:
    """Sort the metadata of a safetensors file, so that equal weights give equal files.

    The library writes the metadata in arbitrary order.
    """
    with path.open("r+b") as file:
        # The file starts with the length of its header, and the tensors follow the header. The new
        # header must have the same length, so it is padded with spaces.
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= size:
            file.seek(8)
            file.write(text.ljust(size))


def unsharded_files(folder: Path) -> WeightFiles:
    """Return the weights files of a folder with full weights."""
    file = first_existing_file(folder, WEIGHT_FILES + INDEX_FILES)
    assert file is not None
    if file.name in INDEX_FILES:
        index = read_index(file)
        return WeightFiles([folder / name for name in index.shards], index.aliases)
    aliases: dict[str, str] = {}
    if file.suffix == ".safetensors":
        _, aliases = header_of(file)
    return WeightFiles([file], aliases)


def _load_file_by_file(
    model: nn.Module | FullModel, folder: Path, files: WeightFiles
) -> LoadReport:
    """Load files one at a time, so that only one is in memory."""
    names_in_model = model.state_dict().keys()
    missing: list[str] | None = None
    unexpected: list[str] = []
    for state_dict in _read_files(files.paths):
        # Add tied weights, because the model may not tie them.
        for alias, saved in files.aliases.items():
            if alias in names_in_model and saved in state_dict:
                state_dict.setdefault(alias, state_dict[saved])

        try:
            result = cast("KeyDifferences", model.load_state_dict(state_dict, False))
        except RuntimeError as error:
            raise ValueError(f"the weights in {folder} do not fit the model: {error}") from error

        # A weight is missing if no file contains it.
        unexpected += result.unexpected_keys
        if missing is None:
            missing = result.missing_keys
        else:
            missing_here = set(result.missing_keys)
            missing = [name for name in missing if name in missing_here]
    return LoadReport(required_missing(model, missing or []), tuple(unexpected))


def _read_files(paths: list[Path]) -> Iterator[dict[str, Tensor]]:
    for path in paths:
        try:
            if path.suffix == ".safetensors":
                yield load_file(path)
            else:
                yield load_torch(path)
        except (SafetensorError, FileNotFoundError) as error:
            raise ValueError(f"the weights file {path} is damaged or missing: {error}") from error


def warn_of_differences(
    model: nn.Module, differences: KeyDifferences, source: StrPath = "The checkpoint"
) -> None:
    """Warn of missing and unexpected keys that `load_state_dict` returned."""
    missing = required_missing(model, differences.missing_keys)
    _warn(LoadReport(missing, tuple(differences.unexpected_keys)), source)


def _warn(report: LoadReport, source: StrPath) -> None:
    if report.missing:
        _log.warning(
            "%s has no values for %s; they keep their present values.",
            source,
            abbreviate(report.missing),
        )
    if report.unexpected:
        _log.warning(
            "%s has weights that the model does not have; they are ignored: %s.",
            source,
            abbreviate(report.unexpected),
        )


def may_rename(model: nn.Module | FullModel) -> bool:
    """Return whether the weights files of a model may use other names than the module.

    Mixture-of-experts models of `transformers` 5 do.
    """
    classes = type(_module_of(model)).__mro__
    return any(cls.__name__ == "PreTrainedModel" for cls in classes)


def _module_of(model: nn.Module | FullModel) -> Any:
    """Return the module of a `FullModel`, or the model, without wrappers."""
    if isinstance(model, FullModel):
        return unwrap_model(model.sharded)
    return unwrap_model(model)


def _load_through_class(
    model: nn.Module | FullModel, folder: Path, require_weights: Callable[[LoadReport], None]
) -> LoadReport:
    """Load a second model by the class's `from_pretrained`, and copy its weights.

    `from_pretrained` knows the names in the files, but can only create new models.

    Args:
        model: the model.
        folder: the folder of the checkpoint.
        require_weights: raises if a report has missing weights. Called before anything is copied.
    """
    module = _module_of(model)
    pretrained_class: Any = class_of(module)
    # Building a model draws random numbers.
    with preserved_host_rng():
        second_model, loading_info = pretrained_class.from_pretrained(
            folder,
            config=module.config,
            dtype=module.dtype,
            output_loading_info=True,
            local_files_only=True,
        )

    missing_keys: set[str] = set(loading_info["missing_keys"])
    missing = required_missing(model, [name for name in model.state_dict() if name in missing_keys])
    report = LoadReport(missing, tuple(sorted(loading_info["unexpected_keys"])))
    require_weights(report)

    # Weights missing in the folder have random values in the second model. Do not copy them.
    weights: dict[str, Any] = dict(second_model.state_dict())
    for name in missing_keys:
        weights.pop(name, None)
    model.load_state_dict(weights, False)
    return report
