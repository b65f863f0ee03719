"""The average of the weights."""

import numpy as np
import pytest
import torch
from torch import nn

from helpers.callbacks.small_training import (
    LanguageModel,
    make_trainer,
    same_bits,
    train_small,
    weights,
)
from lightrainer import Trainer, TrainerCallback
from lightrainer.callbacks import EMACallback, TrainerControl, TrainerState
from lightrainer.callbacks.ema import evaluated_averages


class Follows(TrainerCallback):
    """Computes the average by the formula, in float64, and notes what an evaluation should see."""

    def __init__(self, decay, warmup=True):
        self.decay, self.warmup = decay, warmup
        self.updates = 0

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.average = {name: weight.detach().double() for name, weight in model.named_parameters()}

    def on_step_end(self, args, state, control, model=None, **kwargs):
        n, self.updates = self.updates, self.updates + 1
        decay = min(self.decay, (1 + n) / (10 + n)) if self.warmup else self.decay
        for name, weight in model.named_parameters():
            self.average[name] = decay * self.average[name] + (1 - decay) * weight.detach().double()


@pytest.mark.parametrize("options", [{"decay": 0.9}, {"decay": 0.5, "warmup": False}], ids=str)
def test_ema_average_equals_the_formula(tmp_path, options):
    ema = EMACallback(**options)
    follows = Follows(options["decay"], options.get("warmup", True))
    trainer = train_small(tmp_path, [ema, follows])
    assert ema.updates == follows.updates == 16
    for name, weight in trainer.model.named_parameters():
        torch.testing.assert_close(
            ema.averages[name].double(), follows.average[name], rtol=1e-5, atol=1e-6
        )
        assert torch.equal(weight, ema.averages[name])  # the model has it at the end


def evaluations(trainer):
    return {
        entry["step"]: entry["eval_loss"]
        for entry in trainer.state.log_history
        if "eval_loss" in entry
    }


def test_evaluations_are_those_of_the_average(tmp_path):
    """The loss of an evaluation in the training is that of a model with the average of that
    moment.
    """

    class Keeps(TrainerCallback):
        at = {}

        def on_evaluate(self, args, state, control, **kwargs):
            self.at[state.global_step] = {
                name: average.clone() for name, average in ema.averages.items()
            }

    changes = {"eval_strategy": "steps", "eval_steps": 4}
    ema, keeps = EMACallback(0.9), Keeps()
    averaged = evaluations(train_small(tmp_path, [ema, keeps], **changes))
    plain = evaluations(train_small(tmp_path, **changes))
    assert averaged.keys() == plain.keys() == {4, 8, 12, 16}
    for step, average in keeps.at.items():
        other = make_trainer(tmp_path)
        other.model.load_state_dict(average, strict=False)
        assert other.evaluate()["eval_loss"] == averaged[step] != plain[step]


