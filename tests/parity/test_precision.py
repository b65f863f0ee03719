"""Mixed precision: rounded in the same places, scaled and skipped as in the reference, bit for
bit on the CPU.
"""

import math

import pytest
import torch
from torch import nn

from helpers.comparing.bit_differences import differences
from helpers.parity.harness import Case, assert_parity, assert_same, build, run
from helpers.parity.parity_datasets import class_data, point_data, sentence_data
from helpers.parity.parity_models import Classifier, TokenModel, bert, gpt2, t5


def scaling_on_the_cpu(base):
    """The reference trains in float32 when fp16 is asked for on a CPU; here it does there what
    it does on a GPU.
    """
    if base.__module__.startswith("lightrainer"):
        return base

    class Scaling(base):
        def create_accelerator_and_postprocess(self):
            super().create_accelerator_and_postprocess()
            if self.args.fp16:
                self.accelerator.native_amp, self.accelerator.scaler = (
                    True,
                    torch.amp.GradScaler("cpu"),
                )

    return Scaling


class Steep(Classifier):
    """Its scaled gradients are infinite in float16 until the scale has fallen to a few hundred."""

    def forward(self, x, labels=None):
        outputs = super().forward(x, labels)
        return {**outputs, "loss": outputs["loss"] * 200.0} if "loss" in outputs else outputs


