"""A LightningDataModule over datasets, with the order, the shares and the exact resumption of
the Trainer API.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Sampler

from ..common.class_paths import build_described, is_description
from ..common.device_copies import WITH_PAGE_LOCKS
from ..common.seeding import capture_host_rng, seed_worker
from ..common.torch_files import pack, unpack
from ..data.collators import RemoveColumnsCollator, collate_samples, remove_unused
from ..data.epoch_loader import EpochLoader
from ..data.length_grouping import LengthGroupedSampler
from ..data.lengths import column_lengths, is_table, sample_lengths
from ..data.loaders import build_loader
from ..internals.lightning_import import BatchSizeFinder, LightningDataModule, callbacks_of
from ..internals.lightning_internals import (
    is_made_by_cli,
    use_distributed_samplers,
    uses_distributed_samplers,
)
from .data_share import DataShare, data_share
from .resuming import ResumingCallback

_KEEP_ALL_COLUMNS = "name those to keep: columns=[...]"

# A child of Lightning's logger, for the same handlers and level.
_logger = logging.getLogger("lightning.pytorch.lightrainer")

_PLAIN = """
    batch_size eval_batch_size shuffle group_by_length length_column input_column columns seed
    drop_last num_workers pin_memory persistent_workers prefetch_factor dispatch_batches
    split_batches