class CallsParts(Trainer):
    """Computes the loss without a call of the model itself, as `generate` of many models does."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model.forward(**inputs)
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]


def test_evaluations_that_call_parts_of_the_model_use_the_average(tmp_path):
    changes = {"eval_strategy": "steps", "eval_steps": 4}
    results = [
        evaluations(train_small(tmp_path, [EMACallback(0.9)], kind=kind, **changes))
        for kind in (Trainer, CallsParts)
    ]
    assert results[0] == results[1]


def test_forward_pass_in_training_mode_within_an_evaluation(tmp_path):
    """It does not end the use of the average."""
    model, ema = nn.Linear(2, 2), EMACallback(0.5)
    ema.on_train_begin(None, TrainerState(), TrainerControl(), model=model)
    average = model.weight.detach().clone()
    with torch.no_grad():
        model.weight += 1
    with evaluated_averages([ema]):
        model.train()(torch.ones(1, 2))
        model.eval()(torch.ones(1, 2))
        assert torch.equal(model.weight, average)
    assert torch.equal(model.weight, average + 1)


def test_two_averages_leave_the_training_unchanged(tmp_path):
    class Keeps(TrainerCallback):
        def on_train_end(self, args, state, control, model=None, **kwargs):
            self.weights = {
                name: parameter.detach().clone() for name, parameter in model.named_parameters()
            }

    class Slower(EMACallback):
        pass

    changes = {"eval_strategy": "steps", "eval_steps": 4}
    alone, beside = Keeps(), Keeps()
    train_small(tmp_path, [alone], **changes)
    train_small(tmp_path, [beside, EMACallback(0.5), Slower(0.9)], **changes)
    for name, weight in alone.weights.items():
        assert torch.equal(beside.weights[name], weight)


class Unfreezes(TrainerCallback):
    """Trains the embedding from the sixth step on."""

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        model.embedding.requires_grad_(False)

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        model.embedding.requires_grad_(state.global_step >= 5)


def trained_with_unfrozen_embedding(folder, callbacks, resume=None):
    """Train all weights by an optimizer that has those of the embedding from the start."""
    model = make_trainer(folder).model
    trainer = make_trainer(folder, [Unfreezes(), *callbacks], model=model, **SAVED)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    trainer.optimizer = optimizer
    trainer.lr_scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def test_ema_average_of_weights_that_a_callback_unfreezes(tmp_path):
    """Their average begins with their values before their first step."""
    ema = EMACallback(0.9)
    follows = Follows(0.9)
    trainer = trained_with_unfrozen_embedding(tmp_path, [ema, follows])
    start = make_trainer(tmp_path).model.embedding.weight
    assert not torch.equal(ema.averages["embedding.weight"], start)
    for name, weight in trainer.model.named_parameters():
        torch.testing.assert_close(
            ema.averages[name].double(), follows.average[name], rtol=1e-5, atol=1e-6
        )
        assert torch.equal(weight, ema.averages[name])


@pytest.mark.parametrize("step", [4, 8])
def test_ema_of_unfrozen_weights_resumes_exactly(tmp_path, step):
    whole = EMACallback(0.9)
    resumed = EMACallback(0.9)
    trained_with_unfrozen_embedding(tmp_path, [whole])
    checkpoint = str(tmp_path / f"checkpoint-{step}")
    trained_with_unfrozen_embedding(tmp_path, [resumed], resume=checkpoint)
    assert resumed.updates == whole.updates == 16
    assert same_bits(resumed.averages, whole.averages)


SAVED = {"save_strategy": "steps", "save_steps": 4, "eval_strategy": "steps", "eval_steps": 4}


def test_ema_resumption_is_exact(tmp_path, caplog):
    """The weights in a checkpoint are those that are trained, also where an evaluation has just
    been.
    """
    whole, again = EMACallback(0.9), EMACallback(0.9)
    train_small(tmp_path / "with", [whole], **SAVED)
    train_small(tmp_path / "without", **SAVED)
    left, right = (
        (tmp_path / name / "checkpoint-8/model.safetensors").read_bytes()
        for name in ("with", "without")
    )
    assert left == right
    train_small(
        tmp_path / "with", [again], resume=str(tmp_path / "with" / "checkpoint-12"), **SAVED
    )
    assert again.updates == whole.updates == 16
    assert same_bits(again.averages, whole.averages)
    assert "has no average" not in caplog.text
    train_small(
        tmp_path / "without",
        [EMACallback(0.9)],
        resume=str(tmp_path / "without" / "checkpoint-12"),
        **SAVED,
    )
    assert "step 12 has no average" in caplog.text


class SavesWithinAnEvaluation(TrainerCallback):
    """Saves twice in the evaluation after step 6: a checkpoint, and the model alone."""

    trainer: Trainer

    def on_prediction_step(self, args, state, control, **kwargs):
        if state.global_step == 6 and not (self.folder / "alone").exists():
            self.trainer._save_checkpoint(self.trainer.model, trial=None)
            self.trainer.save_model(self.folder / "alone")

    def __init__(self, folder):
        self.folder = folder


def test_ema_files_saved_within_an_evaluation_hold_the_trained_weights(tmp_path):
    changes = {**SAVED, "save_steps": 6, "eval_steps": 6}
    saves = SavesWithinAnEvaluation(tmp_path)
    whole = make_trainer(tmp_path / "whole", [EMACallback(0.9), EMACallback(0.5), saves], **changes)
    saves.trainer = whole
    whole.train()
    train_small(tmp_path / "without", **changes)

    expected = (tmp_path / "without/checkpoint-6/model.safetensors").read_bytes()
    assert (tmp_path / "alone/model.safetensors").read_bytes() == expected
    assert (tmp_path / "whole/checkpoint-6/model.safetensors").read_bytes() == expected
    checkpoint = str(tmp_path / "whole/checkpoint-6")
    resumed = train_small(
        tmp_path / "again", [EMACallback(0.9), EMACallback(0.5)], resume=checkpoint, **changes
    )
    assert same_bits(weights(resumed), weights(whole))


def test_ema_of_a_large_model_is_written_in_the_background(tmp_path):
    """The average in the checkpoint is that of its step all the same."""
    states = []
    for limit in (1, None):
        trainer = make_trainer(tmp_path, [EMACallback(0.9)], save_strategy="steps", save_steps=4)
        trainer.background_checkpoints = limit
        trainer.train()
        path = tmp_path / "checkpoint-4" / "callback_states.pt"
        states.append(torch.load(path, weights_only=True)["EMACallback"][0]["averages"])
    assert same_bits(*states)


def test_ema_state_of_another_model_is_refused():
    """And frozen weights have none."""
    callback = EMACallback()
    callback.load_state_dict({"updates": 3, "averages": {"other.weight": torch.ones(2)}})
    with pytest.raises(ValueError, match="differ in"):
        callback.on_train_begin(
            None, TrainerState(global_step=3), TrainerControl(), model=LanguageModel()
        )
    model, frozen = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), EMACallback()
    model[0].requires_grad_(False)
    frozen.on_train_begin(None, TrainerState(), TrainerControl(), model=model)
    assert set(frozen.averages) == {"1.weight", "1.bias"}


def test_ema_best_model_has_its_average(tmp_path):
    """At the end the model has the average of the best checkpoint, not the last one."""
    # so that the first one is the best
    worst = {"metric_for_best_model": "loss", "greater_is_better": True}
    trainer = train_small(
        tmp_path, [EMACallback(0.9)], load_best_model_at_end=True, **worst, **SAVED
    )
    losses = evaluations(trainer)
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-4")
    assert trainer.evaluate()["eval_loss"] == losses[4] != losses[16]


def test_ema_best_average_is_read_beside_states_of_numpy(tmp_path):
    """Another callback may keep a number of NumPy, which resumed trainings read, too."""

    class Counts(TrainerCallback):
        def state_dict(self):
            return {"count": np.float64(3)}

        def load_state_dict(self, state_dict):
            pass

    worst = {"metric_for_best_model": "loss", "greater_is_better": True}
    callbacks = [EMACallback(0.9), Counts()]
    trainer = train_small(tmp_path, callbacks, load_best_model_at_end=True, **worst, **SAVED)
    losses = evaluations(trainer)
    assert trainer.evaluate()["eval_loss"] == losses[4] != losses[16]


def test_ema_can_be_applied_for_a_while(tmp_path):
    ema = EMACallback(0.9)
    trainer = train_small(tmp_path, [ema])
    with torch.no_grad():
        for weight in trainer.model.parameters():
            weight += 1
    before = weights(trainer)
    with ema.applied_to(trainer.model):
        assert same_bits(
            {name: parameter.detach() for name, parameter in trainer.model.named_parameters()},
            ema.averages,
        )
    assert same_bits(before, weights(trainer))


def test_weights_of_few_digits_are_averaged_in_more():
    """An average in bfloat16 would not move at all."""
    model, ema, state = (
        nn.Linear(4, 4).bfloat16(),
        EMACallback(0.999, warmup=False),
        TrainerState(),
    )
    ema.on_train_begin(None, state, TrainerControl(), model=model)
    start = model.weight.detach().float().clone()
    with torch.no_grad():
        model.weight += 1
    state.global_step = 1
    ema.on_step_end(None, state, TrainerControl())
    assert ema.averages["weight"].dtype is torch.float32
    moved = ema.averages["weight"] - start
    torch.testing.assert_close(
        moved, 0.001 * (model.weight.detach().float() - start), rtol=1e-3, atol=1e-7
    )
    model.eval()
    product = model(torch.eye(4).bfloat16()) - model.bias
    assert model.weight.dtype is torch.bfloat16
    # it was the average that it multiplied with
    assert not torch.allclose(product.T, model.weight, atol=0.1)
    torch.testing.assert_close(product.T.float(), start, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_ema_failed_evaluation_restores_the_trained_weights(error):
    """When the training is closed after Ctrl-C, for which torch calls no hook."""

    class Fails(nn.Linear):
        def forward(self, x):
            raise error("out of order")

    model, ema, state = Fails(2, 2), EMACallback(0.5), TrainerState()
    ema.on_train_begin(None, state, TrainerControl(), model=model)
    with torch.no_grad():
        model.weight += 1
    before = model.weight.detach().clone()
    with pytest.raises(error, match="out of order"):
        model.eval()(torch.ones(1, 2))
    ema.close()
    assert torch.equal(model.weight, before)


def test_parameters_out_of_range_and_sharded_models_are_refused():
    with pytest.raises(ValueError, match=r"decay is 1\.0"):
        EMACallback(1.0)
    model = nn.Linear(1, 1)
    model.weight.full_tensor = None  # what a weight under FSDP has
    with pytest.raises(ValueError, match="weight, which is sharded"):
        EMACallback().on_train_begin(None, TrainerState(), TrainerControl(), model=model)