class Shared(nn.Module):
    """Uses one weight twice: cast once or twice, its gradient is another one."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x, labels=None):
        logits = self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def loss_of_the_user(outputs, labels, num_items_in_batch=None):
    """Has its own matrix product outside of the model, which mixed precision must not round."""
    logits = outputs["logits"] if isinstance(outputs, dict) else outputs[1]
    assert logits.dtype == torch.float32
    mixed = logits @ torch.linspace(0.5, 1.5, 9, device=logits.device).reshape(3, 3)
    assert mixed.dtype == torch.float32
    return nn.functional.cross_entropy(mixed, labels)


WINDOWS = {"gradient_accumulation_steps": 4}  # 6 batches: a window of 4 and one of 2
CASES = {
    "plain module": Case(Classifier, point_data),
    "windows with a remainder": Case(Classifier, point_data, {**WINDOWS, "eval_strategy": "epoch"}),
    "tied weights": Case(gpt2, sentence_data, {**WINDOWS, "eval_strategy": "epoch"}),
    "encoder and decoder": Case(
        t5, sentence_data, {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 2}
    ),
    "a weight that is used twice": Case(
        Shared, point_data, {"max_grad_norm": 0.1, "learning_rate": 0.1}
    ),
    "clipped": Case(
        TokenModel, sentence_data, {"max_grad_norm": 0.05, "gradient_accumulation_steps": 2}
    ),
    "not clipped": Case(Classifier, point_data, {"max_grad_norm": 0.0}),
    "smoothed labels": Case(
        bert, class_data, {"label_smoothing_factor": 0.2, "eval_strategy": "epoch"}
    ),
    "smoothed labels of tokens": Case(
        gpt2, sentence_data, {"label_smoothing_factor": 0.2, "max_steps": 5}
    ),
    "a loss of the user": Case(
        Classifier, point_data, extras=lambda api: {"compute_loss_func": loss_of_the_user}
    ),
    "an optimizer that asks each time": Case(
        Classifier, point_data, {"optim": "adamw_torch", "eval_on_start": True}
    ),
    "stochastic gradient descent": Case(
        Classifier, point_data, {"optim": "sgd", "optim_args": "momentum=0.9"}
    ),
    "compiled": Case(
        Classifier, point_data, {"torch_compile": True, "torch_compile_backend": "eager"}
    ),
    "gradient checkpointing": Case(
        gpt2, sentence_data, {"gradient_checkpointing": True, "max_steps": 4}
    ),
    "noise on embeddings": Case(gpt2, sentence_data, {"neftune_noise_alpha": 3.0, "max_steps": 4}),
}


# From 5.23 on `activation_checkpointing` is the name.
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("name", CASES)
def test_mixed_precision(reference, ours, tmp_path, name, precision):
    """Losses, norms, rates, evaluations, predictions and weights."""
    torch._dynamo.reset()
    case = CASES[name]
    case = case.but(
        subclass=scaling_on_the_cpu,
        arguments={precision: True},
        test=lambda: case.data()["eval_dataset"],
    )
    _, actual = assert_parity(reference, ours, case, tmp_path)
    assert {tensor.dtype for tensor in actual.weights.values()} <= {torch.float32, torch.bool}


def norms(of):
    return [entry["grad_norm"] for entry in of.history if "grad_norm" in entry]


def rates(of):
    return [entry["learning_rate"] for entry in of.history if "learning_rate" in entry]


@pytest.mark.parametrize("optimizer", ["adamw_torch", "adamw_torch_fused", "sgd"])
@pytest.mark.parametrize("clipping", [1.0, 0.0])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_steps_with_infinite_gradients(
    reference, ours, tmp_path, optimizer, clipping, accumulation
):
    """The first ones are left out and counted; the scale falls until they are finite."""
    arguments = {
        "fp16": True,
        "optim": optimizer,
        "max_grad_norm": clipping,
        "num_train_epochs": 5,
    }
    arguments["gradient_accumulation_steps"] = accumulation
    case = Case(Steep, point_data, arguments, subclass=scaling_on_the_cpu)
    expected, actual = assert_parity(reference, ours, case, tmp_path)
    assert (
        expected.trainer.accelerator.scaler.state_dict()
        == actual.trainer.accelerator.scaler.state_dict()
    )
    finite = [math.isfinite(norm) for norm in norms(actual)]
    skipped = finite.index(True)
    assert skipped > 2
    assert actual.state["global_step"] == len(finite)
    assert actual.trainer.accelerator.scaler.get_scale() == 65536.0 * 0.5 ** finite.count(False)
    # called each time, fused AdamW checks the gradients itself; the schedule continues
    if optimizer == "adamw_torch_fused":
        assert rates(actual)[1] < rates(actual)[0]
    else:
        assert rates(actual)[: skipped + 1] == [rates(actual)[0]] * (skipped + 1)
        assert rates(actual)[skipped + 1] < rates(actual)[skipped]


@pytest.mark.parametrize(
    ("argument", "full"), [("bf16", "bf16_full_eval"), ("fp16", "fp16_full_eval")]
)
def test_precision_full_evaluation_after_mixed_precision(reference, ours, tmp_path, argument, full):
    """Evaluations in between are mixed; after the training the weights themselves are cast."""
    case = Case(Classifier, point_data, {argument: True, full: True, "eval_strategy": "epoch"})
    case = case.but(subclass=scaling_on_the_cpu, test=lambda: point_data()["eval_dataset"])
    _, actual = assert_parity(reference, ours, case, tmp_path)
    assert {tensor.dtype for tensor in actual.weights.values()} == {torch.float32}
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}[argument]
    assert {parameter.dtype for parameter in actual.trainer.model.parameters()} == {half}


def evaluated_alone(api, folder, **arguments):
    trainer = build(
        api, Case(Classifier, point_data, arguments, subclass=scaling_on_the_cpu), folder
    )
    return (
        trainer.evaluate()["eval_loss"],
        trainer.predict(point_data()["eval_dataset"]).predictions,
    )


@pytest.mark.parametrize("argument", ["bf16", "fp16"])
def test_precision_evaluation_without_a_training(reference, ours, tmp_path, argument):
    expected, actual = (
        evaluated_alone(api, tmp_path, **{argument: True}) for api in (reference, ours)
    )
    assert not differences(expected, actual)
    assert differences(evaluated_alone(ours, tmp_path), actual)


def test_precision_of_the_model_after_a_training(reference, ours, tmp_path):
    """The reference leaves its autocast on the model; here a script asks for it."""
    case = Case(Classifier, point_data, {"bf16": True})
    x = torch.stack([row["x"] for row in point_data()["eval_dataset"]])

    @torch.no_grad()
    def logits_of(model):
        return model.eval()(x)["logits"]

    expected = logits_of(run(reference, case, tmp_path / "reference").trainer.model)
    trainer = run(ours, case, tmp_path / "ours").trainer
    plain = Classifier()
    plain.load_state_dict(trainer.model.state_dict())
    assert torch.equal(logits_of(trainer.model), logits_of(plain))
    assert not torch.equal(logits_of(trainer.model), expected)
    with trainer.accelerator.autocast():
        assert torch.equal(logits_of(trainer.model).float(), expected)


STOPPED = {
    "in the middle of an epoch": ({"save_steps": 4}, 4),
    "while steps are still left out": ({"save_steps": 2}, 2),
    "between windows": (
        {"save_steps": 2, "gradient_accumulation_steps": 2, "num_train_epochs": 4},
        8,
    ),
}


def checkpoints_of(name):
    arguments, step = STOPPED[name]
    options = {"fp16": True, "optim": "adamw_torch", "save_strategy": "steps", **arguments}
    return Case(Steep, point_data, options, subclass=scaling_on_the_cpu), f"checkpoint-{step}"


def resumed(api, case, checkpoint, folder):
    torch.rand(13)
    return run(api, case.but(model_seed=99), folder, resume=str(checkpoint))


@pytest.mark.parametrize("name", STOPPED)
def test_loss_scale_is_kept_on_resumption(ours, tmp_path, name):
    """To the bits of a run that was never stopped; the control begins with the first scale
    again.
    """
    case, checkpoint = checkpoints_of(name)
    straight = run(ours, case, tmp_path / "straight")
    again = resumed(ours, case, straight.folder / checkpoint, tmp_path / "again")
    (straight.folder / checkpoint / "scaler.pt").unlink()
    control = resumed(ours, case, straight.folder / checkpoint, tmp_path / "control")
    for result in (straight, again, control):
        result.history[-1].pop("train_loss")
        result.history = [
            {key: "NaN" if value != value else value for key, value in entry.items()}
            for entry in result.history
        ]
    assert_same(straight, again, ignoring=("output",))
    scales = [
        result.trainer.accelerator.scaler.state_dict() for result in (straight, again, control)
    ]
    assert scales[0] == scales[1]
    assert differences(straight.history, control.history)


@pytest.mark.parametrize("name", STOPPED)
def test_scales_are_exchanged_with_the_reference(reference, ours, tmp_path, name):
    """The same file with the same content, and each resumes what the other one saved."""
    case, checkpoint = checkpoints_of(name)
    expected, actual = assert_parity(reference, ours, case, tmp_path)
    left, right = (
        torch.load(result.folder / checkpoint / "scaler.pt", weights_only=True)
        for result in (expected, actual)
    )
    assert left == right
    assert left["scale"] < 65536.0
    theirs = resumed(reference, case, actual.folder / checkpoint, tmp_path / "theirs")
    own = resumed(ours, case, expected.folder / checkpoint, tmp_path / "own")
    assert_same(theirs, own)
    assert not differences(expected.weights, own.weights)


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", ["adamw_torch", "adamw_torch_fused"])
@pytest.mark.parametrize("model", [Classifier, Steep, Shared])
def test_float16_on_a_gpu(reference, ours, tmp_path, model, optimizer):
    """Against the reference as it is, on the same GPU."""
    arguments = {
        "fp16": True,
        "use_cpu": False,
        "optim": optimizer,
        "eval_strategy": "epoch",
        "num_train_epochs": 4,
    }
    case = Case(model, point_data, {**arguments, "max_grad_norm": 0.5})
    expected, actual = assert_parity(reference, ours, case, tmp_path)
    assert (
        expected.trainer.accelerator.scaler.state_dict()
        == actual.trainer.accelerator.scaler.state_dict()
    )
