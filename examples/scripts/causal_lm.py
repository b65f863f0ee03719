"""Train a small GPT to go on with a text; imports transformers and nothing of lightrainer.

    python causal_lm.py --output_dir out --do_train --do_eval
    python -m lightrainer causal_lm.py --output_dir out --do_train --do_eval

Any text file will do (`--train_file book.txt`); without one the numbers from one on are spelt out.
A part of the data is kept for the evaluation, unless `--validation_file` names another file.
"""

import logging
import math
import os
import sys
from dataclasses import dataclass, field
from itertools import chain

import datasets
import torch
import transformers
from datasets import Dataset, DatasetDict, load_dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    HfArgumentParser,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)
from transformers.testing_utils import CaptureLogger
from transformers.trainer_utils import get_last_checkpoint

logger = logging.getLogger(__name__)

ONES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


@dataclass
class ModelArguments:
    """Arguments about the model."""

    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Go on with this one, if given."}
    )
    model_type: str = field(
        default="gpt2", metadata={"help": "Otherwise a new one of this kind.", "choices": ["gpt2"]}
    )
    config_overrides: str = field(
        default="n_embd=32,n_layer=2,n_head=2,n_positions=64",
        metadata={
            "help": "How the new one differs from its kind: name=value, separated by commas."
        },
    )

    def __post_init__(self):
        if self.model_name_or_path and self.config_overrides != type(self).config_overrides:
            raise ValueError(
                "config_overrides are for new models; leave out either these or model_name_or_path."
            )


@dataclass
class DataArguments:
    """Arguments about the data."""

    train_file: str | None = field(default=None, metadata={"help": "Text to learn from."})
    validation_file: str | None = field(default=None, metadata={"help": "Text to evaluate on."})
    validation_split_percentage: int = field(
        default=10, metadata={"help": "So much is kept, if there is none."}
    )
    block_size: int = field(default=16, metadata={"help": "Tokens in a sample."})
    overwrite_cache: bool = field(default=False, metadata={"help": "Prepare the data again."})
    keep_linebreaks: bool = field(default=True, metadata={"help": "Learn where lines end, too."})


def spelt(number: int) -> str:
    """Return a number, digit by digit."""
    return " ".join(ONES[int(digit)] for digit in str(number))


def read_data(data_args: DataArguments) -> DatasetDict:
    """Return the lines of the files, or of made-up text; in two parts."""
    if data_args.train_file:
        files = {"train": data_args.train_file, "validation": data_args.validation_file}
        files = {split: name for split, name in files.items() if name}
        data = load_dataset("text", data_files=files, keep_linebreaks=data_args.keep_linebreaks)
    else:
        lines = [f"{spelt(number)} comes before {spelt(number + 1)}.\n" for number in range(1, 81)]
        data = DatasetDict(train=Dataset.from_dict({"text": lines}))
    if "validation" not in data:
        share = data_args.validation_split_percentage / 100
        parts = data["train"].train_test_split(test_size=share, seed=0)
        data = DatasetDict(train=parts["train"], validation=parts["test"])
    return data


def train_tokenizer(lines: list[str]) -> PreTrainedTokenizerFast:
    """Byte pairs, learnt from the lines."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(lines, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|endoftext|>", eos_token="<|endoftext|>"
    )


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


def likeliest(logits, labels):
    """Keep one token for each position, instead of the scores of all."""
    if isinstance(logits, tuple):  # keys and values of the past may follow
        logits = logits[0]
    return logits.argmax(dim=-1)


def compute_metrics(prediction) -> dict[str, float]:
    """Return the share of tokens that were foreseen by the one before them."""
    foreseen, meant = prediction.predictions[:, :-1], prediction.label_ids[:, 1:]
    return {"accuracy": float((foreseen == meant).mean()), "tokens": int(meant.size)}


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
    checkpoint = training_args.resume_from_checkpoint or last_checkpoint

    set_seed(training_args.seed)
    data = read_data(data_args)
    if model_args.model_name_or_path:
        tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path)
        config = AutoConfig.from_pretrained(model_args.model_name_or_path)
        model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path, config=config)
    else:
        tokenizer = train_tokenizer(data["train"]["text"])
        config = CONFIG_MAPPING[model_args.model_type]()
        config.update_from_string(model_args.config_overrides)
        config.vocab_size = len(tokenizer)
        config.bos_token_id = config.eos_token_id = tokenizer.eos_token_id
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(len(tokenizer))

    tokenizer_logger = transformers.utils.logging.get_logger("transformers.tokenization_utils_base")

    def to_tokens(rows):
        with CaptureLogger(tokenizer_logger) as captured:
            output = tokenizer(rows["text"])
        if "Token indices sequence length is longer than" in captured.out:
            tokenizer_logger.warning("never mind the length: the text is cut into blocks")
        return output

    def to_blocks(rows):
        joined = {name: list(chain(*rows[name])) for name in rows}
        end = len(joined["input_ids"]) // data_args.block_size * data_args.block_size
        blocks = {
            name: [
                values[start : start + data_args.block_size]
                for start in range(0, end, data_args.block_size)
            ]
            for name, values in joined.items()
        }
        blocks["labels"] = blocks["input_ids"].copy()
        return blocks

    cached = not data_args.overwrite_cache
    with training_args.main_process_first(desc="making tokens"):
        data = data.map(
            to_tokens, batched=True, remove_columns=["text"], load_from_cache_file=cached
        )
    with training_args.main_process_first(desc="making blocks"):
        data = data.map(to_blocks, batched=True, load_from_cache_file=cached)

    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=data["train"] if training_args.do_train else None,
        eval_dataset=data["validation"] if training_args.do_eval else None,
        processing_class=tokenizer,
        data_collator=default_data_collator,
        compute_metrics=compute_metrics if training_args.do_eval else None,
        preprocess_logits_for_metrics=likeliest if training_args.do_eval else None,
    )

    if training_args.do_train:
        result = trainer.train(resume_from_checkpoint=checkpoint)
        trainer.save_model()
        metrics = result.metrics
        metrics["train_samples"] = len(data["train"])
        trainer.log_metrics("train", metrics)
        trainer.save_metrics("train", metrics)
        trainer.save_state()

    if training_args.do_eval:
        metrics = trainer.evaluate()
        metrics["eval_samples"] = len(data["validation"])
        try:
            metrics["perplexity"] = math.exp(metrics["eval_loss"])
        except OverflowError:
            metrics["perplexity"] = math.inf
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)

    card = {
        "finetuned_from": model_args.model_name_or_path,
        "tasks": "text-generation",
        "dataset": "Numbers",
    }
    if training_args.push_to_hub:
        trainer.push_to_hub(**card)
    else:
        trainer.create_model_card(**card)


if __name__ == "__main__":
    main()
