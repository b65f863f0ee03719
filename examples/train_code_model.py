"""Train a small GPT on the sources of Python's own standard library, in a minute or so on two CPU
cores.

An ordinary Trainer script: everything that is special to this model lies in the folder `code_model`
beside it.

    python examples/train_code_model.py                      # train from the start to the end
    python examples/train_code_model.py --stop-after 400     # or stop on the way,
    python examples/train_code_model.py --resume             # and go on from the last checkpoint

The output folder then holds the model (`model.safetensors`), the tokenizer, the last checkpoints,
the curves (`report.html`) and logs for TensorBoard (`tensorboard --logdir demo_output`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy

from code_model import CodeGPT, build_tokenizer, python_sources, split_by_file, to_blocks
from lightrainer import (
    EarlyStoppingCallback,
    EvalPrediction,
    RunReportCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

VOCAB_SIZE = 2048
BLOCK_SIZE = 128
HELD_OUT_BLOCKS = 128
PROMPT = "def read_config(path):\n"


def parse_options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--output-dir", type=Path, default=Path("demo_output"), help="default: %(default)s"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on from the last checkpoint in the output folder"
    )
    parser.add_argument(
        "--stop-after", type=int, metavar="N", help="save and stop after N steps, before the end"
    )
    parser.add_argument(
        "--max-steps",
        type=int,
        default=800,
        metavar="N",
        help="optimizer steps, default: %(default)s",
    )
    parser.add_argument(
        "--eval-steps", type=int, default=100, metavar="N", help="evaluate and save every N steps"
    )
    parser.add_argument(
        "--batch-size", type=int, default=8, help="blocks of tokens per step, default: %(default)s"
    )
    parser.add_argument("--learning-rate", type=float, default=1e-2, help="default: %(default)s")
    parser.add_argument(
        "--megabytes",
        type=float,
        default=4.0,
        help="how much source to read, default: %(default)s",
    )
    parser.add_argument(
        "--seed", type=int, default=42, help="of weights, order and dropout, default: %(default)s"
    )
    parser.add_argument(
        "--target-ratio",
        type=float,
        default=0.1,
        help="fail unless trained / untrained perplexity is below this, default: %(default)s",
    )
    options = parser.parse_args(argv)
    if not options.resume and any(options.output_dir.glob("checkpoint-*")):
        parser.error(
            f"{options.output_dir} holds checkpoints: add --resume to go on from them, or remove "
            "the folder"
        )
    return options


def token_scores(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Shrink a batch of logits to two numbers per predicted token, before the Trainer collects
    them.

    Returns:
        Each token's loss in nats, and whether the likeliest token was the right one: both (batch,
        tokens - 1), where the logits have a `VOCAB_SIZE` times as many numbers.
    """
    logits, labels = logits[:, :-1], labels[:, 1:]
    return (
        cross_entropy(logits.transpose(1, 2), labels, reduction="none"),
        logits.argmax(-1) == labels,
    )


def summarise(scores: EvalPrediction) -> dict[str, float]:
    """Turn the scores of all held-out tokens into `eval_perplexity` and `eval_accuracy`."""
    losses, hits = scores.predictions
    return {"perplexity": float(np.exp(losses.mean())), "accuracy": float(hits.mean())}


class StopAfter(TrainerCallback):
    """Save and stop after `steps` steps, as if the machine had been needed for something else."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Ask the Trainer for a checkpoint and for the end."""
        if state.global_step >= self.steps:
            control.should_save = True
            control.should_training_stop = True


def load_tokenizer(options: argparse.Namespace, files: Sequence[Path]) -> Tokenizer:
    """Learn the vocabulary from `files`, or take the one that the run to be resumed had learnt."""
    path = options.output_dir / "tokenizer.json"
    if options.resume and path.exists():
        return Tokenizer.from_file(str(path))
    tokenizer = build_tokenizer(files, VOCAB_SIZE)
    options.output_dir.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return tokenizer


