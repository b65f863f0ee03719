"""Code that is different on a GPU, on the CPU too: the numbers of the CPU show that the tests
are right.
"""

import warnings

import lightning
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import default_collate

from helpers.comparing.bit_differences import same_bits
from helpers.processes.beside_one_process import devices
from helpers.processes.rank_training import Classifier, points
from lightrainer import (
    NaNGuardCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from lightrainer.lightning_modules import checkpoint_activations
from lightrainer.lightning_modules.common.seeding import capture_rng_state, restore_rng_state
from lightrainer.lightning_modules.data.iteration import batches_of


@pytest.fixture(params=devices(1))
def device(request):
    return request.param


def make_trainer(folder, device, model=None, callbacks=None, **changes):
    options = {
        "max_steps": 8,
        "per_device_train_batch_size": 4,
        "report_to": "none",
        "disable_tqdm": True,
        **changes,
    }
    args = TrainingArguments(str(folder), use_cpu=device == "cpu", **options)
    data = points(32)
    torch.manual_seed(0)
    return Trainer(
        (model or Classifier)(dropout=0.2),
        args,
        train_dataset=data,
        eval_dataset=data,
        callbacks=callbacks,
    )


def weights(made):
    return [parameter.detach().cpu().clone() for parameter in made.model.parameters()]


def test_device_training_is_on_the_device(tmp_path, device):
    trainer = make_trainer(tmp_path, device, save_strategy="no")
    trainer.train()
    assert {parameter.device.type for parameter in trainer.model.parameters()} == {device}


@pytest.mark.parametrize("optimizer", ["adamw_torch", "adamw_torch_fused"])
def test_device_custom_loop_after_a_training(tmp_path, device, optimizer):
    """Lightning moves the states of optimizers to the CPU at the end of a run."""
    trainer = make_trainer(tmp_path, device, save_strategy="no", optim=optimizer)
    trainer.train()
    before = weights(trainer)
    assert {state["exp_avg"].device.type for state in trainer.optimizer.state.values()} == {device}

    batch = {
        name: values.to(trainer.args.device) for name, values in default_collate(points(4)).items()
    }
    for group in trainer.optimizer.param_groups:
        group["lr"] = 0.1
    trainer.model(**batch)["loss"].backward()
    trainer.optimizer.step()
    assert not same_bits(before, weights(trainer))


@pytest.mark.parametrize("precision", [{}, {"bf16": True}])
def test_device_resumption_with_dropout_is_exact(tmp_path, device, precision):
    options = {"save_steps": 4, "full_determinism": True, **precision}
    through = make_trainer(tmp_path, device, **options)
    through.train()
    resumed = make_trainer(tmp_path, device, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    other_draws = make_trainer(tmp_path, device, **options, seed=7)
    other_draws.train()
    assert same_bits(weights(through), weights(resumed))
    assert not same_bits(weights(through), weights(other_draws))


def test_generators_come_back(device):
    state = capture_rng_state(distributed=False)
    drawn = torch.rand(4, device=device)
    assert not torch.equal(drawn, torch.rand(4, device=device))
    restore_rng_state(state, distributed=False)
    assert torch.equal(drawn, torch.rand(4, device=device))


def test_weights_saved_in_the_background_are_those_of_their_step(tmp_path, device, monkeypatch):
    """A callback with `on_save` has the files written at once; a thread has to write the same
    ones.
    """

    class Listens(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            pass

    monkeypatch.setattr(Trainer, "background_checkpoints", 0, raising=False)
    for name, callbacks in {"at once": [Listens()], "later": []}.items():
        torch.manual_seed(3)
        make_trainer(tmp_path / name, device, callbacks=callbacks, save_steps=2).train()
    for step in (2, 4, 6, 8):
        file = f"checkpoint-{step}/model.safetensors"
        assert same_bits(*(load_file(tmp_path / name / file) for name in ("at once", "later")))


def test_device_batch_that_does_not_fit_is_halved(tmp_path, device):
    class Large(Classifier):
        def forward(self, x, labels):
            if len(x) > 2:
                torch.empty(2**46, dtype=torch.uint8, device=x.device)  # 64 TiB
            return super().forward(x, labels)

    trainer = make_trainer(tmp_path, device, Large, auto_find_batch_size=True, save_strategy="no")
    trainer.train()
    assert trainer.state.train_batch_size == 2


def test_activations_wait_in_main_memory(device):
    torch.manual_seed(0)
    x = torch.randn(4, 8, device=device)
    gradients = []
    for offload in (None, True):
        torch.manual_seed(1)
        model = nn.Module()
        model.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(2)
        ).to(device)
        if offload:
            checkpoint_activations(model, offload=True)
        model.layers[1](model.layers[0](x)).sum().backward()
        gradients.append([parameter.grad.cpu() for parameter in model.parameters()])
    assert same_bits(*gradients)


def test_dropout_is_drawn_again_alike_for_keyword_arguments(device):
    """Activation checkpointing of a model whose forward pass gets all of its tensors by name."""
    gradients = []
    for is_checkpointed in (False, True):
        torch.manual_seed(0)
        model = Classifier(dropout=0.5).to(device)
        if is_checkpointed:
            checkpoint_activations(model)
        batch = {name: values.to(device) for name, values in default_collate(points(4)).items()}
        torch.manual_seed(1)
        for _ in range(2):
            model(**batch)["loss"].backward()
        gradients.append([parameter.grad.cpu() for parameter in model.parameters()])
    assert same_bits(*gradients)


def test_nan_is_found_on_the_device(tmp_path, device):
    class Broken(Classifier):
        def forward(self, x, labels):
            return {"loss": super().forward(x, labels)["loss"] * float("nan")}

    with pytest.raises(FloatingPointError):
        make_trainer(
            tmp_path, device, Broken, [NaNGuardCallback("raise")], save_strategy="no"
        ).train()


def test_predictions_come_from_the_device(tmp_path, device):
    trainer = make_trainer(
        tmp_path, device, eval_accumulation_steps=2, per_device_eval_batch_size=4
    )
    output = trainer.predict(points(32))
    assert output.predictions.shape == (32, 3)
    with torch.no_grad():
        batch = {
            name: values.to(trainer.args.device)
            for name, values in default_collate(points(32)).items()
        }
        expected = trainer.model.eval()(**batch)["logits"].cpu()
    torch.testing.assert_close(torch.as_tensor(output.predictions), expected, rtol=1e-4, atol=1e-5)


class OwnSteps(Trainer):
    """Uses batches as they come."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        loss = model(**inputs)["loss"]
        self.accelerator.backward(loss)
        return loss.detach()

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        with torch.no_grad():
            outputs = model(**inputs)
        return outputs["loss"], outputs["logits"], inputs["labels"]


class OwnForward(lightning.Callback):
    """Calls the model with the batches that Lightning hands to callbacks."""

    def __init__(self):
        self.called = 0

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        (micro_batch,) = batch
        self.call(module, micro_batch)

    def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.call(module, batch)

    def call(self, module, batch):
        self.called += 1
        with torch.no_grad():
            module.model(**batch)


@pytest.mark.parametrize("pinned", [True, False])
def test_batches_come_on_the_device(tmp_path, device, pinned):
    """As in the reference: for overrides, loops by hand, and Lightning callbacks."""
    options = {"save_strategy": "no", "dataloader_pin_memory": pinned}
    trainer = make_trainer(tmp_path, device, **options)
    trainer.train()
    torch.manual_seed(0)
    data = points(32)
    args = trainer.args
    overridden = OwnSteps(Classifier(dropout=0.2), args, train_dataset=data, eval_dataset=data)
    overridden.train()
    assert same_bits(weights(overridden), weights(trainer))
    assert overridden.evaluate()["eval_loss"] == trainer.evaluate()["eval_loss"]

    for loader in (
        overridden.get_train_dataloader(),
        overridden.get_eval_dataloader(),
        overridden.get_test_dataloader(data),
    ):
        for batch in loader:
            overridden.model(**batch)

    listener = OwnForward()
    make_trainer(tmp_path, device, callbacks=[listener], eval_strategy="epoch", **options).train()
    assert listener.called == 8 + 4


@pytest.mark.gpu
def test_cpu_beside_a_gpu_is_taken_without_a_warning(tmp_path):
    """Lightning advises to use the GPU."""
    trainer = make_trainer(tmp_path, "cpu", save_strategy="no")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.train()
        trainer.evaluate()
    assert trainer.model.first.weight.device.type == "cpu"


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_arrive_page_locked(tmp_path, device, workers):
    """`dataloader_pin_memory` is on by default, and copies of page-locked batches do not wait."""
    if device == "cpu":
        pytest.skip("page-locked memory needs a GPU")
    loader = make_trainer(tmp_path, device, dataloader_num_workers=workers).get_train_dataloader()
    assert next(batches_of(loader))["x"].is_pinned(), "before the loader moves it"


@pytest.mark.parametrize("pinned", [True, False])
def test_page_locked_batches_are_copied_without_waiting(tmp_path, monkeypatch, pinned):
    """The CPU tells too: a tensor that says that it is page-locked notes how it is copied."""
    copies = []

    class Noting(torch.Tensor):
        def is_pinned(self):
            return pinned

        def to(self, *args, non_blocking=False, **kwargs):
            copies.append(non_blocking)
            return self

    trainer = make_trainer(tmp_path, "cpu")
    monkeypatch.setattr(TrainingArguments, "device", property(lambda self: torch.device("meta")))
    trainer._prepare_inputs({"x": torch.zeros(2).as_subclass(Noting)})
    assert copies == [pinned]
