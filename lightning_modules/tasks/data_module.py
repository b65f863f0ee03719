"""LightningDataModule over datasets, with the data order and exact resumption of the Trainer."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Sampler

from ..common.class_paths import build_described, is_description
from ..common.device_copies import PINNED_MEMORY_DEVICES
from ..common.seeding import seed_worker
from ..data.collators import RemoveColumnsCollator, collate_samples, remove_unused
from ..data.epoch_loader import EpochLoader
from ..data.length_grouping import LengthGroupedSampler
from ..data.lengths import column_lengths, is_table, sample_lengths
from ..data.loaders import build_loader
from ..internals.lightning_import import (
    BatchSizeFinder,
    Callback,
    LightningDataModule,
    Trainer,
    callbacks_of,
)
from ..internals.lightning_internals import (
    is_made_by_cli,
    use_distributed_samplers,
    uses_distributed_samplers,
)
from .data_share import DataShare, data_share
from .resuming import ResumingCallback

_KEEP_ALL_COLUMNS = "name those to keep: columns=[...]"

# A child of Lightning's logger, so that it has the same handlers and level.
_logger = logging.getLogger("lightning.pytorch.lightrainer")

_PLAIN_ARGUMENTS = (
    "batch_size",
    "eval_batch_size",
    "shuffle",
    "group_by_length",
    "length_column",
    "input_column",
    "columns",
    "seed",
    "drop_last",
    "num_workers",
    "pin_memory",
    "persistent_workers",
    "prefetch_factor",
    "dispatch_batches",
    "split_batches",
)
"""Arguments that are saved as hyperparameters."""

_STAGES = ("train", "val", "test", "predict")

OneDataset = Callable[[], Any] | Any
"""A dataset, or a function without arguments that creates one."""

Datasets = dict[str, Callable[[], Any]] | Callable[[], Any] | Any
"""One dataset, several by name, or a function.

