"""Tell drawn shapes apart with a small vision transformer; imports transformers and nothing of
lightrainer.

    python image_classification.py --output_dir out --do_train --do_eval --remove_unused_columns
    False python -m lightrainer image_classification.py --output_dir out --do_train --do_eval
    --remove_unused_columns False

Folders of one's own, with one folder for each class inside, are given with `--train_dir` and
`--validation_dir`. Images are changed at random when they are read, so their column has to stay:
`--remove_unused_columns False`.
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
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, load_dataset
from PIL import Image as Pictures
from PIL import ImageDraw
from transformers import (
    AutoConfig,
    AutoModelForImageClassification,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    ViTImageProcessor,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

logger = logging.getLogger(__name__)

SHAPES = ["ellipse", "rectangle", "line"]


@dataclass
class ModelArguments:
    """Arguments about the model."""

    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Go on with this one, if given."}
    )
    image_size: int = field(
        default=16, metadata={"help": "Width and height that images are brought to, in pixels."}
    )
    ignore_mismatched_sizes: bool = field(
        default=False, metadata={"help": "Another number of classes is all right."}
    )


@dataclass
class DataArguments:
    """Arguments about the data."""

    train_dir: str | None = field(
        default=None, metadata={"help": "Images to learn from, in a folder for each class."}
    )
    validation_dir: str | None = field(default=None, metadata={"help": "Images to evaluate on."})
    train_val_split: float = field(
        default=0.25, metadata={"help": "How much is kept for it, if there are none."}
    )

    def __post_init__(self):
        if self.validation_dir and not self.train_dir:
            raise ValueError("validation_dir needs a train_dir, as the classes are found there.")


def made_up(count: int, seed: int) -> Dataset:
    """Grey shapes on a dark ground."""
    draw, rows = random.Random(seed), []
    for number in range(count):
        picture = Pictures.new("RGB", (24, 24), (draw.randrange(60),) * 3)
        left, top = draw.randrange(8), draw.randrange(8)
        corners = (left, top, left + draw.randint(8, 15), top + draw.randint(8, 15))
        getattr(ImageDraw.Draw(picture), SHAPES[number % 3])(
            corners, fill=(draw.randint(150, 255),) * 3
        )
        rows.append({"image": picture, "label": SHAPES[number % 3]})
    return Dataset.from_list(
        rows, features=Features({"image": Image(), "label": ClassLabel(names=SHAPES)})
    )


def read_data(data_args: DataArguments) -> DatasetDict:
    """Return the folders that were given, or else made-up pictures; in two parts."""
    if data_args.train_dir:
        files = {"train": os.path.join(data_args.train_dir, "**")}
        if data_args.validation_dir:
            files["validation"] = os.path.join(data_args.validation_dir, "**")
        data = load_dataset("imagefolder", data_files=files)
    else:
        data = DatasetDict(train=made_up(48, 1))
    if "validation" not in data:
        parts = data["train"].train_test_split(data_args.train_val_split, seed=0)
        data = DatasetDict(train=parts["train"], validation=parts["test"])
    return data


def collate(rows: list[dict]) -> dict[str, torch.Tensor]:
    """Return a batch of images and their classes."""
    return {
        "pixel_values": torch.stack([row["pixel_values"] for row in rows]),
        "labels": torch.tensor([row["label"] for row in rows]),
    }


def compute_metrics(prediction) -> dict[str, float]:
    """Return the share of images that were told right."""
    return {
        "accuracy": float(
            np.mean(np.argmax(prediction.predictions, axis=1) == prediction.label_ids)
        )
    }


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
    labels = data["train"].features["label"].names
    names = {"label2id": {label: str(number) for number, label in enumerate(labels)}}
    names |= {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "num_labels": len(labels),
    }
    if model_args.model_name_or_path:
        config = AutoConfig.from_pretrained(model_args.model_name_or_path, **names)
        processor = ViTImageProcessor.from_pretrained(model_args.model_name_or_path)
        model = AutoModelForImageClassification.from_pretrained(
            model_args.model_name_or_path,
            config=config,
            ignore_mismatched_sizes=model_args.ignore_mismatched_sizes,
        )
    else:
        size = model_args.image_size
        config = AutoConfig.for_model(
            "vit",
            image_size=size,
            patch_size=size // 4,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            hidden_dropout_prob=0.1,
            **names,
        )
        processor = ViTImageProcessor(size={"height": size, "width": size})
        model = AutoModelForImageClassification.from_config(config)

    def read(images) -> list[torch.Tensor]:
        return list(
            processor([image.convert("RGB") for image in images], return_tensors="pt")[
                "pixel_values"
            ]
        )

    def to_learn_from(rows):
        pixels = [
            torch.flip(image, (2,)) if torch.rand(()) < 0.5 else image
            for image in read(rows["image"])
        ]
        return {"pixel_values": pixels, "label": rows["label"]}

    def to_look_at(rows):
        return {"pixel_values": read(rows["image"]), "label": rows["label"]}

    with training_args.main_process_first(desc="looking at the images"):
        data["train"].set_transform(to_learn_from)
        data["validation"].set_transform(to_look_at)

    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=data["train"] if training_args.do_train else None,
        eval_dataset=data["validation"] if training_args.do_eval else None,
        compute_metrics=compute_metrics,
        processing_class=processor,
        data_collator=collate,
    )

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

    card = {
        "finetuned_from": model_args.model_name_or_path,
        "tasks": "image-classification",
        "dataset": "Shapes",
        "tags": ["image-classification", "vision"],
    }
    if training_args.push_to_hub:
        trainer.push_to_hub(**card)
    else:
        trainer.create_model_card(**card)


if __name__ == "__main__":
    main()
