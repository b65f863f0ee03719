"""Models of transformers whose files have other names than the model, such as one weight for each
expert: their checkpoints are loaded as `from_pretrained` loads them.
"""

from typing import Any

import pytest
import torch

from helpers.trainer.tiny_experts import mixture_of_experts
from lightrainer import Trainer, TrainerCallback, TrainingArguments


def sentences() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    tokens = [torch.randint(0, 32, (8,), generator=generator) for _ in range(24)]
    return [{"input_ids": ids, "labels": ids} for ids in tokens]


def trainer_of(seed: int, folder: Any, **arguments: Any) -> Trainer:
    args = TrainingArguments(
        str(folder),
        max_steps=6,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        save_steps=2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        **arguments,
    )
    return Trainer(
        mixture_of_experts(seed), args, train_dataset=sentences(), eval_dataset=sentences()[:4]
    )


def weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.state_dict().items()}


def assert_equal(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert actual.keys() == expected.keys()
    assert [name for name in actual if not torch.equal(actual[name], expected[name])] == []


def test_experts_are_resumed_in_a_model_with_other_weights(tmp_path):
    whole = trainer_of(0, tmp_path)
    whole.train()
    resumed = trainer_of(5, tmp_path)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert_equal(weights_of(resumed.model), weights_of(whole.model))


@pytest.mark.parametrize("greater_is_better", [True, False], ids=["first", "last"])
def test_experts_of_the_best_checkpoint_are_loaded(tmp_path, greater_is_better):
    """The loss falls, so that the best checkpoint is the first one or the last one."""
    saved: dict[int, dict[str, torch.Tensor]] = {}

    class Remember(TrainerCallback):
        def on_save(self, args, state, control, model=None, **kwargs):
            saved[state.global_step] = weights_of(model)

    trainer = trainer_of(
        0,
        tmp_path,
        eval_strategy="steps",
        eval_steps=2,
        load_best_model_at_end=True,
        metric_for_best_model="loss",
        greater_is_better=greater_is_better,
    )
    trainer.add_callback(Remember())
    trainer.train()
    best = trainer.state.best_global_step
    assert best == (2 if greater_is_better else 6)
    assert_equal(weights_of(trainer.model), saved[best])
