"""Upload models and checkpoints when they are due, without a step that waits, and report
failures.
"""

import json
import signal
from concurrent.futures import Future
from pathlib import Path

import pytest
from huggingface_hub import CommitInfo, PyTorchModelHubMixin
from huggingface_hub.errors import HfHubHTTPError
from safetensors.torch import load

from helpers.hub.hub_server import TOKEN
from helpers.trainer.tiny_trainings import (
    At,
    Tiny,
    files,
    make_trainer,
    same_bits,
    tiny,
    trained_trainer,
    weights,
    with_trainer_in_callbacks,
)
from lightrainer import Trainer
from lightrainer.lightning_modules.checkpoints import writing
from lightrainer.lightning_modules.common import process_identity

NAME = "me/model"
EACH_STEP = {"save_strategy": "steps", "save_steps": 1}
MODEL = ["README.md", "loss_curve.svg", "model.safetensors", "training_args.bin"]
STATE = ["data_state_0.pth", "optimizer.pt", "rng_state.pth", "scheduler.pt", "trainer_state.json"]


def pushing(folder, **changes):
    return with_trainer_in_callbacks(
        make_trainer(folder / "out", push_to_hub=True, **{"hub_model_id": NAME, **changes})
    )


def pushed(folder, **changes):
    trainer = pushing(folder, **changes)
    trainer.train()
    return trainer


def progress(number, unit="step"):
    return f"Training in progress, {unit} {number}"


def uploaded(hub, revision="main"):
    """All that is in the repository, but for what the Hub puts there itself."""
    return sorted(name for name in hub.repos[NAME].files(revision) if name != ".gitattributes")


def messages(hub, revision="main"):
    return hub.repos[NAME].messages(revision)[1:]


def weights_of(hub, commit=-1, name="model.safetensors"):
    return load(hub.repos[NAME].branches["main"][commit].files[name])


# The repository.


def test_pushing_creates_the_repository_with_the_trainer(hub, tmp_path):
    trainer = pushing(tmp_path, hub_model_id="model", hub_private_repo=True, hub_revision="draft")
    assert trainer.hub_model_id == NAME
    assert hub.repos[NAME].private
    assert list(hub.repos[NAME].branches) == ["main", "draft"]
    assert len(hub.asked("POST .*/branch/")) == 1
    assert pushing(tmp_path, hub_model_id=None).hub_model_id == "me/out", "the name of the folder"


def test_pushing_refusal_precedes_the_training(hub, tmp_path):
    with pytest.raises(HfHubHTTPError, match="the owner in hub_model_id"):
        pushing(tmp_path, hub_model_id="others/model")
    assert not (tmp_path / "out").exists()


def test_pushing_follows_set_push_to_hub(hub, tmp_path):
    trainer = make_trainer(tmp_path / "out", save_strategy="epoch")
    trainer.args.set_push_to_hub(
        NAME, strategy="end", token=TOKEN, private_repo=True, revision="draft"
    )
    trainer.train()
    trainer.push_to_hub()
    assert hub.repos[NAME].private
    assert messages(hub, "draft") == ["End of training"]
    assert messages(hub, "main") == []
    assert {token for request, token in hub.requests if "/storage/" not in request} == {
        f"Bearer {TOKEN}"
    }


def test_private_counts_before_the_argument(hub, tmp_path):
    """As in 5.23: of a repository that is made now."""
    for private in (True, False, None):
        trainer = make_trainer(
            tmp_path / "out", hub_model_id=f"me/{private}", hub_token=TOKEN, hub_private_repo=True
        )
        trainer.push_to_hub(private=private)
        assert hub.repos[f"me/{private}"].private is (private is not False)


# Strategies.


def test_at_the_end_only_when_it_is_asked_for(hub, tmp_path):
    trainer = pushed(tmp_path, hub_strategy="end", **EACH_STEP)
    assert messages(hub) == []
    trainer.save_model()
    assert messages(hub) == ["Model save"]
    assert uploaded(hub) == MODEL
    assert same_bits(weights_of(hub), weights(trainer.model))


def test_pushing_the_newest_checkpoint(hub, tmp_path):
    pushing(tmp_path, hub_strategy="checkpoint", hub_always_push=True, **EACH_STEP).train()
    both = [(progress(step), f"{progress(step)}, checkpoint") for step in (1, 2, 3, 4)]
    assert messages(hub) == [message for pair in both for message in pair]
    inside = ["_manifest.json", "model.safetensors", *STATE, "training_args.bin"]
    assert uploaded(hub) == sorted([*MODEL, *(f"last-checkpoint/{name}" for name in inside)])
    state = json.loads(hub.repos[NAME].files()["last-checkpoint/trainer_state.json"])
    assert state["global_step"] == 4


