"""Sort short texts into classes; imports transformers and nothing of lightrainer.

    python text_classification.py --output_dir out --do_train --do_eval --do_predict
    python -m lightrainer text_classification.py --output_dir out --do_train --do_eval --do_predict

Files of one's own (CSV or JSON lines, columns `text` and `label`) are given with `--train_file`,
`--validation_file` and `--test_file`; without them a few sentences are made up. A single argument
that ends in `.json` is read as a file with all options.
"""

import logging
import os
import random
import sys
from dataclasses import dataclass, field

import datasets
import numpy as np
import transformers
from datasets import Dataset, DatasetDict, load_dataset
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    EvalPrediction,
    HfArgumentParser,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

logger = logging.getLogger(__name__)

THINGS = {
    "kitchen": ["the soup", "a wooden spoon", "the oven", "fresh bread", "a heavy pan"],
    "harbour": ["the ferry", "an old anchor", "the pier", "a fishing net", "the lighthouse"],
    "garden": ["the rose", "a watering can", "the hedge", "ripe plums", "a small spade"],
}
REMARKS = [
    "was there before noon",
    "is still wet",
    "looks new to me",
    "cannot be moved",
    "smells of rain",
]


@dataclass
class ModelArguments:
    """Arguments about the model."""

    model_name_or_path: str | None = field(
        default=None,
        metadata={
            "help": "A trained model and its tokenizer; by default a tiny BERT from scratch."
        },
    )
    hidden_size: int = field(default=32, metadata={"help": "Width of the tiny BERT."})


@dataclass
class DataArguments:
    """Arguments about the data."""

    train_file: str | None = field(
        default=None, metadata={"help": "CSV or JSON lines to learn from."}
    )
    validation_file: str | None = field(
        default=None, metadata={"help": "CSV or JSON lines to evaluate on."}
    )
    test_file: str | None = field(
        default=None, metadata={"help": "CSV or JSON lines to predict labels for."}
    )
    max_seq_length: int = field(
        default=24, metadata={"help": "Longer texts are cut off, in tokens."}
    )
    max_train_samples: int | None = field(
        default=None, metadata={"help": "Learn from no more than so many."}
    )
    patience: int | None = field(
        default=None, metadata={"help": "Stop after so many evaluations without progress."}
    )


def parse_arguments() -> tuple[ModelArguments, DataArguments, TrainingArguments]:
    """Return the command line, or the JSON file that it names."""
    parser = HfArgumentParser((ModelArguments, DataArguments, TrainingArguments))
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        return parser.parse_json_file(json_file=os.path.abspath(sys.argv[1]))
    return parser.parse_args_into_dataclasses()


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
    logger.info(
        "process %s of %s on %s",
        training_args.process_index,
        training_args.world_size,
        training_args.device,
    )


def made_up(count: int, seed: int) -> Dataset:
    """Sentences about a kitchen, a harbour and a garden."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        label = draw.choice(list(THINGS))
        rows.append(
            {"text": f"{draw.choice(THINGS[label])} {draw.choice(REMARKS)}", "label": label}
        )
    return Dataset.from_list(rows)


def read_data(data_args: DataArguments) -> DatasetDict:
    """Return the files that were given, or else made-up sentences."""
    files = {
        "train": data_args.train_file,
        "validation": data_args.validation_file,
        "test": data_args.test_file,
    }
    files = {split: name for split, name in files.items() if name}
    if not files:
        return DatasetDict(train=made_up(48, 1), validation=made_up(18, 2), test=made_up(9, 3))
    kind = "csv" if next(iter(files.values())).endswith(".csv") else "json"
    return load_dataset(kind, data_files=files)


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Pieces of words, learnt from the texts."""
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=120, special_tokens=special)
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = dict(
        zip(
            ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"),
            special,
            strict=True,
        )
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **names)


