"""The data side of the Trainer: which samples, in which order, with which columns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sized
from functools import cached_property
from typing import Any, cast

from torch.utils.data import DataLoader, Sampler

from ...lightning_modules.data.collators import RemoveColumnsCollator
from ...lightning_modules.models import inspection
from .base import TrainerBase
from .checks import require_dataset
from .columns import remove_unused
from .data_loading import DataLoading

logger = logging.getLogger(__name__)


class TrainerData(TrainerBase):
    """From datasets to loaders."""

    _data_loading = cached_property(DataLoading)

    def get_train_dataloader(self) -> DataLoader:
        """As `transformers.Trainer.get_train_dataloader`: shuffled, sharded over the processes.

        Raises:
            ValueError: there is no `train_dataset`.
        """
        if self.train_dataset is None:
            raise ValueError("Training needs data: pass train_dataset=... to the Trainer.")
        return self._get_dataloader(
            dataset=self.train_dataset,
            description="training",
            batch_size=self._train_batch_size,
            sampler_fn=self._get_train_sampler,
            is_training=True,
        )

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """As `transformers.Trainer.get_eval_dataloader`.

        Args:
            eval_dataset: a dataset, or the name of one in a dict of them; by default the Trainer's `eval_dataset`.

        Raises:
            ValueError: there is no dataset, or none of this name.
        """
        key = eval_dataset if isinstance(eval_dataset, str) else "eval"
        if self.args.dataloader_persistent_workers and key in self._eval_dataloaders:
            return self._eval_dataloaders[key]
        return self._get_dataloader(
            dataset=_chosen(eval_dataset, self.eval_dataset),
            description="evaluation",
            batch_size=self.args.eval_batch_size,
            sampler_fn=self._get_eval_sampler,
            dataloader_key=key,
        )

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        """As `transformers.Trainer.get_test_dataloader`."""
        require_dataset(test_dataset, "test_dataset")
        return self._get_dataloader(
            dataset=test_dataset,
            description="test",
            batch_size=self.args.eval_batch_size,
            sampler_fn=self._get_eval_sampler,
        )

    def num_examples(self, dataloader: DataLoader) -> int:
        """As `transformers.Trainer.num_examples`: samples behind a loader, estimated where they cannot be counted."""
        try:
            return len(getattr(dataloader, "whole_dataset", cast(Sized, dataloader.dataset)))
        except (NameError, AttributeError, TypeError):
            return len(dataloader) * self.args.per_device_train_batch_size

    def _get_dataloader(
        self,
        dataset: Any,
        description: str,
        batch_size: int,
        sampler_fn: Callable[[Any], Sampler[int] | None] | None = None,
        is_training: bool = False,
        dataloader_key: str | None = None,
    ) -> DataLoader:
        return self._data_loading.loader(dataset, description, batch_size, sampler_fn, is_training, dataloader_key)

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int] | None:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        return self._data_loading.train_sampler(dataset, self.args.train_sampling_strategy)

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[int] | None:
        return self._data_loading.eval_sampler(eval_dataset)

    def _set_signature_columns_if_needed(self) -> None:
        if self._signature_columns is None:
            self._signature_columns = inspection.signature_columns(
                inspection.base_of_adapter(self.model), self.label_names
            )

    def _remove_unused_columns(self, dataset: Any, description: str | None = None) -> Any:
        if not self.args.remove_unused_columns:
            return dataset
        self._set_signature_columns_if_needed()
        assert self._signature_columns is not None
        return remove_unused(dataset, self._signature_columns, type(self.model).__name__, description)

    def _get_collator_with_removed_columns(
        self, data_collator: Callable[[list[Any]], Any], description: str | None = None
    ) -> Callable[[list[Any]], Any]:
        if not self.args.remove_unused_columns:
            return data_collator
        self._set_signature_columns_if_needed()
        assert self._signature_columns is not None
        return RemoveColumnsCollator(
            data_collator=data_collator,
            signature_columns=self._signature_columns,
            logger=logger,
            description=description,
            model_name=type(self.model).__name__,
        )


def _chosen(eval_dataset: Any, known: Any) -> Any:
    """The dataset to evaluate: the one that was passed, the one of that name, or the Trainer's."""
    if isinstance(eval_dataset, str):
        if not isinstance(known, dict) or eval_dataset not in known:
            names = ", ".join(known) if isinstance(known, dict) else "no names"
            raise ValueError(f"There is no eval_dataset called {eval_dataset!r}; the Trainer has {names}.")
        require_dataset(known[eval_dataset], f"eval_dataset[{eval_dataset!r}]")
        return known[eval_dataset]
    found = known if eval_dataset is None else eval_dataset
    if isinstance(found, str):
        raise TypeError(f"eval_dataset is {found!r}, a name. Pass the dataset itself, or a dict of datasets.")
    if found is None:
        raise ValueError("Evaluation needs data: pass eval_dataset=... to the Trainer, or to evaluate().")
    require_dataset(found, "eval_dataset")
    return found
