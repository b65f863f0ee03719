"""Mark the answer to a question in a text, with a Trainer subclass; imports transformers and
nothing of lightrainer.

    python question_answering.py --output_dir out --do_train --do_eval --do_predict
    python -m lightrainer question_answering.py --output_dir out --do_train --do_eval --do_predict

The model scores each token as the first and as the last one of the answer. What that means as text
is worked out after the evaluation, so `AnswerTrainer` overrides `evaluate` and `predict`. Long
texts are read in pieces that overlap.
"""

import json
import logging
import math
import os
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import datasets
import transformers
from datasets import Dataset, DatasetDict, load_dataset
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoConfig,
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    DataCollatorWithPadding,
    EvalPrediction,
    HfArgumentParser,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)
from transformers.trainer_utils import PredictionOutput, get_last_checkpoint, speed_metrics

logger = logging.getLogger(__name__)


@dataclass
class ModelArguments:
    """Arguments about the model."""

    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Go on with this one, if given."}
    )


@dataclass
class DataArguments:
    """Arguments about the data."""

    train_file: str | None = field(
        default=None, metadata={"help": "JSON lines: id, question, context, answer, start."}
    )
    validation_file: str | None = field(
        default=None, metadata={"help": "The same, to evaluate on."}
    )
    max_seq_length: int = field(
        default=32, metadata={"help": "Tokens of question and text in a piece."}
    )
    doc_stride: int = field(default=8, metadata={"help": "Tokens that two pieces share."})
    pad_to_max_length: bool = field(
        default=True, metadata={"help": "Fill up all pieces to the same length."}
    )
    n_best_size: int = field(
        default=5, metadata={"help": "Beginnings and ends that are looked at."}
    )
    max_answer_length: int = field(default=4, metadata={"help": "Tokens of an answer."})


