"""Choose the ending that belongs to a beginning; imports transformers and nothing of lightrainer.

    python multiple_choice.py --output_dir out --do_train --do_eval
    python -m lightrainer multiple_choice.py --output_dir out --do_train --do_eval

Files of one's own are JSON lines with the columns `beginning`, `endings` (a list, always of the
same length) and `label`.
"""

import logging
import os
import random
import sys
from dataclasses import dataclass, field
from itertools import chain

import datasets
import numpy as np
import transformers
from datasets import Dataset, DatasetDict, load_dataset
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoConfig,
    AutoModelForMultipleChoice,
    AutoTokenizer,
    DataCollatorForMultipleChoice,
    HfArgumentParser,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

logger = logging.getLogger(__name__)

PAIRS = {
    "the kettle": "whistles on the stove",
    "the cat": "sleeps on the sill",
    "the bus": "waits at the corner",
    "the river": "runs under the bridge",
    "the clock": "ticks in the hall",
}


@dataclass
class ModelArguments:
    """Arguments about the model."""

    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Go on with this one, if given."}
    )


@dataclass
class DataArguments:
    """Arguments about the data."""

    train_file: str | None = field(default=None, metadata={"help": "JSON lines to learn from."})
    validation_file: str | None = field(
        default=None, metadata={"help": "JSON lines to evaluate on."}
    )
    choices: int = field(default=3, metadata={"help": "Endings of each made-up beginning."})
    max_seq_length: int = field(
        default=24, metadata={"help": "Longer pairs are cut off, in tokens."}
    )
    pad_to_max_length: bool = field(
        default=False, metadata={"help": "Fill up all pairs to the same length."}
    )
    max_eval_samples: int | None = field(
        default=None, metadata={"help": "Evaluate on no more than so many."}
    )


class CountEpochs(TrainerCallback):
    """Says when an epoch is over; there for those who look at the logs."""

    def on_epoch_end(self, args, state, control, **kwargs):
        """Called by the Trainer."""
        logger.info("epoch %.2f is over at step %d", state.epoch, state.global_step)


def made_up(count: int, choices: int, seed: int) -> Dataset:
    """Beginnings with one ending of their own and some of others."""
    draw, rows = random.Random(seed), []
    for _ in range(count):
        beginning = draw.choice(list(PAIRS))
        others = [ending for name, ending in PAIRS.items() if name != beginning]
        endings = [PAIRS[beginning], *draw.sample(others, choices - 1)]
        draw.shuffle(endings)
        rows.append(
            {"beginning": beginning, "endings": endings, "label": endings.index(PAIRS[beginning])}
        )
    return Dataset.from_list(rows)


def read_data(data_args: DataArguments) -> DatasetDict:
    """Return the files that were given, or else made-up ones."""
    files = {"train": data_args.train_file, "validation": data_args.validation_file}
    files = {split: name for split, name in files.items() if name}
    if files:
        return load_dataset("json", data_files=files)
    return DatasetDict(
        train=made_up(40, data_args.choices, 1), validation=made_up(16, data_args.choices, 2)
    )


def train_tokenizer(data: Dataset) -> PreTrainedTokenizerFast:
    """Pieces of words, learnt from beginnings and endings."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    texts = chain(data["beginning"], chain.from_iterable(data["endings"]))
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=100, special_tokens=special)
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **names)


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


def compute_metrics(prediction) -> dict[str, float]:
    """Return how often the right ending was chosen, and how sure the model was of it."""
    scores, labels = prediction
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    return {
        "accuracy": (scores.argmax(axis=1) == labels).astype(np.float32).mean().item(),
        "share": shares[np.arange(len(labels)), labels].mean().item(),
    }


def main() -> None:
    """Train and evaluate, as the options say."""
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
    if model_args.model_name_or_path:
        tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path)
        model = AutoModelForMultipleChoice.from_pretrained(model_args.model_name_or_path)
    else:
        tokenizer = train_tokenizer(data["train"])
        config = AutoConfig.for_model(
            "albert",
            vocab_size=len(tokenizer),
            embedding_size=16,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=64,
        )
        model = AutoModelForMultipleChoice.from_config(config)

    def prepare(rows):
        many = len(rows["endings"][0])
        beginnings = list(chain.from_iterable([text] * many for text in rows["beginning"]))
        prepared = tokenizer(
            beginnings,
            list(chain.from_iterable(rows["endings"])),
            truncation=True,
            max_length=data_args.max_seq_length,
            padding="max_length" if data_args.pad_to_max_length else False,
        )
        return {
            name: [values[start : start + many] for start in range(0, len(values), many)]
            for name, values in prepared.items()
        }

    with training_args.main_process_first(desc="making tokens of pairs"):
        data = data.map(prepare, batched=True, remove_columns=["beginning", "endings"])
    if data_args.max_eval_samples is not None:
        data["validation"] = data["validation"].select(
            range(min(data_args.max_eval_samples, len(data["validation"])))
        )

    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=data["train"] if training_args.do_train else None,
        eval_dataset=data["validation"] if training_args.do_eval else None,
        processing_class=tokenizer,
        data_collator=(
            default_data_collator
            if data_args.pad_to_max_length
            else DataCollatorForMultipleChoice(
                tokenizer=tokenizer, pad_to_multiple_of=8 if training_args.fp16 else None
            )
        ),
        compute_metrics=compute_metrics,
        callbacks=[CountEpochs],
    )

    if training_args.do_train:
        result = trainer.train(
            resume_from_checkpoint=training_args.resume_from_checkpoint or last_checkpoint
        )
        trainer.save_model()
        metrics = {**result.metrics, "train_samples": len(data["train"])}
        trainer.log_metrics("train", metrics)
        trainer.save_metrics("train", metrics)
        trainer.save_state()

    if training_args.do_eval:
        metrics = trainer.evaluate()
        metrics["eval_samples"] = len(data["validation"])
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)

    card = {
        "finetuned_from": model_args.model_name_or_path,
        "tasks": "multiple-choice",
        "dataset_tags": "endings",
        "dataset_args": "made up",
        "dataset": "Endings",
        "language": "en",
    }
    if training_args.push_to_hub:
        trainer.push_to_hub(**card)
    else:
        trainer.create_model_card(**card)


if __name__ == "__main__":
    main()
