"""Train a model of one's own, a plain `nn.Module`, on texts; runs with transformers, and without it
under lightrainer.

    python own_model.py --output_dir out --do_train --do_eval --do_predict
    python -m lightrainer own_model.py --output_dir out --do_train --do_eval --do_predict

It guesses how many hours a journey takes from a sentence about it. Of transformers it uses the
Trainer and what is around it, no models; under lightrainer that need not be installed.
"""

import logging
import os
import random
import sys
from dataclasses import dataclass, field

import datasets
import numpy as np
import torch
import transformers
from datasets import Dataset, DatasetDict, load_dataset
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import nn
from transformers import (
    DataCollatorWithPadding,
    EvalPrediction,
    HfArgumentParser,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    get_linear_schedule_with_warmup,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint
from transformers.utils import ModelOutput

logger = logging.getLogger(__name__)

HOURS = {"on foot": 9.0, "by bike": 4.0, "by train": 1.5, "by car": 2.0}
TOWNS = {"Riva": 1.0, "Trento": 1.4, "Bolzano": 2.2}


@dataclass
class ModelArguments:
    """Arguments about the model."""

    width: int = field(default=16, metadata={"help": "Numbers for each token."})
    dropout: float = field(
        default=0.1, metadata={"help": "Share of them that is left out in training."}
    )
    table_learning_rate: float | None = field(
        default=None, metadata={"help": "Another rate for the table of tokens."}
    )


@dataclass
class DataArguments:
    """Arguments about the data."""

    train_file: str | None = field(
        default=None, metadata={"help": "CSV to learn from, columns text and hours."}
    )
    validation_file: str | None = field(default=None, metadata={"help": "CSV to evaluate on."})


@dataclass
class HoursOutput(ModelOutput):
    """Loss and hours, as the model returns them."""

    loss: torch.Tensor | None = None
    hours: torch.Tensor | None = None


class HoursModel(nn.Module):
    """The mean of a text's tokens, and one number out of it.

    Args:
        vocab_size: how many tokens there are; token 0 fills up.
        width: numbers for each token.
        dropout: share of them that is left out in training.
    """

    def __init__(self, vocab_size: int, width: int, dropout: float) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, width, padding_idx=0)
        self.head = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1)
        )

    def forward(self, input_ids, attention_mask, labels=None) -> HoursOutput:
        """Hours, one for each text; with labels also the mean squared error."""
        weights = attention_mask.unsqueeze(-1).float()
        mean = (self.table(input_ids) * weights).sum(dim=1) / weights.sum(dim=1)
        hours = self.head(mean).squeeze(-1)
        loss = None if labels is None else nn.functional.mse_loss(hours, labels.float())
        return HoursOutput(loss=loss, hours=hours)


class TwoRates(Trainer):
    """A Trainer with another learning rate for the table of tokens."""

    table_learning_rate: float | None = None

    def create_optimizer(self, model=None):
        """Make an optimizer with two groups of parameters."""
        if self.optimizer is None:
            kind, keywords = self.get_optimizer_cls_and_kwargs(self.args, self.model)
            rate = self.table_learning_rate or keywords["lr"]
            groups = [
                {"params": list(self.model.table.parameters()), "lr": rate, "weight_decay": 0.0},
                {
                    "params": list(self.model.head.parameters()),
                    "weight_decay": self.args.weight_decay,
                },
            ]
            self.optimizer = kind(groups, **keywords)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer=None):
        """Up for a tenth of the steps, and down to nothing."""
        if self.lr_scheduler is None:
            self.lr_scheduler = get_linear_schedule_with_warmup(
                self.optimizer, num_training_steps // 10, num_training_steps
            )
        return self.lr_scheduler