def build_trainer(
    options: argparse.Namespace, model: CodeGPT, train_set: Dataset, held_out: Dataset
) -> Trainer:
    """Put model, data and arguments together: the part that every Trainer script has."""
    callbacks = [EarlyStoppingCallback(early_stopping_patience=3), RunReportCallback()]
    if options.stop_after:
        callbacks.append(StopAfter(options.stop_after))
    args = TrainingArguments(
        output_dir=str(options.output_dir),
        max_steps=options.max_steps,
        per_device_train_batch_size=options.batch_size,
        per_device_eval_batch_size=16,
        learning_rate=options.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=options.max_steps // 20,
        weight_decay=0.1,
        adam_beta2=0.95,
        max_grad_norm=1.0,
        logging_steps=max(1, options.eval_steps // 10),
        eval_strategy="steps",
        eval_steps=options.eval_steps,
        save_strategy="steps",
        save_steps=options.eval_steps,
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="perplexity",
        greater_is_better=False,
        report_to="tensorboard",
        seed=options.seed,
    )
    return Trainer(
        model=model,
        args=args,
        data_collator=default_data_collator,
        train_dataset=train_set,
        eval_dataset=held_out,
        compute_metrics=summarise,
        preprocess_logits_for_metrics=token_scores,
        callbacks=callbacks,
    )


def write_code(model: CodeGPT, tokenizer: Tokenizer, new_tokens: int = 120) -> str:
    """Let the model continue `PROMPT`."""
    model.eval()
    device = next(model.parameters()).device
    prompt = torch.tensor([tokenizer.encode(PROMPT).ids], device=device)
    return tokenizer.decode(model.generate(prompt, new_tokens)[0].tolist())


def report(trainer: Trainer, untrained: float, trained: float, sample: str) -> None:
    """Say in numbers what the training was good for."""
    print(f"""
--- a sample of what the model writes ---
{sample}
-----------------------------------------
held-out perplexity   untrained {untrained:8.1f}
                      trained   {trained:8.1f}   after {trainer.state.global_step} steps
                      ratio     {trained / untrained:8.4f}
model, checkpoints, report.html and TensorBoard logs are in {trainer.args.output_dir}""")


def main(argv: Sequence[str] | None = None) -> None:
    """Train, and exit with an error when the model learnt too little."""
    options = parse_options(argv)
    set_seed(options.seed)
    train_files, held_out_files = split_by_file(python_sources(int(options.megabytes * 1e6)))
    tokenizer = load_tokenizer(options, train_files)
    train_set = to_blocks(train_files, tokenizer, BLOCK_SIZE)
    held_out = to_blocks(held_out_files, tokenizer, BLOCK_SIZE).shuffle(seed=0)
    held_out = held_out.select(range(min(HELD_OUT_BLOCKS, len(held_out))))
    model = CodeGPT(VOCAB_SIZE, BLOCK_SIZE)
    trainer = build_trainer(options, model, train_set, held_out)
    print(
        f"{len(train_files)} files of Python's standard library to learn from ({len(train_set)} "
        f"blocks of {BLOCK_SIZE} tokens), {len(held_out_files)} held out ({len(held_out)} "
        f"blocks); {sum(p.numel() for p in model.parameters()):,} parameters"
    )

    untrained = trainer.evaluate()["eval_perplexity"]
    print(f"held-out perplexity of the untrained model: {untrained:.1f}")
    trainer.train(resume_from_checkpoint=options.resume)
    if trainer.state.global_step < options.max_steps and options.stop_after:
        print(
            f"stopped after {trainer.state.global_step} of {options.max_steps} steps; --resume "
            "goes on from here"
        )
        return
    trained = trainer.evaluate()["eval_perplexity"]
    trainer.save_model()
    report(trainer, untrained, trained, write_code(model, tokenizer))
    if trained >= options.target_ratio * untrained:
        sys.exit(
            f"The trained model's perplexity is {trained / untrained:.3f} of the untrained one's, "
            f"but less than {options.target_ratio} is asked for: train for more steps "
            f"(--max-steps {2 * options.max_steps})."
        )


if __name__ == "__main__":
    main()
