"""Data loaders, samplers and worker options of a Trainer."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Sampler, SequentialSampler

from ...lightning_modules.common.followed import followed
from ...lightning_modules.common.libraries import is_instance
from ...lightning_modules.common.nested import to_device
from ...lightning_modules.common.seeding import seed_worker
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.data.collators import DataCollatorWithPadding, default_data_collator
from ...lightning_modules.data.epoch_loader import EpochLoader
from ...lightning_modules.data.length_grouping import LengthGroupedSampler
from ...lightning_modules.data.lengths import (
    LengthCache,
    column_lengths,
    has_length,
    is_table,
    sample_lengths,
)
from ...lightning_modules.data.loaders import build_loader
from ...lightning_modules.data.rebalancing import BatchRebalanceSampler
from ...lightning_modules.data.token_budget import TokenBudgetSampler
from ...lightning_modules.data.worker_state import attached_worker, ignore_signals
from ...lightning_modules.models.inspection import accepted_arguments
from ..arguments.parallelism import copies_of_batches, data_rank, ways_of_sharing
from ..evaluation.results import TrainingLength
from .checks import require_dataset

if TYPE_CHECKING:
    from .. import Trainer


class DataLoading:
    """Build loaders and samplers of a Trainer; lengths of samples are cached.

    Args:
        trainer: the Trainer; its methods choose columns and samplers.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self._lengths = LengthCache()
        self._reduced: tuple[Any, Any] = (None, None)
        """The dataset with unused columns removed and the original one, while a sampler is
        built.
        """

    def loader(
        self,
        dataset: Any,
        description: str,
        batch_size: int,
        sampler_fn: Any,
        is_training: bool,
        key: str | None,
    ) -> DataLoader:
        """Build a loader; the parameters are those of `Trainer._get_dataloader`."""
        trainer, args = self.trainer, self.trainer.args
        collator, whole = (
            (not is_training and trainer.eval_data_collator) or trainer.data_collator,
            dataset,
        )
        if is_table(dataset):
            dataset = trainer._remove_unused_columns(dataset, description=description)
        else:
            collator = trainer._get_collator_with_removed_columns(collator, description=description)
        stream = isinstance(dataset, IterableDataset)
        sampler = (
            self._sampler(dataset, whole, sampler_fn)
            if sampler_fn is not None and not stream
            else None
        )
        loader: Any = build_loader(
            dataset,
            batch_size=batch_size,
            collate_fn=collator,
            sampler=sampler,
            drop_last=args.dataloader_drop_last and not stream,
            **ways_of_sharing(args, args.accelerator_config, trainer.accelerator.even_batches),
            **self._worker_options(is_training and not stream),
        )
        if args.device.type != "cpu":
            config: Any = args.accelerator_config
            loader.watcher = DevicePlacement(args.device, config.non_blocking)
        if key is not None and args.dataloader_persistent_workers:
            trainer._eval_dataloaders[key] = loader
            loader.tracked = True
            loader.restore_workers(trainer._data_position.evaluated_before.get(key))
        return loader

    def train_sampler(self, dataset: Any, order: str) -> Sampler[Any] | None:
        """Return the sampler of a training for an order of `train_sampling_strategy`."""
        if dataset is None or not has_length(dataset):
            return None
        args = self.trainer.args
        if order == "group_by_length":
            return self._by_length(
                dataset,
                self.trainer._elastic.length_group
                or args.train_batch_size * args.gradient_accumulation_steps,
            )
        if order == "batch_rebalance":
            return self._rebalanced(dataset)
        if order == "token_budget":
            return self._by_tokens(dataset)
        if order == "sequential" or len(dataset) == 0:  # RandomSampler refuses an empty dataset
            return SequentialSampler(dataset)
        return RandomSampler(dataset)

    def eval_sampler(self, dataset: Any) -> Sampler[int] | None:
        """Return the sampler of an evaluation; None if each process takes its share in order."""
        args = self.trainer.args
        if dataset is None or not has_length(dataset):
            return None
        if args.train_sampling_strategy == "group_by_length":
            own = followed().seeds_evaluation_in_groups
            seed = args.seed if args.data_seed is None else args.data_seed
            generator = torch.Generator().manual_seed(seed) if own else None
            return self._by_length(dataset, args.eval_batch_size, generator)
        return SequentialSampler(dataset) if args.world_size <= 1 else None

    def _sampler(
        self, dataset: Any, whole: Any, sampler_fn: Callable[..., Sampler[int] | None]
    ) -> Any:
        """Call `sampler_fn`; lengths are read from the `whole` dataset, whose columns may have
        been removed.
        """
        self._reduced = (dataset, whole)
        try:
            # Overrides of older scripts take the dataset from the Trainer.
            return sampler_fn(dataset) if inspect.signature(sampler_fn).parameters else sampler_fn()
        finally:
            self._reduced = (None, None)

    def _by_length(
        self, dataset: Any, batch_size: int, generator: Any = None
    ) -> LengthGroupedSampler:
        return LengthGroupedSampler(
            batch_size, lengths=self._lengths_of(dataset), generator=generator
        )

    def _rebalanced(self, dataset: Any) -> BatchRebalanceSampler:
        args = self.trainer.args
        self._require_own_batches()
        processes, accumulation = args.world_size, args.gradient_accumulation_steps
        return BatchRebalanceSampler(
            lengths=self._lengths_of(dataset),
            effective_batch_size=self.trainer._train_batch_size * accumulation * processes,
            dp_size=processes,
            grad_accum=accumulation,
            rank=args.process_index,
            drop_last=args.dataloader_drop_last,
        )

    def _by_tokens(self, dataset: Any) -> TokenBudgetSampler:
        args = self.trainer.args
        self._require_own_batches()
        assert args.max_tokens_per_batch is not None, "a rule of the arguments"
        usual = type(args).__dataclass_fields__["per_device_train_batch_size"].default
        return TokenBudgetSampler(
            self._lengths_of(dataset),
            args.max_tokens_per_batch,
            max_samples=None if args.train_batch_size == usual else args.train_batch_size,
            seed=args.seed if args.data_seed is None else args.data_seed,
            rank=args.process_index,
            world_size=args.world_size,
            drop_last=args.dataloader_drop_last,
        )

    def _require_own_batches(self) -> None:
        args = self.trainer.args
        config: Any = args.accelerator_config
        if copies_of_batches(args) > 1 or (args.world_size > 1 and config.dispatch_batches):
            said = (
                f"train_sampling_strategy={args.train_sampling_strategy!r} needs processes that "
                "read batches of "
            )
            instead = "Pass 'group_by_length'."
            raise NotImplementedError(
                f"{said}their own, and does not go with dispatch_batches, or this "
                f"parallelism_config. {instead}"
            )

    def _lengths_of(self, dataset: Any) -> Any:
        args, (reduced, whole) = self.trainer.args, self._reduced
        known_by = whole if reduced is dataset else dataset
        name = (getattr(self.trainer.processing_class, "model_input_names", None) or ["input_ids"])[
            0
        ]

        def measure() -> Any:
            given = column_lengths(known_by, args.length_column_name)
            return sample_lengths(dataset, name) if given is None else given

        return self._lengths.get(known_by, (args.length_column_name, name), measure)

    def _worker_options(self, seeded: bool) -> dict[str, Any]:
        args, signals = self.trainer.args, self.trainer._signals
        workers = args.dataloader_num_workers
        options: dict[str, Any] = {
            "num_workers": workers,
            "pin_memory": args.dataloader_pin_memory and args.device.type != "cpu",
            "persistent_workers": args.dataloader_persistent_workers,
            "prefetch_factor": args.dataloader_prefetch_factor,
            "multiprocessing_context": args.dataloader_multiprocessing_context,
            "in_order": args.dataloader_in_order,
        }
        start: Any = (
            functools.partial(seed_worker, num_workers=workers, rank=data_rank(args))
            if seeded
            else None
        )
        if workers > 0 and signals.handled:  # signals reach all processes of a group
            start = functools.partial(
                ignore_signals, signals=signals.handled, listens=signals.shared_flag, then=start
            )
        if workers > 0 and args.world_size > 1:  # workers inherit the connections to other ranks
            start = functools.partial(attached_worker, then=start)
        return options if start is None else {**options, "worker_init_fn": start}