"""
"""Arguments that are plain values, kept as hyperparameters."""

_STAGES = ("train", "val", "test", "predict")

OneDataset = Callable[[], Any] | Any
Datasets = dict[str, Callable[[], Any]] | Callable[[], Any] | Any
"""Of any kind. `LightningCLI` imports the functions that a YAML file names; it writes a dict as
the first type says.
"""


class DataModule(LightningDataModule):
    """As the datasets and the `dataloader_*` and `*_batch_size` arguments of a Trainer, for
    `lightning.Trainer`.

    The loaders are those of `build_loader`: an order that depends on seed and epoch alone, whole
    batches shared out to the processes in turn (Lightning's own distributed sampler is switched off
    for it; processes that hold parts of the same layers get the same batches), and the position in
    the data in every checkpoint, so that `fit(..., ckpt_path=...)` goes on with the very next
    batch. That works with any LightningModule. Loaders of `predict` are torch's own, with
    Lightning's sampler, which it needs to join predictions.

    Args:
        train_dataset: map-style (also of the library `datasets`) or iterable; or a function without
            arguments that makes it, called once in every process, in `setup`. Subclasses may set
            the attributes in `setup` too.
        val_dataset: the same, or a dict of them: each is then evaluated by itself, under its name.
            Or a list of `Dataset` objects, which Lightning numbers.
        test_dataset: as `val_dataset`.
        predict_dataset: as `train_dataset`.
        collate_fn: list of samples -> batch. By default `default_data_collator` for samples with
            columns, and torch's own for tuples such as `(x, y)`, tensors and numbers.
        batch_size: samples of each process in a batch. Lightning's `Tuner.scale_batch_size` reads
            and sets it.
        eval_batch_size: the same for validation, test and predictions; by default `batch_size`.
        shuffle: train on the samples in another order in each epoch.
        sampler: called with the training data, returns the sampler that orders it; the same one in
            each process, whose batches are then sharded. Goes before `shuffle` and
            `group_by_length`.
        group_by_length: train and evaluate on batches of similar length, as the Trainer API does
            with `train_sampling_strategy="group_by_length"`.
        length_column: where a `datasets.Dataset` has the length of each sample, if it does.
        input_column: is measured otherwise.
        columns: those that are kept of samples that are dicts. By default those that the model
            takes, where the module says so, as `LossModule` does (`input_columns`), else all.
        seed: of the order; None for the seed that torch was given last.
        drop_last: leave out a last, smaller batch of the training.
        num_workers: processes that read ahead.
        pin_memory: by default where the trainer uses CUDA or an Intel GPU.
        persistent_workers: keep them from one epoch to the next.
        prefetch_factor: batches that each of them reads ahead.
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
        self.collate_fn = collate_samples if collate_fn is None else collate_fn
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.shuffle = shuffle
        self.sampler = sampler
        self.group_by_length = group_by_length
        self.length_column = length_column
        self.input_column = input_column
        self.columns = None if columns is None else list(columns)
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
            self.save_hyperparameters({name: getattr(self, name) for name in _PLAIN.split()})
        self._train_loader: EpochLoader | None = None
        self._pending: dict[str, Any] | None = None
        self._distributed_samplers: bool | None = None
        if type(self).setup is DataModule.setup:  # subclasses may set their datasets in `setup`
            for stage in _STAGES:
                self._has(stage)

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
        """As Lightning's: make a data module of these datasets.

        Args:
            train_dataset: see the class, as the others.
            val_dataset: see there.
            test_dataset: see there.
            predict_dataset: see there.
            batch_size: see there; 1 by default, as Lightning has it.
            num_workers: see there.
            datamodule_kwargs: other arguments of the class.
        """
        datasets = (train_dataset, val_dataset, test_dataset, predict_dataset)
        return cls(*datasets, batch_size=batch_size, num_workers=num_workers, **datamodule_kwargs)

    def setup(self, stage: str) -> None:
        """Make the datasets that are given as functions, and set up sampling and resumption."""
        super().setup(stage)
        for each in _STAGES:
            name = f"{each}_dataset"
            setattr(self, name, _made(getattr(self, name), name))
            self._has(each)
        trainer = self.trainer
        if trainer is None:
            return
        if self._distributed_samplers is None:
            self._distributed_samplers = uses_distributed_samplers(trainer)
        use_distributed_samplers(trainer, self._distributed_samplers and stage == "predict")
        callbacks = self._callbacks()
        if not any(isinstance(callback, ResumingCallback) for callback in callbacks):
            callbacks.append(ResumingCallback())

    def teardown(self, stage: str) -> None:
        """Give Lightning its sampler back."""
        if self.trainer is not None and self._distributed_samplers is not None:
            use_distributed_samplers(self.trainer, self._distributed_samplers)
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
        again_and_again = (
            self.trainer is not None and getattr(self.trainer, "overfit_batches", 0) > 0
        )
        stream = isinstance(dataset, IterableDataset)
        if stream and again_and_again:
            dataset, stream = self._first_samples(dataset), False
        sampler = None
        if not stream and not again_and_again:
            sampler = self._order(dataset, self.batch_size * self._accumulation(), training=True)
        loader = self._loader(
            dataset,
            self.batch_size,
            sampler,
            drop_last=self.drop_last and not stream,
            dispatch_batches=self.dispatch_batches,
            split_batches=self.split_batches,
            worker_init_fn=None if stream else self._seeding_of_workers(),
        )
        loader.tracked = True
        self._resume(loader)
        self._train_loader = loader
        return loader

    def val_dataloader(self) -> Any:
        """Return batches to validate on: a loader, or a dict or a list of them."""
        return self._evaluation_loaders(self.val_dataset, "val_dataset")

    def test_dataloader(self) -> Any:
        """Return batches to test on: a loader, or a dict or a list of them."""
        return self._evaluation_loaders(self.test_dataset, "test_dataset")

    def predict_dataloader(self) -> Any:
        """Return batches to predict, in the order of the samples."""
        if self.predict_dataset is None:
            return []
        _require_dataset(self.predict_dataset, "predict_dataset")
        dataset, collate = self._columns(self.predict_dataset)
        return DataLoader(
            dataset, batch_size=self._eval_batch_size, collate_fn=collate, **self._workers()
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the training data, in tensors and plain values, for
        `load_state_dict`.

        Empty while a trainer runs: its checkpoints have it from every process already.
        """
        if self._is_running() or self._train_loader is None:
            return {}
        return {
            "position": pack({"loader": self._train_loader.state_dict(), "rng": capture_host_rng()})
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the next loader of training data resume from a `state_dict`; a running trainer
        does so by itself.
        """
        if state_dict and not self._is_running():
            self._pending = unpack(state_dict["position"])

    @property
    def _eval_batch_size(self) -> int:
        return self.batch_size if self.eval_batch_size is None else self.eval_batch_size

    def _has(self, stage: str) -> None:
        """Hide the method of a stage without data from Lightning, so that it skips the stage.

        But not a subclass's own method, nor from the search for a batch size, which calls the
        method for validation in any case.
        """
        name = f"{stage}_dataloader"
        is_overridden = getattr(type(self), name) is not getattr(DataModule, name)
        is_searching = any(isinstance(one, BatchSizeFinder) for one in self._callbacks())
        is_needed = stage == "train" or getattr(self, f"{stage}_dataset") is not None
        if is_needed or is_overridden or is_searching:
            vars(self).pop(name, None)
        else:
            setattr(self, name, getattr(super(), name))

    def _callbacks(self) -> list[Any]:
        return [] if self.trainer is None else callbacks_of(self.trainer)

    def _first_samples(self, stream: IterableDataset) -> list[Any]:
        """Return the samples that `overfit_batches` repeats, as a stream may begin with others
        each time.
        """
        wanted: Any = getattr(self.trainer, "overfit_batches", 0)
        return list(
            itertools.islice(iter(stream), int(wanted) * self.batch_size * self._share().shares)
        )

    def _is_running(self) -> bool:
        return self.trainer is not None and self.trainer.state.status == "running"

    def _evaluation_loaders(self, dataset: Any, argument: str) -> Any:
        if dataset is None:
            return []
        if isinstance(dataset, Mapping):
            return {
                name: self._evaluation_loaders(one, f"{argument}[{name!r}]")
                for name, one in dataset.items()
            }
        if _is_list_of_datasets(dataset):
            return [
                self._evaluation_loaders(one, f"{argument}[{index}]")
                for index, one in enumerate(dataset)
            ]
        _require_dataset(dataset, argument)
        sampler = None
        if self.group_by_length and not isinstance(dataset, IterableDataset):
            sampler = self._order(dataset, self._eval_batch_size, training=False)
        return self._loader(dataset, self._eval_batch_size, sampler)

    def _loader(self, dataset: Any, batch_size: int, sampler: Any, **options: Any) -> EpochLoader:
        share = self._share()
        dataset, collate = self._columns(dataset)
        return build_loader(
            dataset,
            batch_size=batch_size,
            collate_fn=collate,
            sampler=sampler,
            seed=self.seed,
            rank=share.rank,
            world_size=share.world_size,
            copies=share.copies,
            **self._workers(),
            **options,
        )

    def _order(self, dataset: Any, batch_size: int, *, training: bool) -> Any:
        if training and self.sampler is not None:
            if not callable(self.sampler):
                kind = type(self.sampler).__name__
                raise TypeError(
                    f"`sampler` is a {kind}. Pass a function that makes it of the training data: "
                    f"sampler=lambda data: {kind}(...)."
                )
            return self.sampler(dataset)
        if self.group_by_length:
            lengths = _measured_lengths(dataset, self.length_column, self.input_column)
            return LengthGroupedSampler(batch_size, lengths=lengths)
        return RandomSampler(dataset) if training and self.shuffle and len(dataset) else None

    def _columns(self, dataset: Any) -> tuple[Any, Callable[[list[Any]], Any]]:
        """Return the dataset and the collator without the columns that the model, or `columns`,
        leaves out.

        Columns that the model leaves out are logged, but not by workers, which would repeat it in
        every epoch.
        """
        columns, module = (
            self.columns,
            (None if self.trainer is None else self.trainer.lightning_module),
        )
        if columns is None:
            columns = getattr(module, "input_columns", None)
        if columns is None:
            return dataset, self.collate_fn
        name, advice = type(getattr(module, "model", None)).__name__, _KEEP_ALL_COLUMNS
        logger, removed = _logger if self.columns is None and self._share().rank == 0 else None, ()
        if is_table(dataset):
            removed = set(dataset.column_names).difference(columns)
            dataset = remove_unused(dataset, columns, name, logger=logger, advice=advice)
        logger = None if self.num_workers > 0 else logger
        return dataset, RemoveColumnsCollator(
            self.collate_fn, columns, logger, name, advice=advice, removed=removed
        )

    def _workers(self) -> dict[str, Any]:
        locks_pages = (
            self.trainer is not None and self.trainer.strategy.root_device.type in WITH_PAGE_LOCKS
        )
        return {
            "num_workers": self.num_workers,
            "pin_memory": locks_pages if self.pin_memory is None else self.pin_memory,
            "persistent_workers": self.persistent_workers and self.num_workers > 0,
            "prefetch_factor": self.prefetch_factor if self.num_workers > 0 else None,
        }

    def _seeding_of_workers(self) -> Callable[[int], None]:
        return functools.partial(
            seed_worker, num_workers=self.num_workers, rank=self._share().share
        )

    def _share(self) -> DataShare:
        return data_share(self.trainer)

    def _accumulation(self) -> int:
        return 1 if self.trainer is None else self.trainer.accumulate_grad_batches

    def _resume(self, loader: EpochLoader) -> None:
        """Resume from a state that the user has loaded."""
        pending = self._pending
        self._pending = None
        if pending is None:
            return
        loader.load_state_dict({**pending["loader"], "rng": pending["rng"]})


def _measured_lengths(dataset: Any, length_column: str, input_column: str) -> Any:
    """Return each sample's length: from a column of lengths if there is one, else of the column
    that is measured.
    """
    given = column_lengths(dataset, length_column)
    return (
        sample_lengths(dataset, input_column, length_argument="length_column")
        if given is None
        else given
    )


def _is_list_of_datasets(value: Any) -> bool:
    """Return whether a list or tuple holds datasets, and not samples."""
    return (
        isinstance(value, (list, tuple))
        and bool(value)
        and all(_is_dataset_object(one) for one in value)
    )


def _is_dataset_object(value: Any) -> bool:
    return isinstance(value, (Dataset, DataLoader)) or is_table(value)


def _require_dataset(dataset: Any, argument: str) -> None:
    """Refuse what is not a dataset; the errors of torch name no argument.

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
    is_text = isinstance(dataset, (str, bytes))
    if (
        is_text
        or isinstance(dataset, type)
        or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"))
    ):
        name = dataset.__name__ if isinstance(dataset, type) else kind
        raise TypeError(
            f"`{argument}` is {'the class' if isinstance(dataset, type) else 'of the type'} "
            f"{name}, which is not a dataset. Pass one with `__len__` and `__getitem__`, such as "
            "a list of samples, an IterableDataset, or a function without arguments that makes "
            "one."
        )


def _made(dataset: Any, name: str) -> Any:
    """Return the dataset itself, where a function or a description of it is given, or a dict of
    them.
    """
    if is_description(dataset):
        return build_described(dataset, object, name)
    if isinstance(dataset, Mapping):
        return {key: _made(value, name) for key, value in dataset.items()}
    is_function = (
        callable(dataset)
        and not hasattr(dataset, "__getitem__")
        and not hasattr(dataset, "__iter__")
    )
    return dataset() if is_function else dataset
