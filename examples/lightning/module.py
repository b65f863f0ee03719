"""Train a plain torch model as a language model with `lightning.Trainer`:
`python examples/lightning/module.py`.

`CausalLMModule` brings the loss, the optimizer, the schedule and the perplexity; the model only
makes logits. Nothing is downloaded, and it takes a few seconds.
"""

from __future__ import annotations

import tempfile

import lightning
import torch
from torch import nn

from lightrainer import CausalLMModule, OptimizerConfig, ScheduleConfig, default_data_collator

TEXT = (
    "the quick brown fox jumps over the lazy dog and runs away from the old grey wolf who sleeps "
    "under the tree. "
)
LETTERS = sorted(set(TEXT))
LENGTH = 24


class Letters(nn.Module):
    """The next letter from those before it.

    Args:
        size: numbers in a letter's vector.
    """

    def __init__(self, size: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(LETTERS), size)
        self.memory = nn.GRU(size, size, batch_first=True)
        self.head = nn.Linear(size, len(LETTERS))

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the embeddings, to which NEFTune adds its noise."""
        return self.embedding

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Logits, (samples, length, letters)."""
        return self.head(self.memory(self.embedding(input_ids))[0])


def blocks(count: int = 300) -> list[dict[str, torch.Tensor]]:
    """Pieces of the text; labels are the inputs themselves."""
    ids = torch.tensor([LETTERS.index(letter) for letter in TEXT * 2])
    pieces = [ids[start % len(TEXT) :][:LENGTH] for start in range(count)]
    return [{"input_ids": piece, "labels": piece} for piece in pieces]


def make_module() -> CausalLMModule:
    """Return the model with all that training it needs."""
    return CausalLMModule(
        Letters(),
        optimizer=OptimizerConfig(learning_rate=1e-2, weight_decay=0.01),
        schedule=ScheduleConfig(name="cosine", warmup_steps=0.1),
        label_smoothing=0.05,
        neftune_noise_alpha=1.0,
    )


def main() -> float:
    """Train, validate, save and load; returns the perplexity."""
    lightning.seed_everything(42)
    train = torch.utils.data.DataLoader(
        blocks(), batch_size=16, shuffle=True, collate_fn=default_data_collator
    )
    held_out = torch.utils.data.DataLoader(
        blocks(50), batch_size=16, collate_fn=default_data_collator
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=4,
            gradient_clip_val=1.0,
            accumulate_grad_batches=2,
            accelerator="cpu",
            default_root_dir=folder,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(make_module(), train, held_out)
        trained = CausalLMModule.load_from_checkpoint(
            trainer.checkpoint_callback.best_model_path, model=Letters()
        )
        (metrics,) = trainer.validate(trained, held_out, verbose=False)
    print(f"perplexity {metrics['val_perplexity']:.2f} among {len(LETTERS)} letters")
    return metrics["val_perplexity"]


if __name__ == "__main__":
    main()
