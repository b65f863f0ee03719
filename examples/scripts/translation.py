"""Train a small T5 to write numbers in words, and let it write; imports transformers and nothing of
lightrainer.

    python translation.py --output_dir out --do_train --do_eval --do_predict --predict_with_generate
    python -m lightrainer translation.py --output_dir out --do_train --do_eval --do_predict
    --predict_with_generate

Files of one's own are JSON lines with the columns `source` and `target`.
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
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    HfArgumentParser,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

logger = logging.getLogger(__name__)

WORDS = ["null", "eins", "zwei", "drei", "vier"]


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
    test_file: str | None = field(default=None, metadata={"help": "JSON lines to translate."})
    source_prefix: str = field(default="", metadata={"help": "Written before each source."})
    max_source_length: int = field(
        default=16, metadata={"help": "Longer sources are cut off, in tokens."}
    )
    max_target_length: int = field(
        default=8, metadata={"help": "Longer targets are cut off, in tokens."}
    )
    val_max_target_length: int | None = field(
        default=None,
        metadata={"help": "The same when evaluating; also the length up to which is written."},
    )
    num_beams: int | None = field(default=None, metadata={"help": "Beams when writing."})
    ignore_pad_token_for_loss: bool = field(
        default=True, metadata={"help": "Do not learn to fill up."}
    )

    def __post_init__(self):
        if self.val_max_target_length is None:
            self.val_max_target_length = self.max_target_length


def made_up(count: int, seed: int) -> Dataset:
    """Rows of digits, and what they are called in German."""
    draw = random.Random(seed)
    rows = [[draw.randrange(len(WORDS)) for _ in range(draw.randint(2, 5))] for _ in range(count)]
    return Dataset.from_list(
        [
            {"source": " ".join(map(str, row)), "target": " ".join(WORDS[digit] for digit in row)}
            for row in rows
        ]
    )


def read_data(data_args: DataArguments) -> DatasetDict:
    """Return the files that were given, or else made-up pairs."""
    files = {
        "train": data_args.train_file,
        "validation": data_args.validation_file,
        "test": data_args.test_file,
    }
    files = {split: name for split, name in files.items() if name}
    if files:
        return load_dataset("json", data_files=files)
    return DatasetDict(train=made_up(64, 1), validation=made_up(12, 2), test=made_up(6, 3))


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Whole words; each text ends with `</s>`."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = ["<pad>", "</s>", "<unk>"]
    tokenizer.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=special))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=32,
    )


def set_up_logging(training_args: Seq2SeqTrainingArguments) -> None:
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
    """Train, evaluate and translate, as the options say."""
    parser = HfArgumentParser((ModelArguments, DataArguments, Seq2SeqTrainingArguments))
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
        model = AutoModelForSeq2SeqLM.from_pretrained(model_args.model_name_or_path)
    else:
        tokenizer = train_tokenizer(data["train"]["source"][:] + data["train"]["target"][:])
        config = AutoConfig.for_model(
            "t5",
            vocab_size=len(tokenizer),
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=1,
            num_heads=4,
            decoder_start_token_id=tokenizer.pad_token_id,
        )
        model = AutoModelForSeq2SeqLM.from_config(config)
    if model.config.decoder_start_token_id is None:
        raise ValueError(
            "the model has to know the token that each target begins with: decoder_start_token_id"
        )
    if training_args.label_smoothing_factor > 0 and not hasattr(
        model, "prepare_decoder_input_ids_from_labels"
    ):
        logger.warning(
            "labels cannot be smoothed: %s does not shift them itself", type(model).__name__
        )

    def preparing(max_target_length: int):
        def prepare(rows):
            sources = [data_args.source_prefix + text for text in rows["source"]]
            prepared = tokenizer(sources, max_length=data_args.max_source_length, truncation=True)
            targets = tokenizer(
                text_target=rows["target"], max_length=max_target_length, truncation=True
            )
            prepared["labels"] = targets["input_ids"]
            return prepared

        return prepare

    columns = ["source", "target"]
    with training_args.main_process_first(desc="making tokens for the training"):
        prepared = preparing(data_args.max_target_length)
        train_dataset = data["train"].map(prepared, batched=True, remove_columns=columns)
    with training_args.main_process_first(desc="making tokens for the evaluation"):
        prepared = preparing(data_args.val_max_target_length)
        eval_dataset = data["validation"].map(prepared, batched=True, remove_columns=columns)
        predict_dataset = data["test"].map(prepared, batched=True, remove_columns=columns)

    def written(ids) -> list[str]:
        ids = np.where(ids != -100, ids, tokenizer.pad_token_id)
        return [text.strip() for text in tokenizer.batch_decode(ids, skip_special_tokens=True)]

    def compute_metrics(prediction) -> dict[str, float]:
        ids = (
            prediction.predictions[0]
            if isinstance(prediction.predictions, tuple)
            else prediction.predictions
        )
        pairs = [
            (a.split(), b.split())
            for a, b in zip(written(ids), written(prediction.label_ids), strict=True)
        ]
        shared = [
            sum(a == b for a, b in zip(*pair, strict=False)) / max(map(len, pair)) for pair in pairs
        ]
        lengths = np.count_nonzero(ids != tokenizer.pad_token_id, axis=-1)
        return {
            "same_place": round(100 * float(np.mean(shared)), 4),
            "exact": round(100 * float(np.mean([a == b for a, b in pairs])), 4),
            "gen_len": float(np.mean(lengths)),
        }

    label_pad = -100 if data_args.ignore_pad_token_for_loss else tokenizer.pad_token_id
    if training_args.generation_max_length is None:
        training_args.generation_max_length = data_args.val_max_target_length
    if data_args.num_beams is not None:
        training_args.generation_num_beams = data_args.num_beams
    trainer = Seq2SeqTrainer(
        model=model,
        args=training_args,
        train_dataset=train_dataset if training_args.do_train else None,
        eval_dataset=eval_dataset if training_args.do_eval else None,
        processing_class=tokenizer,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model, label_pad_token_id=label_pad),
        compute_metrics=compute_metrics if training_args.predict_with_generate else None,
    )

    if training_args.do_train:
        result = trainer.train(
            resume_from_checkpoint=training_args.resume_from_checkpoint or last_checkpoint
        )
        trainer.save_model()
        metrics = {**result.metrics, "train_samples": len(train_dataset)}
        trainer.log_metrics("train", metrics)
        trainer.save_metrics("train", metrics)
        trainer.save_state()

    results = {}
    if training_args.do_eval:
        metrics = trainer.evaluate(
            max_length=data_args.val_max_target_length, metric_key_prefix="eval"
        )
        metrics["eval_samples"] = len(eval_dataset)
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)
        results |= metrics

    if training_args.do_predict:
        output = trainer.predict(
            predict_dataset, metric_key_prefix="predict", num_beams=data_args.num_beams
        )
        metrics = output.metrics | {"predict_samples": len(predict_dataset)}
        trainer.log_metrics("predict", metrics)
        trainer.save_metrics("predict", metrics)
        if trainer.is_world_process_zero() and training_args.predict_with_generate:
            path = os.path.join(training_args.output_dir, "generated_predictions.txt")
            with open(path, "w", encoding="utf-8") as out:
                out.write("\n".join(written(output.predictions)))

    card = {
        "finetuned_from": model_args.model_name_or_path,
        "tasks": "translation",
        "language": ["de"],
    }
    if training_args.push_to_hub:
        trainer.push_to_hub(**card)
    else:
        trainer.create_model_card(**card)


if __name__ == "__main__":
    main()
