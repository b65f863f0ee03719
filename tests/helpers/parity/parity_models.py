"""Tiny models of every kind that a Trainer meets."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 29


class Classifier(nn.Module):
    """A plain module with dropout and a LayerNorm, which returns a dict."""

    def __init__(self, width: int = 8, classes: int = 3, dropout: float = 0.2):
        super().__init__()
        self.first = nn.Linear(width, 16)
        self.norm = nn.LayerNorm(16)
        self.dropout = nn.Dropout(dropout)
        self.second = nn.Linear(16, classes)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.dropout(self.norm(torch.tanh(self.first(x)))))

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.logits(x)
        if labels is None:
            return {"logits": logits}
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


class TupleClassifier(Classifier):
    """Returns `(loss, logits)`, or `(logits,)` without labels."""

    def forward(
        self, x: torch.Tensor, labels: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, ...]:
        return tuple(super().forward(x, labels).values())


class VectorClassifier(Classifier):
    """Returns a bare tensor that starts with the loss."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        outputs = super().forward(x, labels)
        return torch.stack([outputs["loss"], outputs["logits"].sum(), outputs["logits"].mean()])


class ObjectClassifier(Classifier):
    """Returns an object with `.loss` and `.logits`."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> SimpleNamespace:
        return SimpleNamespace(**super().forward(x, labels))


class TokenModel(nn.Module):
    """Predicts each token's label; divides by the number of labels in the whole window when it
    is told.
    """

    main_input_name = "input_ids"

    def __init__(self, dropout: float = 0.1):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, VOCABULARY)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Any,
    ) -> dict[str, torch.Tensor]:
        logits = self.head(self.dropout(self.embedding(input_ids)))
        if labels is None:
            return {"logits": logits}
        total = functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum"
        )
        count = num_items_in_batch if num_items_in_batch is not None else (labels != -100).sum()
        return {"loss": total / count, "logits": logits}


class SometimesNotANumber(Classifier):
    """Reports a NaN loss for batches whose first feature is large; its gradients stay finite."""

    def forward(
        self, x: torch.Tensor, labels: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        outputs = super().forward(x, labels)
        if "loss" in outputs:
            bad = (x[:, 0] > 1.0).any()
            # Adding a constant leaves the gradient alone.
            outputs["loss"] = outputs["loss"] + torch.where(
                bad, torch.tensor(torch.nan), torch.tensor(0.0)
            )
        return outputs


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
    tokens = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **tokens))


def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    config = BertConfig(vocab_size=VOCABULARY, max_position_embeddings=32, num_labels=3, **sizes)
    return BertForSequenceClassification(config)


def t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    tokens = {
        "vocab_size": VOCABULARY,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
    }
    return T5ForConditionalGeneration(T5Config(**sizes, **tokens))