def main() -> None:
    """Train, evaluate and predict, as the options say."""
    model_args, data_args, training_args = parse_arguments()
    set_up_logging(training_args)
    logger.info("arguments: %s", training_args)

    last_checkpoint = None
    if training_args.do_train and os.path.isdir(training_args.output_dir):
        last_checkpoint = get_last_checkpoint(training_args.output_dir)
        if last_checkpoint is not None and training_args.resume_from_checkpoint is None:
            logger.info(
                "going on from %s; choose another --output_dir to begin anew", last_checkpoint
            )

    set_seed(training_args.seed)
    data = read_data(data_args)
    labels = sorted(set(data["train" if "train" in data else "validation"]["label"]))
    names = {
        "num_labels": len(labels),
        "id2label": dict(enumerate(map(str, labels))),
        "label2id": {str(label): position for position, label in enumerate(labels)},
    }
    if model_args.model_name_or_path:
        tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path)
        config = AutoConfig.from_pretrained(model_args.model_name_or_path, **names)
        model = AutoModelForSequenceClassification.from_pretrained(
            model_args.model_name_or_path, config=config
        )
    else:
        tokenizer = train_tokenizer(data["train"]["text"])
        config = AutoConfig.for_model(
            "bert",
            vocab_size=len(tokenizer),
            hidden_size=model_args.hidden_size,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=2 * model_args.hidden_size,
            max_position_embeddings=64,
            pad_token_id=tokenizer.pad_token_id,
            **names,
        )
        model = AutoModelForSequenceClassification.from_config(config)

    def prepare(rows):
        encoding = tokenizer(rows["text"], truncation=True, max_length=data_args.max_seq_length)
        if "label" in rows:
            encoding["labels"] = [labels.index(label) for label in rows["label"]]
        return encoding

    with training_args.main_process_first(desc="making tokens of texts"):
        prepared = {
            split: rows.map(
                prepare,
                batched=True,
                remove_columns=rows.column_names,
                desc=f"making tokens: {split}",
            )
            for split, rows in data.items()
        }
    if data_args.max_train_samples is not None:
        number_of_samples = min(data_args.max_train_samples, len(prepared["train"]))
        prepared["train"] = prepared["train"].select(range(number_of_samples))

    def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
        scores = (
            prediction.predictions[0]
            if isinstance(prediction.predictions, tuple)
            else prediction.predictions
        )
        right = scores.argmax(axis=-1) == prediction.label_ids
        each = [
            right[prediction.label_ids == label].mean() for label in np.unique(prediction.label_ids)
        ]
        return {"accuracy": float(right.mean()), "balanced_accuracy": float(np.mean(each))}

    multiple = 8 if training_args.fp16 or training_args.bf16 else None
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=prepared["train"] if training_args.do_train else None,
        eval_dataset=prepared["validation"] if training_args.do_eval else None,
        compute_metrics=compute_metrics,
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer, pad_to_multiple_of=multiple),
        callbacks=[EarlyStoppingCallback(data_args.patience)] if data_args.patience else None,
    )

    if training_args.do_train:
        result = trainer.train(
            resume_from_checkpoint=training_args.resume_from_checkpoint or last_checkpoint
        )
        metrics = {**result.metrics, "train_samples": len(prepared["train"])}
        trainer.save_model()
        trainer.log_metrics("train", metrics)
        trainer.save_metrics("train", metrics)
        trainer.save_state()

    if training_args.do_eval:
        metrics = trainer.evaluate(eval_dataset=prepared["validation"])
        metrics["eval_samples"] = len(prepared["validation"])
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)

    if training_args.do_predict:
        unlabelled = prepared["test"].select_columns(["input_ids", "attention_mask"])
        predicted = trainer.predict(unlabelled, metric_key_prefix="predict").predictions.argmax(
            axis=-1
        )
        if trainer.is_world_process_zero():
            with open(
                os.path.join(training_args.output_dir, "predict_results.txt"),
                "w",
                encoding="utf-8",
            ) as out:
                out.writelines(
                    f"{labels[best]}\t{text}\n"
                    for best, text in zip(predicted, data["test"]["text"], strict=True)
                )

    card = {
        "finetuned_from": model_args.model_name_or_path,
        "tasks": "text-classification",
        "language": "en",
    }
    if training_args.push_to_hub:
        trainer.push_to_hub(**card)
    else:
        trainer.create_model_card(**card)


if __name__ == "__main__":
    main()
