"""What is copied to the device, and how: batches of page-locked memory, and each part of a
checkpoint once.
"""

import lightning
import pytest

import lightrainer
from helpers.devices import pretended_cuda
from helpers.devices.counted_waits import SETTINGS, Words, padded, sentences, trainer_of
from helpers.processes.rank_training import Classifier, points
from lightrainer import DataModule, LossModule, Trainer, TrainingArguments

pytestmark = pytest.mark.gpu


@pytest.fixture
def device():
    device = pretended_cuda.pretended()
    if device is None:
        pytest.skip("copies are only counted on a simulated device")
    return device


def uploads_of(device, work):
    """Return how many tensors were copied while `work` ran, by whether the host went on."""
    before = device.uploads.copy()
    work()
    return device.uploads - before


@pytest.mark.parametrize("name", ["defaults", "two workers", "stream", "batches of 64 tokens"])
def test_batches_reach_the_model_from_page_locked_memory(tmp_path, device, name):
    trainer = trainer_of(lightrainer, str(tmp_path), SETTINGS[name], max_steps=4)
    trainer.model.to(trainer.args.device)
    places = []
    trainer.model.register_forward_pre_hook(
        lambda module, args, batch: places.extend(tensor.device.type for tensor in batch.values()),
        with_kwargs=True,
    )
    for work in (
        trainer.train,
        lambda: trainer.evaluate(sentences(8)),
        lambda: trainer.predict(sentences(8)),
    ):
        places.clear()
        uploads = uploads_of(device, work)
        assert uploads[True] >= 2 * 3, "ids, mask and labels of two batches or more"
        assert set(places) == {"cuda"}


# Lightning's, in its combined loader
@pytest.mark.filterwarnings("ignore:.*treespec:FutureWarning")
def test_batches_of_a_data_module_are_page_locked(device):
    """Counted in the middle of a training."""

    class CountsUploads(lightning.Callback):
        def on_train_batch_end(self, trainer, *args):
            if trainer.global_step == 2:
                self.before = device.uploads.copy()
            if trainer.global_step == 5:
                self.uploads = device.uploads - self.before

    callback = CountsUploads()
    options = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "limit_val_batches": 0,
    }
    trainer = lightning.Trainer(
        accelerator="gpu",
        devices=1,
        max_steps=7,
        callbacks=[callback],
        enable_model_summary=False,
        **options,
    )
    trainer.fit(
        LossModule(Words()),
        DataModule(sentences(64), sentences(8), collate_fn=padded, batch_size=4),
    )
    assert callback.uploads == {True: 3 * 3}


def test_copies_of_a_batch_on_the_device_are_not_made(tmp_path, device):
    trainer = trainer_of(lightrainer, str(tmp_path), SETTINGS["defaults"])
    batch = next(iter(trainer.get_train_dataloader()))
    uploads = uploads_of(device, lambda: trainer._prepare_inputs(batch))
    assert not uploads
    assert all(prepared is batch[name] for name, prepared in trainer._prepare_inputs(batch).items())


def long_run(folder, **changes):
    """Return a Trainer of a model that is much larger than its batches."""
    options = {
        "max_steps": 4,
        "save_steps": 2,
        "per_device_train_batch_size": 4,
        "report_to": "none",
    }
    args = TrainingArguments(
        str(folder), **{**options, "logging_steps": 100, "disable_tqdm": True, **changes}
    )
    return Trainer(Classifier(width=2000), args, train_dataset=points(16))


@pytest.mark.parametrize("optimizer", ["adamw_torch_fused", "adamw_torch"])
def test_copies_of_a_resumption_are_made_once(tmp_path, device, optimizer):
    long_run(tmp_path, optim=optimizer).train()
    resumed = long_run(tmp_path, optim=optimizer)
    of_weights = sum(parameter.nbytes for parameter in resumed.model.parameters())

    before = device.uploaded_bytes
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    copied = device.uploaded_bytes - before
    assert 3 * of_weights <= copied < 3.1 * of_weights, "the weights, and two averages of AdamW"