class Remember(TrainerCallback):
    """Writes down what was logged, line by line."""

    def __init__(self, path: str) -> None:
        self.path = path

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Called by the Trainer."""
        if state.is_world_process_zero and "loss" in (logs or {}):
            with open(self.path, "a", encoding="utf-8") as out:
                out.write(f"{state.global_step} {logs['loss']}\n")


def made_up(count: int, seed: int) -> Dataset:
    """Journeys, and how long they took."""
    draw, rows = random.Random(seed), []
    for _ in range(count):
        way, town = draw.choice(list(HOURS)), draw.choice(list(TOWNS))
        text = draw.choice([f"{way} to {town}", f"she went to {town} {way}"])
        rows.append({"text": text, "hours": HOURS[way] * TOWNS[town] + draw.random()})
    return Dataset.from_list(rows)


def read_data(data_args: DataArguments) -> DatasetDict:
    """Return the files that were given, or else made-up journeys."""
    files = {"train": data_args.train_file, "validation": data_args.validation_file}
    files = {split: name for split, name in files.items() if name}
    return (
        load_dataset("csv", data_files=files)
        if files
        else DatasetDict(train=made_up(48, 1), validation=made_up(16, 2))
    )


def write_tokenizer(path: str, texts: list[str]) -> None:
    """Whole words, in a file."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(
        texts, trainers.WordLevelTrainer(special_tokens=["<pad>", "<unk>"])
    )
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    tokenizer.save(path)


def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
    """Return by how many hours the guesses are off."""
    off = np.abs(prediction.predictions - prediction.label_ids)
    return {"off": float(off.mean()), "worst": float(off.max())}


def set_up_logging(training_args: TrainingArguments) -> None:
    """Let all libraries log to the standard output, as much as `--log_level` asks for."""
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        handlers=[logging.StreamHandler(sys.stdout)],
    )
    if training_args.should_log:
        transformers.utils.logging.set_verbosity_info()
    level = training_args.get_process_log_level()
    logger.setLevel(level)
    datasets.utils.logging.set_verbosity(level)
    transformers.utils.logging.set_verbosity(level)
    transformers.utils.logging.enable_default_handler()
    transformers.utils.logging.enable_explicit_format()


def main() -> None:
    """Train, evaluate and predict, as the options say."""
    parser = HfArgumentParser((ModelArguments, DataArguments, TrainingArguments))
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        model_args, data_args, training_args = parser.parse_json_file(
            json_file=os.path.abspath(sys.argv[1])
        )
    else:
        model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    set_up_logging(training_args)
    logger.info("arguments: %s", training_args)

    last_checkpoint = None
    if os.path.isdir(training_args.output_dir) and training_args.do_train:
        last_checkpoint = get_last_checkpoint(training_args.output_dir)

    set_seed(training_args.seed)
    data = read_data(data_args)
    tokenizer_file = os.path.join(training_args.output_dir, "tokenizer.json")
    with training_args.main_process_first(desc="learning a tokenizer"):
        if not os.path.exists(tokenizer_file):
            write_tokenizer(tokenizer_file, data["train"]["text"])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=tokenizer_file, pad_token="<pad>", unk_token="<unk>"
    )

    def prepare(rows):
        return {**tokenizer(rows["text"]), "labels": rows["hours"]}

    with training_args.main_process_first(desc="making tokens of texts"):
        data = data.map(prepare, batched=True, remove_columns=["text", "hours"])

    trainer = TwoRates(
        model=HoursModel(len(tokenizer), model_args.width, model_args.dropout),
        args=training_args,
        train_dataset=data["train"] if training_args.do_train else None,
        eval_dataset=data["validation"] if training_args.do_eval else None,
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=compute_metrics,
        callbacks=[Remember(os.path.join(training_args.output_dir, "losses.txt"))],
    )
    trainer.table_learning_rate = model_args.table_learning_rate

    if training_args.do_train:
        result = trainer.train(
            resume_from_checkpoint=training_args.resume_from_checkpoint or last_checkpoint
        )
        trainer.save_model()
        trainer.log_metrics("train", result.metrics)
        trainer.save_metrics("train", result.metrics)
        trainer.save_state()

    if training_args.do_eval:
        metrics = trainer.evaluate()
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)

    if training_args.do_predict:
        output = trainer.predict(data["validation"], metric_key_prefix="predict")
        trainer.save_metrics("predict", output.metrics)
        if trainer.is_world_process_zero():
            with open(
                os.path.join(training_args.output_dir, "guesses.txt"), "w", encoding="utf-8"
            ) as out:
                out.writelines(f"{hours}\n" for hours in output.predictions.tolist())

    # A card for a model without a `config` cannot be made with transformers 5.3.0, so here it is
    # left out.
    if training_args.push_to_hub:
        trainer.push_to_hub(tags=["journeys"])


if __name__ == "__main__":
    main()