`LightningCLI` imports the functions that a YAML file names, and writes a dict as the first type.
"""


EvaluationLoaders = EpochLoader | dict[str, Any] | list[Any]
"""A loader, or several by name or in a list."""


class DataModule(LightningDataModule):
    """Create the loaders of a `lightning.Trainer` from datasets, like the Trainer API does.

    The arguments correspond to the training arguments `dataloader_*` and `*_batch_size`.

    The loaders are created by `build_loader`. Their order only depends on the seed and the epoch.
    Full batches are assigned to the processes in turn, so Lightning's own distributed sampler is
    disabled. Processes that hold shards of the same layers get the same batches. Every checkpoint
    contains the position in the data, so `fit(..., ckpt_path=...)` resumes with the next batch. All
    of this works with any LightningModule.

    The loaders of `predict` are plain torch loaders with Lightning's sampler, which Lightning needs
    to gather predictions. A stream has no sampler.

    Args:
        train_dataset: a map-style dataset (including those of the library `datasets`) or an
            iterable one, or a function without arguments that creates it, which is called once per
            process in `setup`. Subclasses may also set the attribute in `setup`.
        val_dataset: the same, or a dict of datasets that are evaluated separately under their
            names, or a list of `Dataset` objects, which Lightning numbers.
        test_dataset: like `val_dataset`.
        predict_dataset: like `train_dataset`.
        collate_fn: converts a list of samples to a batch. By default `default_data_collator` for
            samples that are mappings, and torch's `default_collate` for tuples such as `(x, y)`,
            tensors and numbers.
        batch_size: number of samples per batch and process. Lightning's `Tuner.scale_batch_size`
            may change it.
        eval_batch_size: the batch size of validation, test and prediction; by default `batch_size`.
        shuffle: whether to shuffle the training data in each epoch.
        sampler: a function that returns a sampler for the training data. The sampler must return
            the same order on all processes, because its batches are then sharded. Takes precedence
            over `shuffle` and `group_by_length`.
        group_by_length: whether to batch samples of similar length, like
            `train_sampling_strategy="group_by_length"` of the Trainer API.
        length_column: the column of a `datasets.Dataset` with the length of each sample.
        input_column: the column whose length is measured if `length_column` does not exist.
        columns: the columns to keep if samples are dicts. By default those that the model accepts
            if the module has the property `input_columns`, like `LossModule`; otherwise all.
        seed: the seed of the order; None for torch's current initial seed.
        drop_last: whether to drop the last training batch if it is smaller.
        num_workers: number of worker processes.
        pin_memory: whether to pin memory; by default if the trainer uses CUDA or an Intel GPU.
        persistent_workers: whether to keep workers between epochs.
        prefetch_factor: number of batches that each worker prefetches.
        dispatch_batches: see `build_loader`, for the training.
        split_batches: see `build_loader`, for the training.
    """

    resumes_exactly = True
    """Read by `ResumingCallback`."""

    def __init__(
        self,
        train_dataset: OneDataset = None,
        val_dataset: Datasets = None,
        test_dataset: Datasets = None,
        predict_dataset: OneDataset = None,
        *,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        batch_size: int = 8,
        eval_batch_size: int | None = None,
        shuffle: bool = True,
        sampler: Callable[[Any], Sampler[int]] | None = None,
        group_by_length: bool = False,
        length_column: str = "length",
        input_column: str = "input_ids",
        columns: Sequence[str] | None = None,
        seed: int | None = 42,
        drop_last: bool = False,
        num_workers: int = 0,
        pin_memory: bool | None = None,
        persistent_workers: bool = False,
        prefetch_factor: int | None = None,
        dispatch_batches: bool | None = None,
        split_batches: bool = False,
    ) -> None:
        super().__init__()
        self.train_dataset: Any = train_dataset
        self.val_dataset: Any = val_dataset
        self.test_dataset: Any = test_dataset
        self.predict_dataset: Any = predict_dataset
        if collate_fn is None:
            collate_fn = collate_samples
        self.collate_fn = collate_fn
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.shuffle = shuffle
        self.sampler = sampler
        self.group_by_length = group_by_length
        self.length_column = length_column
        self.input_column = input_column
        self.columns = columns
        if columns is not None:
            self.columns = list(columns)
        self.seed = seed
        self.drop_last = drop_last
        self.num_workers = num_workers
        self.pin_memory = pin_memory
        self.persistent_workers = persistent_workers
        self.prefetch_factor = prefetch_factor
        self.dispatch_batches = dispatch_batches
        self.split_batches = split_batches

        if is_made_by_cli():
            self.save_hyperparameters()
        else:
            self.save_hyperparameters({name: getattr(self, name) for name in _PLAIN_ARGUMENTS})

        self._uses_distributed_samplers: bool | None = None

        # Subclasses may set their datasets in `setup`, so stages can only be hidden afterwards.
        if type(self).setup is DataModule.setup:
            for stage in _STAGES:
                self._hide_stage_without_data(stage)

    @classmethod
    def from_datasets(
        cls,
        train_dataset: OneDataset = None,
        val_dataset: Datasets = None,
        test_dataset: Datasets = None,
        predict_dataset: OneDataset = None,
        batch_size: int = 1,
        num_workers: int = 0,
        **datamodule_kwargs: Any,
    ) -> Self:
        """Create a data module from datasets, like Lightning's method of the same name.

        Args:
            train_dataset: as in the class.
            val_dataset: as in the class.
            test_dataset: as in the class.
            predict_dataset: as in the class.
            batch_size: as in the class, but 1 by default, as in Lightning.
            num_workers: as in the class.
            datamodule_kwargs: other arguments of the class.
        """
        datasets = (train_dataset, val_dataset, test_dataset, predict_dataset)
        return cls(*datasets, batch_size=batch_size, num_workers=num_workers, **datamodule_kwargs)

    def setup(self, stage: str) -> None:
        """Create datasets that were passed as functions, and set up sampling and resumption."""
        super().setup(stage)
        for data_stage in _STAGES:
            argument = f"{data_stage}_dataset"
            setattr(self, argument, _make_dataset(getattr(self, argument), argument))
            self._hide_stage_without_data(data_stage)

        trainer = self.trainer
        if trainer is None:
            return

        # All loaders except those of `predict` shard the data themselves.
        if self._uses_distributed_samplers is None:
            self._uses_distributed_samplers = uses_distributed_samplers(trainer)
        use_distributed_samplers(trainer, self._uses_distributed_samplers and stage == "predict")

        callbacks = self._callbacks()
        if not any(isinstance(callback, ResumingCallback) for callback in callbacks):
            callbacks.append(ResumingCallback())

    def teardown(self, stage: str) -> None:
        """Enable Lightning's distributed sampler again, if it was enabled before."""
        if self.trainer is not None and self._uses_distributed_samplers is not None:
            use_distributed_samplers(self.trainer, self._uses_distributed_samplers)
        super().teardown(stage)

    def train_dataloader(self) -> EpochLoader:
        """Return batches to train on.

        Raises:
            ValueError: there is no `train_dataset`.
        """
        dataset = self.train_dataset
        if dataset is None:
            raise ValueError(
                f"{type(self).__name__} has no train_dataset: pass it, or set it in setup."
            )
        _require_dataset(dataset, "train_dataset")

        # With `overfit_batches` the same first batches are repeated, so their order is fixed.
        repeats_batches = self.trainer is not None and _overfit_batches(self.trainer) > 0
        is_stream = isinstance(dataset, IterableDataset)
        if is_stream and repeats_batches:
            dataset = self._first_samples(dataset)
            is_stream = False

        # As in the Trainer API, a stream keeps its last incomplete batch, and its workers are not
        # seeded.
        sampler = None
        if not is_stream and not repeats_batches:
            samples_per_step = self.batch_size * self._accumulation()
            sampler = self._training_sampler(dataset, samples_per_step)
        worker_init_fn = None
        if not is_stream:
            worker_init_fn = functools.partial(
                seed_worker, num_workers=self.num_workers, rank=self._share().index
            )

        loader = self._build_loader(
            dataset,
            self.batch_size,
            sampler,
            drop_last=self.drop_last and not is_stream,
            dispatch_batches=self.dispatch_batches,
            split_batches=self.split_batches,
            worker_init_fn=worker_init_fn,
        )
        loader.tracked = True
        return loader

    def val_dataloader(self) -> EvaluationLoaders:
        """Return batches to validate on: a loader, or a dict or a list of them."""
        return self._evaluation_loaders(self.val_dataset, "val_dataset")

    def test_dataloader(self) -> EvaluationLoaders:
        """Return batches to test on: a loader, or a dict or a list of them."""
        return self._evaluation_loaders(self.test_dataset, "test_dataset")

    def predict_dataloader(self) -> DataLoader | list[DataLoader]:
        """Return batches to predict, in the order of the samples."""
        if self.predict_dataset is None:
            return []
        _require_dataset(self.predict_dataset, "predict_dataset")
        dataset, collate_fn = self._without_unused_columns(self.predict_dataset)
        options: dict[str, Any] = {
            "batch_size": self._eval_batch_size,
            "collate_fn": collate_fn,
            **self._worker_options(),
        }
        if not isinstance(dataset, IterableDataset):
            return DataLoader(dataset, **options)
        loader = EpochLoader(
            dataset, total=None, samples_per_round=self._eval_batch_size, **options
        )
        loader.ends_with_stream = True
        return loader

    @property
    def _eval_batch_size(self) -> int:
        if self.eval_batch_size is None:
            return self.batch_size
        return self.eval_batch_size

    def _hide_stage_without_data(self, stage: str) -> None:
        """Hide the method of a stage without data from Lightning, so that it skips the stage.

        Methods that a subclass overrides stay visible, as do all methods while Lightning searches
        for a batch size, because the search always calls the method for validation.
        """
        name = f"{stage}_dataloader"
        is_overridden = getattr(type(self), name) is not getattr(DataModule, name)
        is_searching = any(isinstance(callback, BatchSizeFinder) for callback in self._callbacks())
        is_needed = stage == "train" or getattr(self, f"{stage}_dataset") is not None
        if is_needed or is_overridden or is_searching:
            vars(self).pop(name, None)
        else:
            setattr(self, name, getattr(super(), name))

    def _callbacks(self) -> list[Callback]:
        if self.trainer is None:
            return []
        return callbacks_of(self.trainer)

    def _first_samples(self, stream: IterableDataset) -> list[Any]:
        """Return the samples that `overfit_batches` repeats.

        They are kept in a list, because a stream may start with different samples each time.
        """
        batches = int(_overfit_batches(self.trainer))
        samples = batches * self.batch_size * self._share().count
        return list(itertools.islice(iter(stream), samples))

    def _evaluation_loaders(self, dataset: Any, argument: str) -> EvaluationLoaders:
        if dataset is None:
            return []

        # Several datasets: each has its own loader.
        if isinstance(dataset, Mapping):
            loaders_by_name: dict[str, EvaluationLoaders] = {}
            for name, part in dataset.items():
                loaders_by_name[name] = self._evaluation_loaders(part, f"{argument}[{name!r}]")
            return loaders_by_name
        if _is_list_of_datasets(dataset):
            loaders: list[EvaluationLoaders] = []
            for index, part in enumerate(dataset):
                loaders.append(self._evaluation_loaders(part, f"{argument}[{index}]"))
            return loaders

        _require_dataset(dataset, argument)
        sampler = None
        if self.group_by_length and not isinstance(dataset, IterableDataset):
            sampler = self._length_sampler(dataset, self._eval_batch_size)
        loader = self._build_loader(dataset, self._eval_batch_size, sampler)
        loader.ends_with_stream = isinstance(dataset, IterableDataset)
        return loader

    def _build_loader(
        self, dataset: object, batch_size: int, sampler: Sampler[int] | None, **options: Any
    ) -> EpochLoader:
        share = self._share()
        dataset, collate_fn = self._without_unused_columns(dataset)
        return build_loader(
            dataset,
            batch_size=batch_size,
            collate_fn=collate_fn,
            sampler=sampler,
            seed=self.seed,
            rank=share.rank,
            world_size=share.world_size,
            copies=share.copies,
            **self._worker_options(),
            **options,
        )

    def _training_sampler(self, dataset: Any, samples_per_step: int) -> Sampler[int] | None:
        if self.sampler is not None:
            if not callable(self.sampler):
                kind = type(self.sampler).__name__
                raise TypeError(
                    f"`sampler` is a {kind}, but has to be a function of the training data. Pass "
                    f"sampler=lambda data: {kind}(...)."
                )
            return self.sampler(dataset)

        if self.group_by_length:
            return self._length_sampler(dataset, samples_per_step)
        if self.shuffle and len(dataset):
            return RandomSampler(dataset)
        return None

    def _length_sampler(self, dataset: object, batch_size: int) -> LengthGroupedSampler:
        lengths = column_lengths(dataset, self.length_column)
        if lengths is None:
            lengths = sample_lengths(dataset, self.input_column, length_argument="length_column")
        return LengthGroupedSampler(batch_size, lengths=lengths)

    def _without_unused_columns(self, dataset: Any) -> tuple[Any, Callable[[list[Any]], Any]]:
        """Return dataset and collator without the columns that the model or `columns` excludes.

        Columns that the model leaves out are logged, but not by workers, which would repeat the
        message in every epoch.
        """
        module = None
        if self.trainer is not None:
            module = self.trainer.lightning_module
        columns = self.columns
        if columns is None:
            columns = getattr(module, "input_columns", None)
        if columns is None:
            return dataset, self.collate_fn

        logger = None
        if self.columns is None and self._share().rank == 0:
            logger = _logger
        model_name = type(getattr(module, "model", None)).__name__

        # For a table, the columns need not be read at all.
        removed: set[str] = set()
        if is_table(dataset):
            removed = set(dataset.column_names).difference(columns)
            dataset = remove_unused(
                dataset, columns, model_name, logger=logger, advice=_KEEP_ALL_COLUMNS
            )

        # Each worker would log the dropped columns.
        if self.num_workers > 0:
            logger = None
        collate_fn = RemoveColumnsCollator(
            self.collate_fn,
            columns,
            logger,
            model_name,
            advice=_KEEP_ALL_COLUMNS,
            removed=removed,
        )
        return dataset, collate_fn

    def _worker_options(self) -> dict[str, Any]:
        pin_memory = self.pin_memory
        if pin_memory is None:
            pin_memory = (
                self.trainer is not None
                and self.trainer.strategy.root_device.type in PINNED_MEMORY_DEVICES
            )

        # torch rejects these two options without workers.
        persistent_workers = self.persistent_workers and self.num_workers > 0
        prefetch_factor = None
        if self.num_workers > 0:
            prefetch_factor = self.prefetch_factor
        return {
            "num_workers": self.num_workers,
            "pin_memory": pin_memory,
            "persistent_workers": persistent_workers,
            "prefetch_factor": prefetch_factor,
        }

    def _share(self) -> DataShare:
        return data_share(self.trainer)

    def _accumulation(self) -> int:
        if self.trainer is None:
            return 1
        return self.trainer.accumulate_grad_batches


