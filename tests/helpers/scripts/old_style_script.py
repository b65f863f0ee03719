"""A script as it was written for 4.x; what it finds is printed as JSON."""

import json
import sys
import warnings
from dataclasses import dataclass

import torch
from transformers import (
    HfArgumentParser,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainingArguments,
)
from transformers.trainer import ALL_LAYERNORM_LAYERS

found = {"norm_layers": [kind.__name__ for kind in ALL_LAYERNORM_LAYERS]}


@dataclass
class More(TrainingArguments):
    beta: float = 0.5
    ray_scope: str = "mine"


class PassesOn(TrainingArguments):
    def __init__(self, gamma, **kwargs):
        super().__init__(**kwargs)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x, labels):
        return {"loss": ((self.layer(x) - labels) ** 2).mean()}


class Old(Trainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.calls = []

    def compute_loss(self, model, inputs):
        self.calls.append("compute_loss")
        return super().compute_loss(model, inputs)

    def training_step(self, model, inputs):
        self.calls.append("training_step")
        return super().training_step(model, inputs)

    def _get_train_sampler(self):
        self.calls.append("_get_train_sampler")
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def log(self, logs):
        self.calls.append("log")
        super().log(logs)


def caught(act):
    """Return the result, and the texts of the warnings, each with the file that it points to."""
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        try:
            value = act()
        except Exception as error:
            value = f"{type(error).__name__}: {error}"
    old = [warning for warning in records if warning.category is FutureWarning]
    return (
        value,
        [str(warning.message) for warning in old],
        {warning.filename == __file__ for warning in old},
    )


def plain(value):
    return (
        getattr(value, "value", value)
        if not isinstance(value, (list, tuple))
        else [plain(part) for part in value]
    )


def base(**more):
    return {"output_dir": "out", "use_cpu": True, "report_to": "none", **more}


for number, (given, wanted) in enumerate(json.loads(sys.stdin.read())):
    given = {
        key: value
        for key, value in base(**given).items()
        if not (key == "use_cpu" and "no_cuda" in given)
    }
    args, texts, here = caught(lambda given=given: TrainingArguments(**given))
    if isinstance(args, str):
        found[f"case {number}"] = [args, texts, True]
        continue
    config = args.accelerator_config
    values = {
        name: getattr(config, name) if hasattr(config, name) else getattr(args, name, None)
        for name in wanted
    }
    found[f"case {number}"] = [
        {name: plain(value) for name, value in values.items()},
        texts,
        here == {True},
    ]

args = caught(lambda: TrainingArguments(**base(overwrite_output_dir=True)))[0]
found["attributes"] = [
    caught(lambda: args.overwrite_output_dir)[0],
    caught(lambda: args.save_safetensors)[0],
    plain(caught(lambda: args.evaluation_strategy)[0]),
    caught(lambda: setattr(args, "evaluation_strategy", "epoch"))[1],
    args.eval_strategy,
    hasattr(args, "never_heard_of"),
    "overwrite_output_dir" in args.to_dict(),
]
found["subclasses"] = [
    caught(lambda: plain(More(**base(evaluation_strategy="epoch")).eval_strategy))[0],
    caught(lambda: More(**base(ray_scope="all")).ray_scope)[:2],
    caught(lambda: PassesOn(1, output_dir="out", no_cuda=True).use_cpu)[0],
    caught(lambda: Seq2SeqTrainingArguments(**base(per_gpu_eval_batch_size=3)).eval_batch_size)[0],
]
words = (
    "--output_dir out --no_cuda --evaluation-strategy epoch --per_gpu_train_batch_size=3 "
    "--overwrite_output_dir"
)
parser = HfArgumentParser((More,))
parsed, texts, here = caught(
    lambda: parser.parse_args_into_dataclasses([*words.split(), "--warmup_ratio", "0.25"])[0]
)
found["command line"] = [
    plain(parsed.eval_strategy),
    parsed.use_cpu,
    parsed.train_batch_size,
    caught(lambda: parsed.overwrite_output_dir)[0],
    parsed.warmup_steps,
    len(texts),
    "evaluation_strategy" in HfArgumentParser(TrainingArguments).format_help(),
    caught(
        lambda: (
            HfArgumentParser(TrainingArguments)
            .parse_dict({"output_dir": "o", "no_cuda": True})[0]
            .use_cpu
        )
    )[0],
]
data = [{"x": torch.ones(2), "labels": torch.ones(1)}] * 4
arguments = TrainingArguments(**base(max_steps=1, save_strategy="no", disable_tqdm=True))
trainer, texts, here = caught(
    lambda: Old(Model(), arguments, train_dataset=data, tokenizer="a tokenizer")
)
trainer.train()
found["trainer"] = [
    texts,
    list(here),
    trainer.processing_class,
    caught(lambda: trainer.tokenizer)[0],
    sorted(set(trainer.calls)),
    caught(lambda: Trainer(Model(), arguments, tokenizer=1, processing_class=2))[0],
    caught(lambda: Trainer(Model(), arguments, tokeniser=1))[0],
    caught(
        lambda: (
            Seq2SeqTrainer(
                Model(), Seq2SeqTrainingArguments(**base()), tokenizer="t"
            ).processing_class
        )
    )[0],
]
print(json.dumps(found))
