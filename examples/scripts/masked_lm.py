"""Train a small model to fill in words that are left out; imports transformers and nothing of
lightrainer.

    python masked_lm.py --output_dir out --do_train --do_eval
    python -m lightrainer masked_lm.py --output_dir out --do_train --do_eval

Reads text files line by line (`--train_file`, `--validation_file`), or makes some lines up.
"""

import logging
import math
import os
import random
import sys
from dataclasses import dataclass, field

import datasets
import transformers
from datasets import Dataset, DatasetDict, load_dataset
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    HfArgumentParser,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

logger = logging.getLogger(__name__)


@dataclass
class ModelArguments:
    """Arguments about the model."""

    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Go on with this one, if given."}
    )
    model_type: str = field(
        default="roberta", metadata={"help": "Otherwise a new one of this kind."}
    )


@dataclass
class DataArguments:
    """Arguments about the data."""

    train_file: str | None = field(default=None, metadata={"help": "Lines to learn from."})
    validation_file: str | None = field(default=None, metadata={"help": "Lines to evaluate on."})
    max_seq_length: int = field(
        default=20, metadata={"help": "Longer lines are cut off, in tokens."}
    )
    mlm_probability: float = field(default=0.2, metadata={"help": "How many tokens are left out."})
    pad_to_max_length: bool = field(
        default=False, metadata={"help": "Fill up all lines to the same length."}
    )
    preprocessing_num_workers: int | None = field(
        default=None, metadata={"help": "Processes that prepare the data."}
    )


def made_up(count: int, seed: int) -> Dataset:
    """Lines in which one word says much about the others."""
    draw = random.Random(seed)
    animals = {
        "owl": ("night", "hoots"),
        "cock": ("morning", "crows"),
        "frog": ("evening", "croaks"),
    }
    lines = []
    for _ in range(count):
        animal, (time, sound) = draw.choice(list(animals.items()))
        lines.append(
            draw.choice(
                [f"in the {time} the {animal} {sound}", f"the {animal} {sound} every {time}"]
            )
        )
    return Dataset.from_dict({"text": lines})


def read_data(data_args: DataArguments) -> DatasetDict:
    """Return the files that were given, or else made-up lines."""
    if data_args.train_file is None:
        return DatasetDict(train=made_up(64, 1), validation=made_up(24, 2))
    files = {
        "train": data_args.train_file,
        "validation": data_args.validation_file or data_args.train_file,
    }
    return load_dataset("text", data_files=files)


def train_tokenizer(lines: list[str]) -> PreTrainedTokenizerFast:
    """Whole words, as there are few."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(lines, trainers.WordLevelTrainer(special_tokens=special))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = ("bos_token", "pad_token", "eos_token", "unk_token", "mask_token")
    tokens = {**dict(zip(names, special, strict=True)), "cls_token": "<s>", "sep_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=48, **tokens)


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
    return (logits[0] if isinstance(logits, tuple) else logits).argmax(dim=-1)


def compute_metrics(prediction) -> dict[str, float]:
    """Return the share of the tokens left out that were found."""
    left_out = prediction.label_ids != -100
    right = (prediction.predictions == prediction.label_ids)[left_out]
    return {"accuracy": float(right.mean()), "left_out": int(left_out.sum())}


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

    checkpoint = training_args.resume_from_checkpoint
    if checkpoint is None and training_args.do_train and os.path.isdir(training_args.output_dir):
        checkpoint = get_last_checkpoint(training_args.output_dir)
        if checkpoint is not None:
            logger.info("going on from %s", checkpoint)

    set_seed(training_args.seed)
    data = read_data(data_args)
    if model_args.model_name_or_path:
        tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path)
        model = AutoModelForMaskedLM.from_pretrained(model_args.model_name_or_path)
    else:
        tokenizer = train_tokenizer(data["train"]["text"])
        config = AutoConfig.for_model(
            model_args.model_type,
            vocab_size=len(tokenizer),
            hidden_size=24,
            num_hidden_layers=1,
            num_attention_heads=3,
            intermediate_size=48,
            max_position_embeddings=50,
            pad_token_id=tokenizer.pad_token_id,
        )
        model = AutoModelForMaskedLM.from_config(config)

    def to_tokens(rows):
        return tokenizer(
            [line for line in rows["text"] if line and not line.isspace()],
            padding="max_length" if data_args.pad_to_max_length else False,
            truncation=True,
            max_length=data_args.max_seq_length,
            return_special_tokens_mask=True,
        )

    with training_args.main_process_first(desc="making tokens of lines"):
        data = data.map(
            to_tokens,
            batched=True,
            num_proc=data_args.preprocessing_num_workers,
            remove_columns=["text"],
        )

    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=data["train"] if training_args.do_train else None,
        eval_dataset=data["validation"] if training_args.do_eval else None,
        processing_class=tokenizer,
        data_collator=DataCollatorForLanguageModeling(
            tokenizer, mlm_probability=data_args.mlm_probability
        ),
        compute_metrics=compute_metrics if training_args.do_eval else None,
        preprocess_logits_for_metrics=likeliest if training_args.do_eval else None,
    )

    if training_args.do_train:
        metrics = trainer.train(resume_from_checkpoint=checkpoint).metrics
        trainer.save_model()
        metrics["train_samples"] = len(data["train"])
        trainer.log_metrics("train", metrics)
        trainer.save_metrics("train", metrics)
        trainer.save_state()

    if training_args.do_eval:
        metrics = trainer.evaluate()
        metrics["eval_samples"] = len(data["validation"])
        metrics["perplexity"] = math.exp(metrics["eval_loss"])
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)

    card = {
        "finetuned_from": model_args.model_name_or_path,
        "tasks": "fill-mask",
        "tags": ["animals", "tiny"],
    }
    if training_args.push_to_hub:
        trainer.push_to_hub(**card)
    else:
        trainer.create_model_card(**card)


if __name__ == "__main__":
    main()