def test_pushing_ends_with_the_best_model(hub, tmp_path):
    values = iter([0.9, 0.1, 0.1, 0.1])
    best = {
        "load_best_model_at_end": True,
        "metric_for_best_model": "good",
        "eval_strategy": "steps",
        "eval_steps": 1,
    }
    compute = {"compute_metrics": lambda prediction: {"good": next(values)}}
    pushed(tmp_path, hub_always_push=True, **best, **compute, **EACH_STEP)
    assert messages(hub) == [*(progress(step) for step in (1, 2, 3, 4)), "End of training"]
    assert same_bits(weights_of(hub), weights_of(hub, 1))
    assert not same_bits(weights_of(hub), weights_of(hub, 4))


# In the background.


def test_pushing_second_training_uploads_again(hub, tmp_path):
    trainer = pushed(tmp_path)
    trainer.train()
    assert messages(hub) == ["End of training"] * 2
    assert same_bits(weights_of(hub), weights(trainer.model))


def test_pushing_all_checkpoints_makes_up_for_missed_ones(hub, tmp_path):
    pushes = []
    note = At("on_push_begin", lambda host, state, control: pushes.append(state.global_step))
    with hub.held("preupload") as go:
        let_go = At("on_train_end", lambda *_: go.set())
        pushing(
            tmp_path,
            callbacks=[note, let_go],
            hub_always_push=True,
            save_total_limit=1,
            **EACH_STEP,
        ).train()
    assert pushes == [1, 2, 3, 4]
    assert messages(hub) == [progress(step) for step in (1, 2, 3, 4)]
    folders = [path.name for path in (tmp_path / "out").iterdir() if path.is_dir()]
    assert folders == ["checkpoint-4"], (
        "the others were deleted before their upload began, and a stage is left"
    )
    assert len({str(weights_of(hub, step)) for step in (1, 2, 3, 4)}) == 4


def test_pushing_background_checkpoint_is_complete(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "background_checkpoints", 0)
    trainer = pushing(
        tmp_path,
        hub_strategy="all_checkpoints",
        hub_always_push=True,
        save_total_limit=1,
        **EACH_STEP,
    )
    busy = []
    push = trainer._push_from_checkpoint
    trainer._push_from_checkpoint = lambda folder: (
        busy.append(trainer._lightrainer.checkpoint_saver.background.bytes_waiting),
        push(folder),
    )
    trainer.train()
    assert busy == [0] * 4
    for step in (1, 2, 3, 4):
        inside = [name for name in uploaded(hub) if name.startswith(f"checkpoint-{step}/")]
        assert len(inside) == 8
        state = json.loads(hub.repos[NAME].files()[f"checkpoint-{step}/trainer_state.json"])
        assert state["global_step"] == step
    assert [message for message in messages(hub) if "checkpoint" not in message] == [
        progress(n) for n in (1, 2, 3, 4)
    ]


def test_pushing_skips_a_failed_checkpoint(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "background_checkpoints", 0)
    monkeypatch.setattr(
        writing, "save_torch", lambda *_: (_ for _ in ()).throw(PermissionError("not yours"))
    )
    with pytest.raises(PermissionError):
        pushing(tmp_path, save_strategy="epoch").train()
    assert messages(hub) == []


def test_pushing_interrupted_training_uploads_its_checkpoint_only(hub, tmp_path):
    ask = At("on_step_end", lambda *_: signal.raise_signal(signal.SIGTERM), step=2)
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        pushing(
            tmp_path, callbacks=[ask], enable_jit_checkpoint=True, hub_strategy="checkpoint"
        ).train()
    finally:
        signal.signal(signal.SIGTERM, before)
    stopped = progress(0, "epoch")
    assert messages(hub) == [stopped, f"{stopped}, checkpoint"]


# What goes along.


def test_push_takes_what_else_is_in_the_folder(hub, tmp_path):
    out = tmp_path / "out"
    for name in (
        "runs/events",
        "_mine",
        ".tmpK2IOf7",
        "merged/.tmpK2IOf8",
        ".trainer_state.json.5edce1db.partial-host-2156-7",
        "profile/.trace.json.tmp",
        "checkpoint-7/model.safetensors",
        "model-00001-of-00002.safetensors",
    ):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(b"1")
    pushing(tmp_path, save_strategy="epoch").train()
    assert uploaded(hub) == sorted([*MODEL, "runs/events"])


