"""Evaluations of data of every length, for `torchrun`: the library is its argument.

    torchrun --nproc_per_node=N evaluation_script.py LIBRARY SCENARIO OUTPUT_FOLDER

Every rank writes what it saw to `OUTPUT_FOLDER/SCENARIO-rank<rank>.json`.
"""

import importlib.util
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from helpers.processes.rank_training import QUIET, Stream, leave_group, points

BATCH = 2
CLASSES = 3
WIDEST = 6


def lengths(processes: int, kind: str = "list") -> list[int]:
    """One sample, fewer than processes, the last round a sample short, full and with one more,
    and several rounds.
    """
    whole = BATCH * processes
    ends = [1, processes - 1, whole - 1, whole, whole + 1, 17]
    return sorted(
        {count for count in (ends[:1] + ends[-2:] if "worker" in kind else ends) if count}
    )


class Tokens(nn.Module):
    """Logits for each token from a table, and which sample it is."""

    main_input_name = "input_ids"

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.table = nn.Embedding(11, CLASSES)

    def forward(self, input_ids, labels=None, index=None):
        logits = self.table(input_ids)
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return {"loss": loss, "logits": logits, "index": index}


class Routed(Tokens):
    """With the logits of a router, as a mixture of experts returns them: a row for each token."""

    def forward(self, input_ids, labels=None, index=None):
        outputs = super().forward(input_ids, labels, index)
        return {**outputs, "router_logits": (outputs["logits"].flatten(0, 1),)}


def samples(count: int) -> list[dict[str, torch.Tensor]]:
    """Tokens of different lengths, of which some have no label; the third sample has none at
    all.
    """
    generator = torch.Generator().manual_seed(3)
    rows = []
    for index in range(count):
        ids = torch.randint(11, (1 + (7 * index) % WIDEST,), generator=generator)
        labels = ids % CLASSES
        labels[torch.rand(len(ids), generator=generator) < 0.4] = -100
        labels[0] = -100 if index == 2 else ids[0] % CLASSES
        rows.append({"input_ids": ids, "labels": labels, "index": torch.tensor(index)})
    return rows