def _overfit_batches(trainer: Trainer | None) -> int | float:
    """Return `Trainer(overfit_batches=)`, an attribute that Lightning's class does not declare."""
    return getattr(trainer, "overfit_batches", 0)


def _is_list_of_datasets(value: object) -> bool:
    """Return whether a list or tuple holds datasets, and not samples."""
    if not isinstance(value, (list, tuple)) or not value:
        return False
    return all(isinstance(part, (Dataset, DataLoader)) or is_table(part) for part in value)


def _require_dataset(dataset: object, argument: str) -> None:
    """Raise an error that names the argument if its value is not a dataset.

    Raises:
        TypeError: it is a loader, several datasets, or has no samples that can be read.
    """
    kind = type(dataset).__name__
    if isinstance(dataset, DataLoader):
        raise TypeError(
            f"`{argument}` is a {kind}, but DataModule makes the loaders. Pass the data, "
            f"{argument}=loader.dataset, or pass the loaders to the Trainer: trainer.fit(module, "
            "train_loader, val_loader)."
        )
    if isinstance(dataset, Mapping) or _is_list_of_datasets(dataset):
        raise TypeError(
            f"`{argument}` is a {kind} of datasets, but one dataset is expected. Join them with "
            "torch.utils.data.ConcatDataset, or return several loaders from that method of a "
            "subclass."
        )
    if isinstance(dataset, IterableDataset):
        return

    is_class = isinstance(dataset, type)
    has_samples = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if has_samples and not is_class and not isinstance(dataset, (str, bytes)):
        return
    description = f"of the type {kind}"
    if is_class:
        description = f"the class {dataset.__name__}"
    raise TypeError(
        f"`{argument}` is {description}, which is not a dataset. Pass a dataset with `__len__` and "
        "`__getitem__`, such as a list of samples, an IterableDataset, or a function without "
        "arguments that makes a dataset."
    )


def _make_dataset(dataset: object, argument: str) -> Any:
    """Return a dataset; create it if a function or a description was passed.

    A dict of datasets is handled by name.
    """
    if is_description(dataset):
        return build_described(dataset, object, argument)
    if isinstance(dataset, Mapping):
        return {name: _make_dataset(part, argument) for name, part in dataset.items()}

    # Datasets of some libraries are callable too.
    has_samples = hasattr(dataset, "__getitem__") or hasattr(dataset, "__iter__")
    if callable(dataset) and not has_samples:
        return dataset()
    return dataset