def test_pushing_keeps_the_card_of_the_user(hub, tmp_path):
    (tmp_path / "out").mkdir()
    card = tmp_path / "out" / "README.md"
    card.write_text("---\nlicense: mit\n---\nMine.\n")
    trainer = pushed(tmp_path, save_strategy="epoch")
    assert hub.repos[NAME].files()["README.md"].endswith(b"Mine.\n")
    trainer.push_to_hub()
    assert b"# model" in hub.repos[NAME].files()["README.md"]
    trainer.args.num_train_epochs = 2
    trainer.train()
    assert b"in 8 steps" in hub.repos[NAME].files()["README.md"], "a generated card is renewed"


def test_pushing_processing_class_and_a_model_that_saves_itself(hub, tmp_path):
    class Words:
        def save_pretrained(self, folder):
            (Path(folder) / "words.txt").write_text("a b")

    class OfTheHub(Tiny, PyTorchModelHubMixin):
        def __init__(self, width: int = 8):
            super().__init__()

    trainer = pushed(
        tmp_path, model=OfTheHub(width=8), processing_class=Words(), save_strategy="epoch"
    )
    assert {"words.txt", "config.json", "model.safetensors"} <= set(uploaded(hub))
    assert json.loads(hub.repos[NAME].files()["config.json"]) == {"width": 8}
    trainer.push_to_hub()
    assert b"model_hub_mixin" in hub.repos[NAME].files()["README.md"], "the tags of its own card"
    assert same_bits(weights(OfTheHub.from_pretrained(NAME)), weights(trainer.model))


def test_pushing_calls_an_override_of_the_card(hub, tmp_path):
    class Own(Trainer):
        def create_model_card(self, *args, **kwargs):
            (tmp_path / "out" / "README.md").write_text("---\nlicense: mit\n---\nA model of mine")

    pushed(tmp_path, cls=Own, save_strategy="epoch")
    assert hub.repos[NAME].files()["README.md"].endswith(b"A model of mine")


def test_pushing_calls_an_override_of_the_push(hub, tmp_path):
    calls = []

    class Own(Trainer):
        def _push_from_checkpoint(self, checkpoint_folder):
            calls.append(
                (
                    Path(checkpoint_folder).name,
                    self.push_in_progress,
                    files(Path(checkpoint_folder)) != [],
                )
            )
            super()._push_from_checkpoint(checkpoint_folder)

    pushing(tmp_path, cls=Own, save_strategy="epoch").train()
    assert calls == [("checkpoint-4", None, True)]
    assert messages(hub) == [progress(1, "epoch")]


# By hand.


def test_push_by_hand(hub, tmp_path):
    """Without the argument the Hub is asked for nothing before; the model's own tags are on its
    card.
    """
    model, pushes = tiny(), []
    model.model_tags = ["its-own"]
    note = At("on_push_begin", lambda host, state, control: pushes.append(state.global_step))
    trainer = trained_trainer(
        tmp_path / "out", model=model, hub_model_id=NAME, callbacks=[note], **EACH_STEP
    )
    trainer.save_model()
    for name in ("_mine", ".tmpK2IOf7", ".rights-e8ca5c51.tmp"):
        (tmp_path / "out" / name).touch()
    assert hub.requests == []
    assert trainer.hub_model_id is None
    done = trainer.push_to_hub("By hand", tags=["one", "two"], language="en", license="mit")
    assert isinstance(done, CommitInfo)
    assert messages(hub) == ["By hand"]
    assert uploaded(hub) == sorted(MODEL)
    card = hub.repos[NAME].files()["README.md"].decode()
    assert "- one\n- two\n- its-own\n- generated_from_trainer\n" in card
    assert "- en\n" in card
    assert pushes == [4]
    assert "README.md" in files(tmp_path / "out")


def test_push_by_hand_in_the_background(hub, tmp_path):
    trainer = make_trainer(tmp_path / "out", hub_model_id=NAME)
    with hub.held("commit/main") as go:
        future = trainer.push_to_hub(blocking=False)
        assert isinstance(future, Future)
        assert not future.done()
        assert not trainer.push_in_progress.is_done()
        go.set()
        assert future.result(timeout=30).oid == hub.repos[NAME].branches["main"][-1].oid


# When it fails.


def test_pushing_failed_upload_warns_and_is_repeated_at_the_end(hub, tmp_path, caplog):
    hub.refuse("commit/main", 403, times=1)
    trainer = pushed(tmp_path, save_strategy="epoch")
    assert trainer.state.global_step == 4
    texts = [record.message for record in caplog.records]
    assert "checkpoint-4 was not uploaded to the Hub: HfHubHTTPError" in texts[0]
    assert "the role `write`" in texts[0]
    assert "Failed uploads to the Hub: 1. A later one succeeded" in texts[1]
    assert messages(hub) == ["End of training"]


