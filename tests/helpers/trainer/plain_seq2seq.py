"""A small encoder-decoder without transformers: any module with `forward` and a greedy
`generate`.
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from helpers.trainer.tiny_trainings import ARGUMENTS
from lightrainer import Seq2SeqTrainer, Seq2SeqTrainingArguments

WORDS = 11
START, PAD, END = 1, 0, 2


class Plain(nn.Module):
    """Adds the mean of the source to each target token and predicts the next one; token 1
    starts, token 2 ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8)
        self.cell = nn.GRUCell(8, 8)
        self.head = nn.Linear(8, WORDS)
        self.calls: list[dict[str, Any]] = []

    def encode(self, source: torch.Tensor) -> torch.Tensor:
        return self.embedding(source).mean(dim=1)

    def forward(
        self, source: torch.Tensor, labels: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        state = self.encode(source)
        tokens = starts(source) if labels is None else shifted(labels)
        logits = []
        for step in range(tokens.shape[1]):
            state = self.cell(self.embedding(tokens[:, step]), state)
            logits.append(self.head(state))
        outputs = {"logits": torch.stack(logits, dim=1)}
        if labels is None:
            return outputs
        return {
            "loss": functional.cross_entropy(outputs["logits"].flatten(0, 1), labels.flatten()),
            **outputs,
        }

    def generate(
        self, source: torch.Tensor, max_length: int = 5, num_beams: int = 1
    ) -> torch.Tensor:
        self.calls.append(
            {"max_length": max_length, "num_beams": num_beams, "training": self.training}
        )
        state, tokens = self.encode(source), starts(source)
        while tokens.shape[1] < max_length and not tokens.eq(END).any(dim=1).all():
            state = self.cell(self.embedding(tokens[:, -1]), state)
            best = self.head(state).argmax(dim=-1)
            ended = tokens.eq(END).any(dim=1)
            tokens = torch.cat([tokens, torch.where(ended, PAD, best)[:, None]], dim=1)
        return tokens


def starts(rows: torch.Tensor) -> torch.Tensor:
    """The token that starts a sequence, for each of the rows."""
    return torch.full((len(rows), 1), START, device=rows.device)


def shifted(labels: torch.Tensor) -> torch.Tensor:
    return torch.cat([starts(labels), labels[:, :-1].clamp(min=0)], dim=1)


def pairs(count: int = 10, seed: int = 1, labelled: bool = True) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for _ in range(count):
        source = torch.randint(
            3, WORDS, (int(torch.randint(2, 6, (1,), generator=generator)),), generator=generator
        )
        samples.append(
            {
                "source": source,
                **({"labels": torch.cat([source[:2], torch.tensor([END])])} if labelled else {}),
            }
        )
    return samples


def pad(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    rows = {name: [sample[name] for sample in samples] for name in samples[0]}
    fill = {"source": PAD, "labels": -100}
    return {
        name: nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=fill[name])
        for name, values in rows.items()
    }


def plain(seed: int = 0, kind: type[Plain] = Plain) -> Plain:
    torch.manual_seed(seed)
    return kind()


def seq2seq_trainer(
    folder: Any,
    cls: type[Seq2SeqTrainer] = Seq2SeqTrainer,
    trainer: dict[str, Any] | None = None,
    **arguments: Any,
) -> Any:
    """A trainer of `plain()` on 10 pairs; `trainer` are parameters of the Trainer, the others of
    the arguments.
    """
    args = Seq2SeqTrainingArguments(
        output_dir=str(folder), **{**ARGUMENTS, "predict_with_generate": True, **arguments}
    )
    parameters = {
        "train_dataset": pairs(),
        "eval_dataset": pairs(6, seed=2),
        "data_collator": pad,
        **(trainer or {}),
    }
    if "model_init" not in parameters:
        parameters.setdefault("model", plain())
    return cls(args=args, **parameters)
