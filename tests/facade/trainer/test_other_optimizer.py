"""A checkpoint of another model, optimizer or schedule is refused before a step, and both sides
are named.
"""

import shutil

import pytest
import torch

from helpers.trainer.tiny_trainings import (
    At,
    make_trainer,
    same_bits,
    tiny,
    weights,
    with_trainer_in_callbacks,
)
from lightrainer.lightning_modules.common.safe_serialization import from_plain, to_plain
from lightrainer.lightning_modules.common.torch_files import load_torch

SAVING = {"save_strategy": "steps", "save_steps": 2}


def renamed():
    """The same layers, the last of which is called otherwise."""
    model = tiny()
    model.head = model.second
    del model.second
    model.logits = lambda x: model.head(model.dropout(model.norm(torch.tanh(model.first(x)))))
    return model


def test_resume_without_weights_of_the_model_is_refused(tmp_path):
    """Before anything is changed; the model can declare that they start from scratch."""
    make_trainer(tmp_path, **SAVING).train()
    trainer = make_trainer(tmp_path, model=renamed(), **SAVING)
    before = weights(trainer.model)
    with pytest.raises(
        ValueError, match=r"checkpoint-2 has no values for 2 of 6.*head\.weight.*second\.weight"
    ):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert same_bits(weights(trainer.model), before)
    trainer.model._keys_to_ignore_on_load_missing = [r"^head\."]
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert trainer.state.global_step == 4