class DevicePlacement:
    """Move the batches of a Trainer's loader to the device, for overrides and scripts that use them
    as they come.

    Args:
        device: of the process.
        non_blocking: see `to_device`.
    """

    def __init__(self, device: torch.device, non_blocking: bool) -> None:
        self.device = device
        self.non_blocking = non_blocking

    def on_batch(self, loader: EpochLoader, batch: Any) -> Any:
        """See `BatchWatcher`."""
        return to_device(batch, self.device, self.non_blocking)

    def on_end(self, loader: EpochLoader) -> None:
        """See `BatchWatcher`."""


_PADDING_OPTIONS = dict.fromkeys(("padding", "max_length", "pad_to_multiple_of", "return_tensors"))


def default_collator(processing_class: Any) -> Callable[[list[Any]], Any]:
    """Return a collator that pads with a tokenizer or feature extractor, otherwise the default one.

    A method `pad` with other parameters than those of transformers, as some tokenizers of scripts
    have, is not called.
    """
    # As in the reference, multimodal processors of `transformers` do not pad.
    combined = is_instance(processing_class, "transformers.processing_utils", "ProcessorMixin")
    pad = getattr(processing_class, "pad", None)
    pads = (
        callable(pad)
        and not combined
        and accepted_arguments(pad, **_PADDING_OPTIONS) == _PADDING_OPTIONS
    )
    return DataCollatorWithPadding(processing_class) if pads else default_data_collator


