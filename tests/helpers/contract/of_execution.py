"""Execution of the model: checkpointing, compilation, kernels, noise on embeddings, debugging."""

import sys
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from torch import nn

from helpers.contract.effects import (
    Effect,
    Observation,
    OnCuda,
    Place,
    becomes,
    built,
    differ,
    logged,
    make,
    trained,
)
from helpers.trainer.tiny_trainings import Tiny
from lightrainer import Trainer
from lightrainer.facade.trainer.steps import empty_cache_if_due


class Deep(Tiny):
    """Four layers in a list, as a transformer has its blocks."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4))

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return super().logits(x)


class WithOwnCheckpointing(Tiny):
    """Records the settings of activation checkpointing that it gets."""

    asked: Any = "never"

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: dict[str, Any] | None = None
    ) -> None:
        self.asked = gradient_checkpointing_kwargs


class Words(Tiny):
    """With an embedding, and without dropout: nothing but the noise is random."""

    main_input_name = "x"

    def __init__(self):
        super().__init__(dropout=0.0)
        self.embedding = nn.Embedding(11, 8)

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        return super().forward(
            self.embedding(x.abs().mul(3).long().clamp(max=10)).mean(dim=1), labels
        )


class WithCache(Tiny):
    """With a configuration, as models of `transformers` have one."""

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(use_cache="unset")


def runs_of_linear_layers(trainer: Any) -> int:
    """Count the runs of linear layers in a training."""
    count = 0

    def counted(module: Any, args: Any, output: Any) -> None:
        nonlocal count
        count += 1

    for module in trainer.model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(counted)
    trainer.train()
    return count


def _compilations(given: dict[str, Any], place: Place) -> list[dict[str, Any]]:
    """Return the settings of each `compile` call of a training; nothing is compiled."""
    calls: list[dict[str, Any]] = []
    place.patch.setattr(nn.Module, "compile", lambda module, **how: calls.append(how))
    make(given, place).train()
    return calls


GRAPHS: list[Any] = []


def _keep(graph: Any, example_inputs: Any) -> Any:
    """A backend of torch.compile that leaves the operations alone."""
    GRAPHS.append(graph)
    return graph.forward


def _graphs(given: dict[str, Any], place: Place) -> bool:
    """Return True if a backend of torch.compile gets the model."""
    torch._dynamo.reset()
    if "contract" not in torch.compiler.list_backends(exclude_tags=()):
        torch._dynamo.register_backend(_keep, name="contract")
    GRAPHS.clear()
    make(given, place).train()
    return bool(GRAPHS)


def _emptied(given: dict[str, Any], place: Place) -> list[int]:
    """Return the steps, of four, after which the cache of a GPU is emptied."""
    emptied: list[int] = []
    trainer = make(given, place, kind=OnCuda)
    place.patch.setattr(
        torch.cuda, "empty_cache", lambda: emptied.append(trainer.state.global_step)
    )
    for step in range(1, 5):
        trainer.state.global_step = step
        if trainer.args.torch_empty_cache_steps is not None:
            empty_cache_if_due(trainer.args, step)
    return emptied


def _exchanged(given: dict[str, Any], place: Place) -> list[dict[str, Any]]:
    """Return the settings of each call of Liger, which need not be installed, for a model of
    `transformers`.
    """
    calls: list[dict[str, Any]] = []
    liger = SimpleNamespace(_apply_liger_kernel_to_instance=lambda model, **how: calls.append(how))
    place.patch.setitem(sys.modules, "liger_kernel", SimpleNamespace(transformers=liger))
    place.patch.setitem(sys.modules, "liger_kernel.transformers", liger)
    config = transformers.BertConfig(
        vocab_size=9,
        hidden_size=4,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=4,
        num_labels=3,
    )
    items = [{"input_ids": [index, 1, 2], "labels": index % 3} for index in range(8)]
    make(
        given,
        place,
        model=lambda: transformers.BertForSequenceClassification(config),
        train_dataset=lambda: items,
    ).train()
    return calls


class Hungry(Trainer):
    """Has memory for batches of two samples."""

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        if len(inputs["labels"]) > 2:
            raise torch.cuda.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate what is not there."
            )
        return super().training_step(model, inputs, *args, **kwargs)


def _survives(given: dict[str, Any], place: Place) -> str | int:
    """Return the steps of a training that runs out of memory, or the error that ends it."""
    trainer = make(given, place, trainer=lambda: Hungry)
    try:
        return trainer.train().global_step
    except torch.cuda.OutOfMemoryError as error:
        return type(error).__name__


class Overflowing(Tiny):
    """Its outputs become infinite."""

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.dropout(self.norm(torch.tanh(self.first(x * float("inf"))))))


def _found(given: dict[str, Any], place: Place) -> str:
    """Return the outcome of a training whose numbers overflow."""
    try:
        make(given, place, model=Overflowing).train()
    except ValueError as error:
        return "inf/nan" if "nan" in str(error).lower() else str(error)
    return "no error"


def metrics_of_training(name: str) -> Observation:
    """Return True if there is such a metric."""

    def observe(given: dict[str, Any], place: Place) -> bool:
        return name in make(given, place).train().metrics

    return observe


runs = built(runs_of_linear_layers, model=Deep)
RECOMPUTED = {"activation_checkpointing": True}

ENTRIES: dict[str, Effect] = {
    # 4 steps; 4 layers and the 2 around them.
    "gradient_checkpointing": Effect(True, runs, becomes(4 * 6, 4 * (6 + 4))),
    "activation_checkpointing": Effect(True, runs, becomes(4 * 6, 4 * (6 + 4))),
    "gradient_checkpointing_kwargs": Effect(
        {"use_reentrant": True},
        trained(lambda trainer: trainer.model.asked, model=WithOwnCheckpointing),
        becomes(None, {"use_reentrant": True}),
        {"gradient_checkpointing": True},
    ),
    "activation_checkpointing_kwargs": Effect(
        {"every_n_layers": 2}, runs, becomes(4 * (6 + 4), 4 * (6 + 2)), RECOMPUTED
    ),
    "torch_compile": Effect(
        True, _compilations, becomes([], [{"backend": "inductor", "mode": None}])
    ),
    "torch_compile_mode": Effect(
        "max-autotune",
        _compilations,
        becomes([], [{"backend": "inductor", "mode": "max-autotune"}]),
    ),
    "torch_compile_backend": Effect("contract", _graphs, becomes(False, True)),
    "use_liger_kernel": Effect(True, _exchanged, becomes([], [{}])),
    "liger_kernel_config": Effect(
        {"rope": True}, _exchanged, becomes([{}], [{"rope": True}]), {"use_liger_kernel": True}
    ),
    "use_cache": Effect(
        True,
        built(lambda trainer: trainer.model.config.use_cache, model=WithCache),
        becomes(False, True),
    ),
    "neftune_noise_alpha": Effect(5.0, trained(logged("loss"), model=Words), differ),
    "torch_empty_cache_steps": Effect(2, _emptied, becomes([], [2, 4])),
    "auto_find_batch_size": Effect(True, _survives, becomes("OutOfMemoryError", 8)),
    "debug": Effect("underflow_overflow", _found, becomes("no error", "inf/nan")),
    "skip_memory_metrics": Effect(
        False, metrics_of_training("train_mem_cpu_alloc_delta"), becomes(False, True)
    ),
}
