"""Find names in sentences, word by word; imports transformers and nothing of lightrainer.

    python token_classification.py --output_dir out --do_train --do_eval --do_predict
    python -m lightrainer token_classification.py --output_dir out --do_train --do_eval --do_predict

Files of one's own are JSON lines with the columns `tokens` and `tags` (lists of words and of tags
such as `B-PERSON`); without them some sentences are made up. The tokenizer is learnt once, and kept
as `tokenizer.json` in the output folder.
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
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoConfig,
    AutoModelForTokenClassification,
    DataCollatorForTokenClassification,
    HfArgumentParser,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

logger = logging.getLogger(__name__)

PEOPLE = ["Ada Lovelace", "Emmy Noether", "Grace", "Alan", "Sofia Kovalevskaya"]
TOWNS = ["Ghent", "Bad Ischl", "Porto", "Trondheim", "New Ulm"]
PATTERNS = [
    "{0} lives in {1}",
    "in {1} they know {0} well",
    "yesterday {0} came from {1} by train",
    "{1} is far away",
]


@dataclass
class ModelArguments:
    """Arguments about the model."""

    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Go on with this one, if given."}
    )
    tokenizer_file: str | None = field(
        default=None, metadata={"help": "A tokenizer.json; learnt if there is none."}
    )


@dataclass
class DataArguments:
    """Arguments about the data."""

    train_file: str | None = field(default=None, metadata={"help": "JSON lines to learn from."})
    validation_file: str | None = field(
        default=None, metadata={"help": "JSON lines to evaluate on."}
    )
    test_file: str | None = field(default=None, metadata={"help": "JSON lines to tag."})
    label_all_tokens: bool = field(
        default=False,
        metadata={"help": "Score all tokens of a word, and not its first one alone."},
    )
    return_entity_level_metrics: bool = field(
        default=False, metadata={"help": "Say how well each kind is found."}
    )


def made_up(count: int, seed: int) -> Dataset:
    """Sentences with people and towns."""
    draw, rows = random.Random(seed), []
    for _ in range(count):
        words, tags = [], []
        for part in draw.choice(PATTERNS).split():
            kind = {"{0}": "PERSON", "{1}": "TOWN"}.get(part)
            for position, word in enumerate(
                draw.choice(PEOPLE if kind == "PERSON" else TOWNS).split() if kind else [part]
            ):
                words.append(word)
                tags.append(f"{'I' if position else 'B'}-{kind}" if kind else "O")
        rows.append({"tokens": words, "tags": tags})
    return Dataset.from_list(rows)


def read_data(data_args: DataArguments) -> DatasetDict:
    """Return the files that were given, or else made-up sentences."""
    files = {
        "train": data_args.train_file,
        "validation": data_args.validation_file,
        "test": data_args.test_file,
    }
    files = {split: name for split, name in files.items() if name}
    if files:
        return load_dataset("json", data_files=files)
    return DatasetDict(train=made_up(48, 1), validation=made_up(20, 2), test=made_up(8, 3))


def write_tokenizer(path: str, sentences: list[list[str]]) -> None:
    """Learn pieces of words, and write them down."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    texts = (" ".join(words) for words in sentences)
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=90, special_tokens=special))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    tokenizer.save(path)


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


def entities(tags: list[str]) -> set[tuple[str, int, int]]:
    """Kind, first word and end of every name."""
    entities_in_row, begin = set(), None
    for position, tag in enumerate([*tags, "O"]):
        if begin is not None and tag != f"I-{tags[begin][2:]}":
            entities_in_row.add((tags[begin][2:], begin, position))
            begin = None
        if begin is None and tag != "O":
            begin = position
    return entities_in_row