def chosen_dataset(eval_dataset: Any, known: Any) -> Any:
    """Return the dataset to evaluate: the one that was passed, the one of that name, or the
    Trainer's.
    """
    if isinstance(eval_dataset, str):
        if not isinstance(known, dict) or eval_dataset not in known:
            names = ", ".join(known) if isinstance(known, dict) else "no names"
            raise ValueError(
                f"There is no eval_dataset called {eval_dataset!r}; the Trainer has {names}."
            )
        return known[eval_dataset]
    found = known if eval_dataset is None else eval_dataset
    if found is None:
        raise ValueError(
            "Evaluation needs data: pass eval_dataset=... to the Trainer, or to evaluate()."
        )
    require_dataset(found, "eval_dataset")
    return found


def training_length(
    args: Any, dataloader: Any, each_step: int, num_examples: Callable[[Any], int]
) -> TrainingLength:
    """Return the length of a training in epochs, steps and samples.

    Args:
        args: the training arguments.
        dataloader: the training data.
        each_step: samples of an optimizer step, over all processes.
        num_examples: a loader -> its samples.

    Raises:
        ValueError: neither the loader nor `max_steps` gives a length.
    """
    sized, by_steps, accumulation = (
        has_length(dataloader),
        args.max_steps > 0,
        args.gradient_accumulation_steps,
    )
    if not sized and not by_steps:
        raise ValueError(f"The training data has no length. Set max_steps (now {args.max_steps}).")
    batches = len(dataloader) if sized else args.max_steps * accumulation
    steps_per_epoch = max(math.ceil(batches / accumulation), 1)
    max_steps = args.max_steps if by_steps else math.ceil(args.num_train_epochs * steps_per_epoch)
    examples = num_examples(dataloader) if sized else max_steps * each_step
    if sized and args.max_tokens_per_batch:
        each_step = examples / steps_per_epoch  # a mean
    epochs = max_steps / steps_per_epoch if by_steps else args.num_train_epochs
    return TrainingLength(
        num_train_epochs=math.ceil(epochs) if sized else sys.maxsize,
        num_update_steps_per_epoch=steps_per_epoch,
        num_examples=examples,
        num_train_samples=max_steps * each_step if by_steps else examples * args.num_train_epochs,
        total_train_batch_size=round(each_step),
        steps_in_epoch=batches,
        max_steps=max_steps,
    )
