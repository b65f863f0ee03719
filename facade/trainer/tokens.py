"""How many tokens a training has seen."""

from __future__ import annotations

import logging
from typing import Any

import torch

from ..arguments.parallelism import copies_of_batches
from .base import TrainerBase

logger = logging.getLogger(__name__)


class TokenCounting(TrainerBase):
    """`include_num_input_tokens_seen`: counts per process, added up when somebody wants to know."""

    def _track_num_input_tokens(self, inputs: Any) -> None:
        """Count the tokens of a micro-batch, if the arguments ask for it."""
        how = self.args.include_num_input_tokens_seen
        if how == "no":
            return
        tokens = self._count_tokens(inputs, how)
        if self.args.world_size > 1:  # asking the other processes can wait until somebody wants to know
            self._pending_tokens += tokens
        else:
            self.state.num_input_tokens_seen += tokens

    def _count_tokens(self, inputs: Any, how: Any) -> int:
        name = getattr(self.model, "main_input_name", "input_ids")
        if name not in inputs:
            logger.warning(
                "include_num_input_tokens_seen is on, but the batch has no %r, the model's main_input_name.", name
            )
            return 0
        if how == "non_padding":
            if "attention_mask" in inputs:
                return int(inputs["attention_mask"].sum())
            padding = getattr(self.processing_class, "pad_token_id", None)
            if padding is not None:
                return int((inputs[name] != padding).sum())
            logger.warning(
                "Padding cannot be told from tokens without attention_mask or pad_token_id: all are counted."
            )
        return inputs[name].numel()

    def _flush_input_tokens(self) -> None:
        if self.args.world_size == 1 or self.args.include_num_input_tokens_seen == "no":
            return
        pending = torch.tensor(self._pending_tokens, device=self.args.device)
        self.state.num_input_tokens_seen += int(self.accelerator.reduce(pending)) // copies_of_batches(self.args)
        self._pending_tokens = 0
