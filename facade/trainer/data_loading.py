"""How data is loaded: samplers, workers, and what is known of datasets from one loader to the next."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Sampler, SequentialSampler

from ...lightning_modules.common.followed import followed
from ...lightning_modules.common.seeding import seed_worker
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.data.collators import DataCollatorWithPadding, default_data_collator
from ...lightning_modules.data.lengths import (
    LengthCache,
    LengthGroupedSampler,
    column_lengths,
    has_length,
    sample_lengths,
)
from ...lightning_modules.data.loaders import build_loader
from ...lightning_modules.data.rebalancing import BatchRebalanceSampler
from ...lightning_modules.data.workers import attached_worker, deaf_worker
from ..arguments.parallelism import copies_of_batches, data_rank
from ..protocols.trainer import LoadingProtocol
from .columns import is_hub_dataset


class DataLoading:
    """Makes the loaders and samplers of a Trainer, and measures its samples once.

    Args:
        trainer: the Trainer whose methods choose columns and samplers.
    """

    trainer = WeakAttribute["LoadingProtocol"]()

    def __init__(self, trainer: LoadingProtocol) -> None:
        self.trainer = trainer
        self._lengths = LengthCache()
        self._reduced: tuple[Any, Any] = (None, None)
        """A dataset without the columns that the model does not take, and the whole one; while a sampler is made."""

    def loader(
        self,
        dataset: Any,
        description: str,
        batch_size: int,
        sampler_fn: Callable[[Any], Sampler[int] | None] | None,
        is_training: bool,
        dataloader_key: str | None,
    ) -> DataLoader:
        """Make a loader, for which the parameters are those of `Trainer._get_dataloader`."""
        trainer, args = self.trainer, self.trainer.args
        collator, whole = trainer.data_collator, dataset
        if is_hub_dataset(dataset):
            dataset = trainer._remove_unused_columns(dataset, description=description)
        else:
            collator = trainer._get_collator_with_removed_columns(collator, description=description)
        stream = isinstance(dataset, IterableDataset)
        sampler = self._sampler(dataset, whole, sampler_fn) if sampler_fn is not None and not stream else None
        config: Any = args.accelerator_config
        loader: Any = build_loader(
            dataset,
            batch_size=batch_size,
            collate_fn=collator,
            sampler=sampler,
            seed=args.data_seed,
            seedable=config.use_seedable_sampler,
            drop_last=args.dataloader_drop_last and not stream,
            rank=args.process_index,
            world_size=args.world_size,
            copies=copies_of_batches(args),
            even_batches=trainer.accelerator.even_batches,
            split_batches=config.split_batches,
            dispatch_batches=config.dispatch_batches,
            **self._worker_options(is_training and not stream),
        )
        if dataloader_key is not None and args.dataloader_persistent_workers:
            trainer._eval_dataloaders[dataloader_key] = loader
            loader.track()
            loader.had_workers(trainer._data_position.evaluated_before.get(dataloader_key))
        return loader

    def train_sampler(self, dataset: Any, order: str) -> Sampler[Any] | None:
        """The sampler of a training, for an order that `train_sampling_strategy` may ask for."""
        if dataset is None or not has_length(dataset):
            return None
        args = self.trainer.args
        if order == "group_by_length":
            return self._by_length(
                dataset, self.trainer._elastic.length_group or args.train_batch_size * args.gradient_accumulation_steps
            )
        if order == "batch_rebalance":
            return self._rebalanced(dataset)
        if order == "sequential" or len(dataset) == 0:  # RandomSampler refuses one that is empty
            return SequentialSampler(dataset)
        return RandomSampler(dataset)

    def eval_sampler(self, dataset: Any) -> Sampler[int] | None:
        """The sampler of an evaluation; None where each process takes its share in order."""
        args = self.trainer.args
        if dataset is None or not has_length(dataset):
            return None
        if args.train_sampling_strategy == "group_by_length":
            own = followed().seeds_evaluation_in_groups
            seed = args.seed if args.data_seed is None else args.data_seed
            generator = torch.Generator().manual_seed(seed) if own else None
            return self._by_length(dataset, args.eval_batch_size, generator)
        return SequentialSampler(dataset) if args.world_size <= 1 else None

    def _sampler(self, dataset: Any, whole: Any, sampler_fn: Callable[..., Sampler[int] | None]) -> Any:
        """The sampler of a dataset that may lack columns of the `whole` one, such as that of the lengths."""
        self._reduced = (dataset, whole)
        try:
            # Overrides of older scripts take the dataset from the Trainer.
            return sampler_fn(dataset) if inspect.signature(sampler_fn).parameters else sampler_fn()
        finally:
            self._reduced = (None, None)

    def _by_length(
        self, dataset: Any, batch_size: int, generator: torch.Generator | None = None
    ) -> LengthGroupedSampler:
        return LengthGroupedSampler(batch_size, lengths=self._lengths_of(dataset), generator=generator)

    def _rebalanced(self, dataset: Any) -> BatchRebalanceSampler:
        args = self.trainer.args
        config: Any = args.accelerator_config
        if copies_of_batches(args) > 1 or (args.world_size > 1 and config.dispatch_batches):
            raise NotImplementedError(
                "train_sampling_strategy='batch_rebalance' is for processes that all read batches of their own, but "
                "with this parallelism_config, or with dispatch_batches in accelerator_config, others get the same "
                "ones, or are sent theirs. Pass train_sampling_strategy='group_by_length'."
            )
        processes, accumulation = args.world_size, args.gradient_accumulation_steps
        return BatchRebalanceSampler(
            lengths=self._lengths_of(dataset),
            effective_batch_size=self.trainer._train_batch_size * accumulation * processes,
            dp_size=processes,
            grad_accum=accumulation,
            rank=args.process_index,
            drop_last=args.dataloader_drop_last,
        )

    def _lengths_of(self, dataset: Any) -> Any:
        args, (reduced, whole) = self.trainer.args, self._reduced
        known_by = whole if reduced is dataset else dataset
        name = (getattr(self.trainer.processing_class, "model_input_names", None) or ["input_ids"])[0]

        def measure() -> Any:
            given = column_lengths(known_by, args.length_column_name)
            if given is not None:
                return given
            method, workers = args.dataloader_multiprocessing_context, args.dataloader_num_workers
            return sample_lengths(dataset, name, workers=workers, start_method=method)

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
        start: Any = functools.partial(seed_worker, num_workers=workers, rank=data_rank(args)) if seeded else None
        if workers > 0 and signals.handled:  # a signal goes to all processes of a group, as a rule
            start = functools.partial(deaf_worker, signals=signals.handled, listens=signals.shared_flag, then=start)
        if workers > 0 and args.world_size > 1:  # they hold copies of the connections to the other processes
            start = functools.partial(attached_worker, then=start)
        return options if start is None else {**options, "worker_init_fn": start}


def default_collator(processing_class: Any) -> Callable[[list[Any]], Any]:
    """Pad with the processing class where it is a tokenizer or a feature extractor; otherwise stack what there is."""
    # Processors of `transformers` combine several modalities; the reference does not pad with them.
    processors = sys.modules.get("transformers.processing_utils")
    combined = processors is not None and isinstance(processing_class, processors.ProcessorMixin)
    pads = callable(getattr(processing_class, "pad", None)) and not combined
    return DataCollatorWithPadding(processing_class) if pads else default_data_collator