def pad(items: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    batch = {
        name: pad_sequence([item[name] for item in items], batch_first=True, padding_value=filler)
        for name, filler in (("input_ids", 0), ("labels", -100))
    }
    return {**batch, "index": torch.stack([item["index"] for item in items])}


def metrics_of(api: Any, seen: list[Any]) -> dict[str, Any]:
    """The ways of computing metrics that are compared: a function, and torchmetrics objects of
    several kinds.
    """

    def function(prediction):
        seen.append([prediction.predictions[1].tolist(), prediction.label_ids.tolist()])
        return {}

    if api.__name__ == "transformers":
        return {"function": function}
    from torchmetrics import MetricCollection
    from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC

    torch_metrics = {
        "token_loss": api.TokenLoss(),
        "perplexity": api.TokenPerplexity(),
        "plain": lambda predictions, labels: (predictions.argmax(-1) == labels).float().mean(),
        "several": MetricCollection(
            [MulticlassAccuracy(CLASSES, average="micro"), MulticlassAUROC(CLASSES)]
        ),
    }
    return {"function": function, "torchmetrics": torch_metrics}


def outcome(trainer: Any, dataset: Any, metrics: dict[str, Any], seen: list[Any]) -> dict[str, Any]:
    """All results of evaluating and predicting one dataset; of a stream, in fewer
    evaluations.
    """
    seen.clear()
    listed = isinstance(dataset, list)
    trainer.compute_metrics = None if listed else metrics["function"]
    prediction = trainer.predict(dataset)
    results = {
        "logits": prediction.predictions[0].tolist(),
        "index": prediction.predictions[1].tolist(),
        "labels": prediction.label_ids.tolist(),
        "test_loss": prediction.metrics["test_loss"],
    }
    for name in metrics if listed else ["torchmetrics"]:
        trainer.compute_metrics = metrics[name]
        values = trainer.evaluate(dataset)
        results[name] = {
            key: value
            for key, value in values.items()
            if not key.endswith(("_runtime", "_per_second"))
        }
    results["seen"] = list(seen)
    return results


class Normalized(nn.Module):
    """A classifier whose statistics each rank updates from its own batches."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, CLASSES)

    def forward(self, x, labels):
        logits = self.last(self.norm(x))
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def evaluations_in_training(folder: Path) -> dict[str, Any]:
    """Train a `Normalized`, and return the losses of its evaluations, by the name of the checkpoint
    that was saved after each; and the statistics of this rank before them.
    """
    from lightrainer import Trainer, TrainerCallback, TrainingArguments

    statistics = []

    class BeforeEvaluation(TrainerCallback):
        def on_step_end(self, args, state, control, model, **kwargs):
            statistics.append(model.norm.running_mean.tolist())

    arguments = TrainingArguments(
        str(folder / "normalized"),
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH,
        max_steps=3,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        **QUIET,
    )
    trainer = Trainer(
        Normalized(),
        arguments,
        train_dataset=points(16),
        eval_dataset=points(8, seed=2),
        callbacks=[BeforeEvaluation()],
    )
    trainer.train()
    losses = {
        f"checkpoint-{log['step']}": log["eval_loss"]
        for log in trainer.state.log_history
        if "eval_loss" in log
    }
    return {"losses": losses, "statistics": statistics}


def evaluation_of_own_model(folder: Path) -> dict[str, Any]:
    """Evaluate and predict, outside of a training, with weights and statistics that differ between
    the ranks; return this rank's before and after, its loss alone, and those that were reported.
    """
    from lightrainer import Trainer, TrainingArguments

    rank = int(os.environ["RANK"])
    model = Normalized().eval()
    with torch.no_grad():
        model.last.bias.add_(rank * torch.arange(CLASSES))
        model.norm.running_mean.add_(rank)
    before = {name: value.tolist() for name, value in model.state_dict().items()}
    rows = points(int(os.environ["WORLD_SIZE"]) * BATCH, seed=2)
    own_rows = rows[rank * BATCH : (rank + 1) * BATCH]
    batch = {name: torch.stack([row[name] for row in own_rows]) for name in own_rows[0]}
    alone = model(**batch)["loss"].item()

    options = {"per_device_eval_batch_size": BATCH, "ddp_broadcast_buffers": False, **QUIET}
    trainer = Trainer(model, TrainingArguments(str(folder / "own"), **options))
    reported = [
        trainer.evaluate(rows)["eval_loss"],
        trainer.predict(rows).metrics["test_loss"],
    ]
    after = {name: value.tolist() for name, value in model.state_dict().items()}
    return {"before": before, "after": after, "alone": alone, "reported": reported}


def images(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        {"pixel_values": torch.randn(1, 16, 16, generator=generator), "labels": torch.tensor(i % 3)}
        for i in range(count)
    ]


def residual_network() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    sizes = {"num_channels": 1, "embedding_size": 4, "hidden_sizes": [4, 4], "depths": [1, 1]}
    return ResNetForImageClassification(ResNetConfig(layer_type="basic", num_labels=3, **sizes))


def with_adapter() -> nn.Module:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(target_modules=["last"], modules_to_save=["norm"], r=2)
    return get_peft_model(Normalized(), config)


def kinds_in_training(folder: Path) -> dict[str, list[float]]:
    """Train each kind of code with BatchNorm; return the loss of its last evaluation, and that of
    this rank's model alone.
    """
    from lightrainer import Trainer, TrainingArguments

    class Overriding(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
            outputs = model(**inputs)
            return (outputs["loss"], outputs) if return_outputs else outputs["loss"]

    kinds: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "override": (Normalized, Overriding, {}),
        "stream": (Normalized, Trainer, {}),
        "half precision": (Normalized, Trainer, {"bf16": True}),
        "accumulated window": (Normalized, Trainer, {"gradient_accumulation_steps": 2}),
        "head of transformers": (residual_network, Trainer, {}),
        "PEFT": (with_adapter, Trainer, {}),
    }
    losses = {}
    for kind, (make, trainer_class, options) in kinds.items():
        make_samples = images if kind == "head of transformers" else points
        train, evaluated = make_samples(16, 1), make_samples(8, 2)
        sizes = {"per_device_train_batch_size": BATCH, "per_device_eval_batch_size": BATCH}
        arguments = TrainingArguments(
            str(folder / kind),
            max_steps=3,
            eval_strategy="steps",
            eval_steps=1,
            save_strategy="no",
            learning_rate=0.05,
            **sizes,
            **QUIET,
            **options,
        )
        trainer = trainer_class(
            make(),
            arguments,
            train_dataset=Stream(train) if kind == "stream" else train,
            eval_dataset=evaluated,
        )
        trainer.train()
        logged = [log["eval_loss"] for log in trainer.state.log_history if "eval_loss" in log]

        model = trainer.model.eval()
        batches = []
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=arguments.bf16):
            for start in range(0, len(evaluated), BATCH):
                rows = evaluated[start : start + BATCH]
                batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
                batches.append(float(model(**batch)["loss"]))
        losses[kind] = [logged[-1], sum(batches) / len(batches)]
    return losses


def main(library: str, scenario: str, folder: Path) -> None:
    warnings.filterwarnings("ignore")
    api = importlib.import_module(library)
    options = {"per_device_eval_batch_size": BATCH, "ddp_timeout": 60, **QUIET}
    arguments = api.TrainingArguments(str(folder / scenario), **options)
    trainer = api.Trainer(model=Tokens(), args=arguments, data_collator=pad)
    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    batches: list[Any] = []
    metrics = metrics_of(api, batches)
    results = {
        f"{kind} of {count}": outcome(trainer, make(samples(count)), metrics, batches)
        for kind, make in (("list", list), ("stream", Stream))
        for count in lengths(processes, kind)
        if kind == "list" or library == "lightrainer"
    }
    if library == "lightrainer":
        trainer.args.dataloader_num_workers = 1
        for count in lengths(processes, "stream by a worker"):
            results[f"stream by a worker of {count}"] = outcome(
                trainer, Stream(samples(count)), metrics, batches
            )
        routed = api.Trainer(model=Routed(), args=arguments, data_collator=pad)
        routed.args.dataloader_num_workers = 0
        prediction = routed.predict(samples(17)).predictions
        results["routed"] = [prediction[1].tolist(), prediction[2][0].tolist()]
        results["in training"] = evaluations_in_training(folder / scenario)
        results["own model"] = evaluation_of_own_model(folder / scenario)
        if importlib.util.find_spec("transformers") and importlib.util.find_spec("peft"):
            results["kinds in training"] = kinds_in_training(folder / scenario)
    (folder / f"{scenario}-rank{rank}.json").write_text(json.dumps(results))
    del trainer
    leave_group(library)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