def test_best_checkpoint_that_lacks_weights_of_the_model_is_refused(tmp_path):
    """It was written by this run, so that something renamed the weights on the way."""

    def rename(trainer, *_):
        trainer.model.head, trainer.model.second = trainer.model.second, torch.nn.Identity()

    best = {"save_strategy": "epoch", "eval_strategy": "epoch", "load_best_model_at_end": True}
    trainer = with_trainer_in_callbacks(
        make_trainer(tmp_path, callbacks=[At("on_save", rename)], **best)
    )
    with pytest.raises(ValueError, match=r"checkpoint-4 has no values for 2 of 6.*head\.weight"):
        trainer.train()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint, without the manifest: what is changed in it is not what is tested here."""
    folder = tmp_path_factory.mktemp("saved")
    make_trainer(folder, **SAVING).train()
    (folder / "checkpoint-2" / "_manifest.json").unlink()
    return folder / "checkpoint-2"


def resumed(saved, folder, name=None, content=None, **changes):
    """A trainer, and a copy of the checkpoint in which a file holds something else."""
    checkpoint = folder / "checkpoint-2"
    shutil.copytree(saved, checkpoint)
    if name is not None:
        torch.save(content, checkpoint / name)
    return make_trainer(folder, **{**SAVING, **changes}), str(checkpoint)


def refused(made, checkpoint, *words):
    """Require a refusal before the first step whose message has all the words."""
    steps = []
    made.add_callback(At("on_step_begin", lambda *_: steps.append(1)))
    with pytest.raises(ValueError, match=r".") as error:
        made.train(resume_from_checkpoint=checkpoint)
    assert not steps
    assert [word for word in words if word not in str(error.value)] == [], error.value


CHANGES = [
    ({"optim": "sgd"}, "momentum"),
    ({"optim": "adagrad"}, "lr_decay"),
    ({"optim": "adafactor"}, "beta1"),
    ({"optim": "rmsprop"}, "alpha"),
]


@pytest.mark.parametrize(("changes", "needed"), CHANGES, ids=str)
def test_resume_with_another_kind_of_optimizer(saved, tmp_path, changes, needed):
    """The optimizer is unchanged: without the checkpoint the training runs."""
    trainer, checkpoint = resumed(saved, tmp_path, **changes)
    refused(
        trainer,
        checkpoint,
        "optimizer.pt was written by another kind of optimizer",
        "betas",
        needed,
        "`optim`",
    )
    trainer.train()
    assert trainer.state.global_step == 4


def test_resume_with_another_form_of_the_same_optimizer(saved, tmp_path):
    trainer, checkpoint = resumed(
        saved, tmp_path, optim="adamw_torch_fused", lr_scheduler_type="cosine"
    )
    trainer.train(resume_from_checkpoint=checkpoint)
    assert trainer.state.global_step == 4


def test_resume_with_another_number_of_parameters(saved, tmp_path):
    trainer, checkpoint = resumed(saved, tmp_path)
    trainer.model.first.requires_grad_(False)
    refused(trainer, checkpoint, "optimizer.pt cannot be loaded into AdamW")


CONTENTS = {
    "optimizer.pt": ([], {}, 5, {"a": 1}),
    "scheduler.pt": (
        [],
        {},
        5,
        {"a": 1},
        {"last_epoch": "x", "base_lrs": [1.0, 1.0], "lr_lambdas": [None, None]},
    ),
    "data_state_0.pth": ([], {}, 5, {"a": 1}, torch.ones(2)),
}


@pytest.mark.parametrize(
    ("name", "content"), [(n, c) for n, all_of in CONTENTS.items() for c in all_of], ids=str
)
def test_resume_with_a_file_of_something_else(saved, tmp_path, name, content):
    trainer, checkpoint = resumed(saved, tmp_path, name, content)
    refused(trainer, checkpoint, "checkpoint-2", name)


def test_resume_with_another_kind_of_schedule(saved, tmp_path):
    trainer, checkpoint = resumed(
        saved,
        tmp_path,
        lr_scheduler_type="reduce_lr_on_plateau",
        eval_strategy="steps",
        eval_steps=2,
    )
    words = (
        "scheduler.pt was written by another kind of schedule",
        "lr_lambdas",
        "ReduceLROnPlateau",
        "patience",
    )
    refused(trainer, checkpoint, *words, "`lr_scheduler_type`")


@pytest.mark.parametrize(
    "name", ["epoch", "done", "windows", "copies", "ended", "layout", "loader", "asked"]
)
def test_resume_with_an_invalid_position(saved, tmp_path, name):
    """Each part of it is checked: its name, the actual and the expected value are in the
    error.
    """
    written = from_plain(load_torch(saved / "data_state_0.pth"))
    changed = to_plain({**written, name: "x"})
    trainer, checkpoint = resumed(saved, tmp_path, "data_state_0.pth", changed)
    refused(trainer, checkpoint, "data_state_0.pth", f"{name}='x', expected")


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_resume_with_a_position_of_lightning(saved, tmp_path):
    """It lacks the optional entries, such as the workers of evaluations."""
    written = from_plain(load_torch(saved / "data_state_0.pth"))
    required = {name: written[name] for name in ("epoch", "done", "loader", "windows", "layout")}
    trainer, checkpoint = resumed(
        saved,
        tmp_path,
        "data_state_0.pth",
        to_plain(required),
        eval_strategy="epoch",
        dataloader_num_workers=1,
        dataloader_persistent_workers=True,
    )
    trainer.train(resume_from_checkpoint=checkpoint)
    assert trainer.state.global_step == 4


class NamedMomentum(torch.optim.Optimizer):
    """Keeps its state under names, as LoRA-FA of PEFT keeps that of a pair of weights."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for index, parameter in enumerate(group["params"]):
                state = self.state[f"weights.{index}"]
                momentum = state.setdefault("momentum", torch.zeros_like(parameter))
                momentum.mul_(0.9).add_(parameter.grad)
                parameter.sub_(momentum, alpha=group["lr"])


def test_resume_with_state_under_names_is_exact(tmp_path):
    def make(folder):
        model = tiny()
        optimizers = (NamedMomentum(model.parameters()), None)
        return make_trainer(folder, model=model, optimizers=optimizers, **SAVING)

    straight = make(tmp_path / "straight")
    straight.train()
    resumed = make(tmp_path / "resumed")
    resumed.train(resume_from_checkpoint=str(tmp_path / "straight" / "checkpoint-2"))
    assert same_bits(weights(resumed.model), weights(straight.model))