class AnswerTrainer(Trainer):
    """A Trainer that makes answers of scores before it computes metrics.

    Args:
        eval_examples: the questions that the pieces of `eval_dataset` come from.
        post_process_function: makes an `EvalPrediction` of questions, pieces and scores.
    """

    def __init__(
        self,
        *args,
        eval_examples: Dataset | None = None,
        post_process_function: Callable,
        **kwargs,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.eval_examples = eval_examples
        self.post_process_function = post_process_function

    def evaluate(
        self,
        eval_dataset=None,
        eval_examples=None,
        ignore_keys=None,
        metric_key_prefix: str = "eval",
    ):
        """Return the metrics of the answers; also called by `train`."""
        eval_dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        eval_examples = self.eval_examples if eval_examples is None else eval_examples
        output = self._score(
            self.get_eval_dataloader(eval_dataset), "Evaluation", ignore_keys, metric_key_prefix
        )
        metrics = dict(output.metrics)
        if self.args.should_save:  # the first process, which has everything
            answers = self.post_process_function(eval_examples, eval_dataset, output.predictions)
            metrics |= self._prefixed(self.compute_metrics(answers), metric_key_prefix)
        if self.args.should_log:
            self.log(metrics)
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics

    def predict(
        self, predict_dataset, predict_examples, ignore_keys=None, metric_key_prefix: str = "test"
    ):
        """Answers and metrics."""
        output = self._score(
            self.get_test_dataloader(predict_dataset), "Prediction", ignore_keys, metric_key_prefix
        )
        answers = self.post_process_function(
            predict_examples, predict_dataset, output.predictions, metric_key_prefix
        )
        metrics = self._prefixed(self.compute_metrics(answers), metric_key_prefix)
        return PredictionOutput(answers.predictions, answers.label_ids, metrics | output.metrics)

    def _score(self, loader, description: str, ignore_keys, metric_key_prefix: str):
        """Run the loop over all pieces, without metrics: these come later."""
        compute_metrics, self.compute_metrics = self.compute_metrics, None
        begin = time.time()
        try:
            output = self.evaluation_loop(
                loader,
                description=description,
                prediction_loss_only=False,
                ignore_keys=ignore_keys,
                metric_key_prefix=metric_key_prefix,
            )
        finally:
            self.compute_metrics = compute_metrics
        steps = math.ceil(output.num_samples / (self.args.eval_batch_size * self.args.world_size))
        output.metrics.update(
            speed_metrics(metric_key_prefix, begin, num_samples=output.num_samples, num_steps=steps)
        )
        return output

    @staticmethod
    def _prefixed(metrics: dict, prefix: str) -> dict:
        return {
            name if name.startswith(f"{prefix}_") else f"{prefix}_{name}": metrics[name]
            for name in metrics
        }


def made_up(count: int, seed: int) -> Dataset:
    """Make up questions about places where people keep things."""
    draw, rows = random.Random(seed), []
    things, places = (
        ["keys", "letters", "shoes", "maps"],
        [
            "drawer",
            "attic",
            "green box",
            "cellar",
            "blue bag",
        ],
    )
    for number in range(count):
        parts = [(thing, draw.choice(places)) for thing in draw.sample(things, 3)]
        context = "".join(f"the {thing} are in the {place} . " for thing, place in parts)
        thing, place = draw.choice(parts)
        start = context.index(f"the {thing}") + len(f"the {thing} are in the ")
        question = f"where are the {thing} ?"
        rows.append(
            {
                "id": str(number),
                "question": question,
                "context": context,
                "answer": place,
                "start": start,
            }
        )
    return Dataset.from_list(rows)


def read_data(data_args: DataArguments) -> DatasetDict:
    """Return the files that were given, or else made-up questions."""
    files = {"train": data_args.train_file, "validation": data_args.validation_file}
    files = {split: name for split, name in files.items() if name}
    return (
        load_dataset("json", data_files=files)
        if files
        else DatasetDict(train=made_up(40, 1), validation=made_up(16, 2))
    )


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Whole words, as there are few."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=special))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **names)


def best_answers(examples, pieces, scores, data_args: DataArguments) -> dict[str, str]:
    """Return for each question the part of its text that scores best, over all pieces."""
    starts, ends = scores
    pieces_of = defaultdict(list)
    for position, example_id in enumerate(pieces["example_id"]):
        pieces_of[example_id].append(position)
    answers = {}
    for example in examples:
        candidates = []
        for position in pieces_of[example["id"]]:
            offsets = pieces[position]["offset_mapping"]
            for first in starts[position].argsort()[: -data_args.n_best_size - 1 : -1].tolist():
                for last in ends[position].argsort()[: -data_args.n_best_size - 1 : -1].tolist():
                    inside = max(first, last) < len(offsets) and offsets[first] and offsets[last]
                    if inside and first <= last < first + data_args.max_answer_length:
                        score = float(starts[position][first] + ends[position][last])
                        candidates.append(
                            (score, example["context"][offsets[first][0] : offsets[last][1]])
                        )
        answers[example["id"]] = max(candidates, default=(0.0, ""), key=lambda pair: pair[0])[1]
    return answers


def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
    """Answers that are the same, and the overlap of words, both in percent."""
    same, overlaps = [], []
    for answer, expected in zip(prediction.predictions, prediction.label_ids, strict=True):
        same.append(answer["answer"] == expected["answer"])
        words, expected_words = set(answer["answer"].split()), set(expected["answer"].split())
        overlaps.append(2 * len(words & expected_words) / max(1, len(words) + len(expected_words)))
    return {"exact_match": 100 * sum(same) / len(same), "f1": 100 * sum(overlaps) / len(overlaps)}


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
    examples = read_data(data_args)
    if model_args.model_name_or_path:
        tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path)
        model = AutoModelForQuestionAnswering.from_pretrained(model_args.model_name_or_path)
    else:
        tokenizer = train_tokenizer(
            examples["train"]["question"][:] + examples["train"]["context"][:]
        )
        config = AutoConfig.for_model(
            "bert",
            vocab_size=len(tokenizer),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=64,
        )
        model = AutoModelForQuestionAnswering.from_config(config)

    def to_pieces(rows):
        return tokenizer(
            rows["question"],
            rows["context"],
            truncation="only_second",
            max_length=data_args.max_seq_length,
            stride=data_args.doc_stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            padding="max_length" if data_args.pad_to_max_length else False,
        )

    def with_positions(rows):
        pieces = to_pieces(rows)
        pieces["start_positions"], pieces["end_positions"] = [], []
        offsets_of_all = pieces.pop("offset_mapping")
        for number, row in enumerate(pieces.pop("overflow_to_sample_mapping")):
            begin, end = rows["start"][row], rows["start"][row] + len(rows["answer"][row])
            context = [
                (position, offsets_of_all[number][position])
                for position, part in enumerate(pieces.sequence_ids(number))
                if part == 1
            ]
            first = [position for position, (left, _) in context if left == begin]
            last = [position for position, (_, right) in context if right == end]
            # A piece without the answer points to its first token.
            pieces["start_positions"].append(first[0] if first and last else 0)
            pieces["end_positions"].append(last[0] if first and last else 0)
        return pieces

    def with_offsets(rows):
        pieces = to_pieces(rows)
        samples = pieces.pop("overflow_to_sample_mapping")
        pieces["example_id"] = [rows["id"][row] for row in samples]
        for number in range(len(samples)):
            pieces["offset_mapping"][number] = [
                pair if part == 1 else None
                for pair, part in zip(
                    pieces["offset_mapping"][number], pieces.sequence_ids(number), strict=True
                )
            ]
        return pieces

    columns = examples["train"].column_names
    with training_args.main_process_first(desc="cutting texts into pieces"):
        train_pieces = examples["train"].map(with_positions, batched=True, remove_columns=columns)
        eval_pieces = examples["validation"].map(with_offsets, batched=True, remove_columns=columns)

    def post_process(examples, pieces, scores, stage: str = "eval") -> EvalPrediction:
        answers = best_answers(examples, pieces, scores, data_args)
        with open(
            os.path.join(training_args.output_dir, f"{stage}_predictions.json"),
            "w",
            encoding="utf-8",
        ) as out:
            json.dump(answers, out, indent=2)
        return EvalPrediction(
            predictions=[{"id": name, "answer": answer} for name, answer in answers.items()],
            label_ids=[{"id": example["id"], "answer": example["answer"]} for example in examples],
        )

    trainer = AnswerTrainer(
        model=model,
        args=training_args,
        train_dataset=train_pieces if training_args.do_train else None,
        eval_dataset=eval_pieces if training_args.do_eval else None,
        eval_examples=examples["validation"] if training_args.do_eval else None,
        processing_class=tokenizer,
        data_collator=(
            default_data_collator
            if data_args.pad_to_max_length
            else DataCollatorWithPadding(tokenizer)
        ),
        post_process_function=post_process,
        compute_metrics=compute_metrics,
    )

    if training_args.do_train:
        result = trainer.train(
            resume_from_checkpoint=training_args.resume_from_checkpoint or last_checkpoint
        )
        trainer.save_model()
        metrics = {**result.metrics, "train_samples": len(train_pieces)}
        trainer.log_metrics("train", metrics)
        trainer.save_metrics("train", metrics)
        trainer.save_state()

    if training_args.do_eval:
        metrics = trainer.evaluate()
        metrics["eval_samples"] = len(eval_pieces)
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)

    if training_args.do_predict:
        metrics = trainer.predict(
            eval_pieces, examples["validation"], metric_key_prefix="predict"
        ).metrics
        metrics["predict_samples"] = len(eval_pieces)
        trainer.log_metrics("predict", metrics)
        trainer.save_metrics("predict", metrics)

    card = {"finetuned_from": model_args.model_name_or_path, "tasks": "question-answering"}
    if training_args.push_to_hub:
        trainer.push_to_hub(**card)
    else:
        trainer.create_model_card(**card)


if __name__ == "__main__":
    main()