def scores(meant: set, found: set) -> dict[str, float]:
    """Precision, recall and their harmonic mean."""
    right = len(meant & found)
    return {
        "precision": right / len(found) if found else 0.0,
        "recall": right / len(meant) if meant else 0.0,
        "f1": 2 * right / (len(meant) + len(found)) if meant or found else 0.0,
    }


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
    labels = sorted({tag for split in data.values() for tags in split["tags"] for tag in tags})
    number_of = {label: number for number, label in enumerate(labels)}

    tokenizer_file = model_args.tokenizer_file or os.path.join(
        training_args.output_dir, "tokenizer.json"
    )
    with training_args.main_process_first(desc="learning a tokenizer"):
        if not os.path.exists(tokenizer_file):
            write_tokenizer(tokenizer_file, data["train"]["tokens"])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=tokenizer_file,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=64,
    )

    if model_args.model_name_or_path:
        model = AutoModelForTokenClassification.from_pretrained(model_args.model_name_or_path)
    else:
        config = AutoConfig.for_model(
            "distilbert",
            vocab_size=len(tokenizer),
            dim=32,
            n_layers=2,
            n_heads=2,
            hidden_dim=64,
            max_position_embeddings=64,
            num_labels=len(labels),
        )
        model = AutoModelForTokenClassification.from_config(config)
    # they have no names yet
    if model.config.label2id == PretrainedConfig(num_labels=len(labels)).label2id:
        model.config.label2id = number_of
        model.config.id2label = dict(enumerate(labels))

    def prepare(rows):
        prepared = tokenizer(rows["tokens"], truncation=True, is_split_into_words=True)
        prepared["labels"] = []
        for row, tags in enumerate(rows["tags"]):
            words = prepared.word_ids(batch_index=row)
            counts = [
                word is not None and (data_args.label_all_tokens or word != before)
                for word, before in zip(words, [None, *words], strict=False)
            ]
            prepared["labels"].append(
                [
                    number_of[tags[word]] if counted else -100
                    for word, counted in zip(words, counts, strict=True)
                ]
            )
        return prepared

    with training_args.main_process_first(desc="making tokens of words"):
        data = data.map(prepare, batched=True, desc="making tokens of words")

    def tags_of(numbers, label_ids) -> list[list[str]]:
        return [
            [labels[number] for number, label in zip(row, meant, strict=True) if label != -100]
            for row, meant in zip(numbers, label_ids, strict=True)
        ]

    def compute_metrics(prediction) -> dict[str, float]:
        expected, predicted = set(), set()
        for into, numbers in (
            (expected, prediction.label_ids),
            (predicted, prediction.predictions.argmax(axis=-1)),
        ):
            for sentence, tags in enumerate(tags_of(numbers, prediction.label_ids)):
                into |= {(*entity, sentence) for entity in entities(tags)}
        metrics = scores(expected, predicted)
        if data_args.return_entity_level_metrics:
            for kind in sorted({entity[0] for entity in expected | predicted}):
                of_kind = (
                    {entity for entity in side if entity[0] == kind}
                    for side in (expected, predicted)
                )
                metrics |= {f"{kind}_{name}": value for name, value in scores(*of_kind).items()}
        counted = prediction.label_ids != -100
        metrics["accuracy"] = float(
            np.mean(prediction.predictions.argmax(-1)[counted] == prediction.label_ids[counted])
        )
        return metrics

    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=data["train"] if training_args.do_train else None,
        eval_dataset=data["validation"] if training_args.do_eval else None,
        processing_class=tokenizer,
        data_collator=DataCollatorForTokenClassification(
            tokenizer, pad_to_multiple_of=8 if training_args.fp16 else None
        ),
        compute_metrics=compute_metrics,
    )

    if training_args.do_train:
        result = trainer.train(
            resume_from_checkpoint=training_args.resume_from_checkpoint or last_checkpoint
        )
        trainer.save_model()
        metrics = result.metrics | {"train_samples": len(data["train"])}
        trainer.log_metrics("train", metrics)
        trainer.save_metrics("train", metrics)
        trainer.save_state()

    if training_args.do_eval:
        metrics = trainer.evaluate() | {"eval_samples": len(data["validation"])}
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)

    if training_args.do_predict:
        predictions, label_ids, metrics = trainer.predict(data["test"], metric_key_prefix="predict")
        trainer.log_metrics("predict", metrics)
        trainer.save_metrics("predict", metrics)
        if trainer.is_world_process_zero():
            with open(
                os.path.join(training_args.output_dir, "predictions.txt"), "w", encoding="utf-8"
            ) as out:
                out.writelines(
                    " ".join(tags) + "\n"
                    for tags in tags_of(predictions.argmax(axis=-1), label_ids)
                )

    card = {"finetuned_from": model_args.model_name_or_path, "tasks": "token-classification"}
    if training_args.push_to_hub:
        trainer.push_to_hub(**card)
    else:
        trainer.create_model_card(**card)


if __name__ == "__main__":
    main()