@pytest.mark.parametrize("trouble", ["refused", "broken"])
def test_uploads_that_all_fail_do_not_end_the_training(hub, tmp_path, caplog, trouble):
    trainer = pushing(tmp_path, **EACH_STEP)
    hub.refuse("preupload", 401) if trouble == "refused" else hub.break_off("preupload")
    output = trainer.train()
    assert output.global_step == 4
    assert (
        f"The model on the Hub is outdated: {NAME} has no model of this training. The checkpoints "
        f"are in {tmp_path / 'out'}; upload the model with trainer.push_to_hub()."
        in caplog.records[-1].message
    )
    assert messages(hub) == []
    assert len(list((tmp_path / "out").glob("checkpoint-*"))) == 4
    assert not list((tmp_path / "out").glob(".*")), "a stage is left"
    hub.troubles.clear()
    trainer.push_to_hub()
    assert same_bits(weights_of(hub), weights(trainer.model))


def test_pushing_to_a_hub_that_is_down_uploads_once_at_the_end(hub, tmp_path, caplog):
    """Neither the checkpoint that was skipped during the upload, nor the final model after it."""

    class Released(Trainer):
        def _finish_current_push(self):
            go.set()
            super()._finish_current_push()

    with hub.held("preupload") as go:
        hub.refuse("commit/main", 503)
        trainer = pushing(tmp_path, cls=Released, **EACH_STEP)
        trainer.train()
    assert trainer.state.global_step == 4
    assert len(hub.asked("commit/main")) == 3
    assert sum("was not uploaded" in record.message for record in caplog.records) == 1
    assert "Failed uploads to the Hub: 1." in caplog.records[-1].message


def test_push_by_hand_raises_and_the_model_is_saved(hub, tmp_path, caplog):
    trainer = pushing(tmp_path, hub_strategy="end")
    hub.refuse("commit/main", 403)
    with pytest.raises(HfHubHTTPError, match="the role `write`"):
        trainer.save_model()
    assert "The model is saved; only its upload" in caplog.text
    assert "model.safetensors" in files(tmp_path / "out")


def test_pushing_killed_upload_is_cleaned_up_by_the_next_run(hub, tmp_path):
    """Linux gives no process a number above 2 ** 22."""
    left = tmp_path / "out" / ".hub-upload-1.partial-host-1-1"
    (left / "root").mkdir(parents=True)
    stale = left.rename(
        left.with_name(f".hub-upload-1.partial-{process_identity._machine()}-{2**22 + 1}-1")
    )
    pushing(tmp_path).train()
    assert not stale.exists()


def test_pushing_checkpoint_whose_upload_was_killed_is_uploaded_by_the_next_run(hub, tmp_path):
    """Also if no steps remain; what the killed upload left is removed."""
    options = {"hub_strategy": "checkpoint", "save_strategy": "steps", "save_steps": 2}
    pushed(tmp_path, **{**options, "max_steps": 2})
    trained_trainer(tmp_path / "out", **{**options, "max_steps": 4}, resume=True)
    state = "last-checkpoint/trainer_state.json"
    assert json.loads(hub.repos[NAME].files()[state])["global_step"] == 2
    name = f".hub-upload-2.partial-{process_identity._machine()}-{2**22 + 1}-1"
    (tmp_path / "out" / name).mkdir()
    trainer = pushing(tmp_path, **{**options, "max_steps": 4})
    trainer.train(resume_from_checkpoint=True)
    assert json.loads(hub.repos[NAME].files()[state])["global_step"] == 4
    assert same_bits(weights_of(hub), weights(trainer.model))
    assert not (tmp_path / "out" / name).exists()


# The numbers.


def test_uploads_at_every_save_change_no_number(hub, tmp_path):
    trainer = pushed(
        tmp_path, hub_always_push=True, eval_strategy="steps", eval_steps=1, **EACH_STEP
    )
    assert messages(hub) == [progress(step) for step in (1, 2, 3, 4)]
    assert uploaded(hub) == MODEL
    for step in (1, 2, 3, 4):
        folder = tmp_path / "out" / f"checkpoint-{step}"
        assert same_bits(weights_of(hub, step), load((folder / "model.safetensors").read_bytes()))
    baseline = trained_trainer(tmp_path / "usual", eval_strategy="steps", eval_steps=1, **EACH_STEP)
    assert same_bits(weights(trainer.model), weights(baseline.model))
