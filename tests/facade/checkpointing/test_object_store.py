"""Trainings whose `output_dir` is an address: with moto's S3 server, which is stopped and
started, and real kills.
"""

import json
import os
import pickle
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest
import s3fs
import torch

from helpers import HELPERS
from helpers.checkpoints.s3_server import StoreServer
from helpers.processes.starting import code_of, finished_ranks, start
from helpers.trainer.tiny_trainings import (
    At,
    make_trainer,
    same_bits,
    weights,
    with_trainer_in_callbacks,
)
from lightrainer import HfArgumentParser, TrainerCallback, TrainingArguments
from lightrainer.facade.checkpointing import object_store, uploader
from lightrainer.facade.checkpointing.store_folder import StoreFolder, open_store
from lightrainer.lightning_modules.common.local_paths import local_folder

SCRIPT = HELPERS / "checkpoints" / "object_store_script.py"
SAVES = {"save_strategy": "steps", "save_steps": 2, "max_steps": 8}


@pytest.fixture(scope="module")
def server():
    with pytest.MonkeyPatch.context() as changes:
        store = StoreServer()
        for name, value in store.environment.items():
            changes.setenv(name, value)
        yield store
        store.stop()


@pytest.fixture
def bucket(server, monkeypatch, tmp_path, request):
    """A bucket, the copy of it on this machine, and no pauses before attempts."""
    monkeypatch.setenv("LIGHTRAINER_STORES", str(tmp_path / "here"))
    monkeypatch.setattr(uploader, "PAUSES", (0.01, 0.01))
    server.watch = None
    name = f"bucket-{abs(hash(request.node.name))}"
    storage().mkdir(name)
    return f"s3://{name}/run"


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """The address of a folder, for what does not depend on the storage."""
    monkeypatch.setenv("LIGHTRAINER_STORES", str(tmp_path / "here"))
    monkeypatch.setattr(uploader, "PAUSES", (0.01, 0.01))
    return f"file://{tmp_path}/there"


def storage():
    return s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)


def there(address):
    """The names of files in the store."""
    files, root = fsspec.url_to_fs(address)
    files.invalidate_cache()
    return sorted(path[len(root) + 1 :] for path in files.find(root))


def checkpoints(address):
    return sorted(
        {name.partition("/")[0] for name in there(address) if name.startswith("checkpoint-")}
    )


def elsewhere(monkeypatch, tmp_path):
    """Go to a machine that has seen nothing."""
    monkeypatch.setenv("LIGHTRAINER_STORES", str(tmp_path / "another"))
    open_store.cache_clear()


class NotesFirstStep(TrainerCallback):
    """Records the step from which a training resumes."""

    def on_train_begin(self, args, state, control, **kwargs):
        self.step = state.global_step


def first_step(trained_trainer):
    return next(
        callback.step
        for callback in trained_trainer.callback_handler.callbacks
        if isinstance(callback, NotesFirstStep)
    )


def trained(address, resume=None, **changes):
    trainer = with_trainer_in_callbacks(make_trainer(address, **{**SAVES, **changes}))
    trainer.add_callback(NotesFirstStep())
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def test_object_store_resumption_on_another_machine_is_exact(bucket, tmp_path, monkeypatch):
    """What is there when it ends, what is here, and the same weights as without an interruption."""
    options = {
        "save_total_limit": 2,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "load_best_model_at_end": True,
    }
    best = {"compute_metrics": lambda _: {"f": next(marks)}, "metric_for_best_model": "f"}
    marks = iter([9.0, 0.0, 0.0, 0.0])
    first = trained(bucket, report_to="tensorboard", **options, **best)
    first.save_model()
    first.save_state()
    assert checkpoints(bucket) == ["checkpoint-2", "checkpoint-8"]
    assert {"model.safetensors", "trainer_state.json"} <= set(there(bucket))
    first.save_metrics("eval", {"eval_f": 9.0})
    assert {"eval_results.json", "all_results.json"} <= set(there(bucket))
    first.create_model_card()
    assert "README.md" in there(bucket)
    assert any("tfevents" in name for name in there(bucket))
    assert not any(name.endswith("_incomplete") or name.startswith(".") for name in there(bucket))
    elsewhere(monkeypatch, tmp_path)
    marks = iter([0.0, 0.0])
    second = trained(bucket, resume=True, **{**options, "max_steps": 12}, **best)
    assert first_step(second) == 8
    assert (
        Path(second.state.best_model_checkpoint)
        == tmp_path / "another/s3" / bucket[5:] / "checkpoint-2"
    )
    assert same_bits(weights(second.model), weights(first.model)), (
        "the best one is loaded from the store"
    )
    assert checkpoints(bucket) == ["checkpoint-12", "checkpoint-2"]


def test_object_store_has_the_checkpoint_of_a_terminated_training(bucket):
    signalled = At("on_step_begin", lambda *_: signal.raise_signal(signal.SIGTERM), step=2)
    trainer = with_trainer_in_callbacks(
        make_trainer(bucket, **{**SAVES, "save_steps": 8}, callbacks=[signalled])
    )
    with pytest.raises(SystemExit) as ended:
        trainer.train()
    assert ended.value.code == 128 + signal.SIGTERM
    assert checkpoints(bucket) == ["checkpoint-3"]
    assert not any(name.endswith("_incomplete") for name in there(bucket))


def test_weights_are_those_of_an_uninterrupted_run(folder, tmp_path, monkeypatch):
    whole = trained(tmp_path / "out", max_steps=12)
    options = {
        "max_steps": 12,
        "callbacks": [
            At("on_step_end", lambda *args: setattr(args[2], "should_training_stop", True), 6)
        ],
    }
    assert not same_bits(weights(trained(folder, **options).model), weights(whole.model))
    elsewhere(monkeypatch, tmp_path)
    second = trained(folder, resume=True, max_steps=12)
    assert first_step(second) == 6
    assert same_bits(weights(second.model), weights(whole.model))
    assert checkpoints(folder) == [f"checkpoint-{step}" for step in (10, 12, 2, 4, 6, 8)], (
        "no limit keeps all there"
    )
    names = {path.name for path in Path(second.args.output_dir).glob("check*")}
    assert len(names) <= 2, "the newest, and the newest that is flushed"
    assert "checkpoint-12" in names


def test_object_store_skips_damaged_and_unfinished_checkpoints(
    bucket, tmp_path, monkeypatch, caplog
):
    trained(bucket)
    files, root = storage(), bucket[5:]
    files.pipe_file(
        f"{root}/checkpoint-6/optimizer.pt", b"x" * files.size(f"{root}/checkpoint-6/optimizer.pt")
    )
    files.touch(f"{root}/checkpoint-8/_incomplete")
    elsewhere(monkeypatch, tmp_path)
    second = trained(bucket, resume=True, max_steps=4)
    assert second.state.global_step == first_step(second) == 4
    assert "checkpoint-6 is damaged and was skipped" in caplog.text
    assert checkpoints(bucket) == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]


def test_object_store_address_to_resume_from(folder, tmp_path, monkeypatch):
    """One of another run, by another writer: without a manifest."""
    trained(folder)
    (tmp_path / "there/checkpoint-4/_manifest.json").unlink()
    elsewhere(monkeypatch, tmp_path)
    second = trained(tmp_path / "out", resume=f"{folder}/checkpoint-4", max_steps=6)
    assert (first_step(second), second.state.global_step) == (4, 6)
    with pytest.raises(FileNotFoundError, match=f"{folder}/checkpoint-5"):
        trained(tmp_path / "out", resume=f"{folder}/checkpoint-5")


def test_object_store_lost_connection_loses_nothing(bucket, server, caplog):
    """The server is down from step 3 to step 7: the training continues, warns once, and uploads
    the rest.
    """
    actions = [
        At("on_step_end", lambda *_: server.stop(), 3),
        At("on_step_end", lambda *_: server.start(), 7),
    ]
    calls = At("on_save", lambda one, *_: one._lightrainer.object_store.wait_for_uploads())
    trained(bucket, callbacks=[*actions, calls])
    assert checkpoints(bucket) == ["checkpoint-2", "checkpoint-4", "checkpoint-6", "checkpoint-8"]
    assert caplog.text.count("Training continues") == 1


def test_object_store_missing_upload_raises_and_is_sent_later(bucket, server, tmp_path):
    trainer = with_trainer_in_callbacks(
        make_trainer(bucket, callbacks=[At("on_step_end", lambda *_: server.stop(), 5)], **SAVES)
    )
    try:
        with pytest.raises(
            ConnectionError,
            match=rf"{bucket} could not.*{tmp_path}/here.* still has all files.*save_state",
        ):
            trainer.train()
    finally:
        server.start()
    assert trainer.state.global_step == 8
    trainer.save_state()
    assert {"checkpoint-6", "checkpoint-8"} <= set(checkpoints(bucket))
    assert not [name for name in there(bucket) if name.endswith("_incomplete")]


def test_object_store_outage_delays_the_end_by_a_bounded_time(folder, monkeypatch, caplog):
    """The clock stands still but for the pauses between attempts once the training has ended."""
    pauses = []
    delays = (0.0, 1.0, 2.0)

    def fail(*_):
        raise OSError("gone")

    def last_step(*_):
        monkeypatch.setattr(StoreFolder, "send", fail)
        monkeypatch.setattr(uploader, "PAUSES", delays)

    monkeypatch.setattr(uploader, "time", SimpleNamespace(sleep=pauses.append))
    trainer = with_trainer_in_callbacks(
        make_trainer(folder, callbacks=[At("on_step_begin", last_step, 7)], **SAVES)
    )
    with pytest.raises(ConnectionError, match="still has all files"):
        trainer.train()
    assert pauses == list(delays)
    assert caplog.text.count("Training continues") == 1
    assert trainer.state.global_step == 8


OUTAGES = [
    (OSError, "still has all files"),
    (RuntimeError, "still has all files"),
    (ValueError, "still has all files"),
    (TypeError, "An upload failed: "),
]
"""Errors of an upload, and the end of what is logged. TypeError is not one of a storage."""


@pytest.mark.parametrize(("kind", "logged"), OUTAGES)
def test_object_store_outage_does_not_hide_an_error(folder, monkeypatch, caplog, kind, logged):
    def fail(*_):
        raise kind("gone")

    def break_off(*_):
        raise ArithmeticError

    calls = [
        At("on_step_begin", lambda *_: monkeypatch.setattr(StoreFolder, "send", fail), 7),
        At("on_save", break_off, 8),
    ]
    trainer = with_trainer_in_callbacks(make_trainer(folder, callbacks=calls, **SAVES))
    with pytest.raises(ArithmeticError):
        trainer.train()
    assert logged in caplog.text


def test_object_store_raises_programming_errors_unchanged(folder, monkeypatch, caplog):
    """They are not errors of the store, whose remedy would mislead."""

    def fail(*_):
        raise TypeError("not of the store")

    calls = [At("on_step_begin", lambda *_: monkeypatch.setattr(StoreFolder, "send", fail), 7)]
    trainer = with_trainer_in_callbacks(make_trainer(folder, callbacks=calls, **SAVES))
    with pytest.raises(TypeError, match="not of the store"):
        trainer.train()
    assert not trainer.is_in_train
    assert "still has all files" not in caplog.text


def test_store_folder_of_a_checkpoint_renamed_during_an_upload(folder, monkeypatch):
    """The training finishes a checkpoint while the files beside it are uploaded."""
    store = open_store(local_folder(folder))
    staging = store.folder / ".checkpoint-4.partial"
    (staging / "parts").mkdir(parents=True)
    (store.folder / "other").mkdir()
    for name in ("first.txt", "other/second.txt"):
        (store.folder / name).write_text(name)
    scandir = os.scandir

    def renamed_before(path):
        if Path(path) == staging:
            staging.rename(store.folder / "checkpoint-4")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", renamed_before)
    store.send_others()
    assert not staging.exists()
    assert there(folder) == ["first.txt", "other/second.txt"]


def test_object_store_error_of_one_process_is_raised_in_all(folder, monkeypatch):
    """The others have to get it in a class that they can unpickle."""

    class LocalError(TypeError):
        pass

    def fail():
        raise LocalError("failed here")

    sent = []
    monkeypatch.setattr(object_store, "gather_objects", lambda error: sent.append(error) or sent)
    trainer = make_trainer(folder)
    store = trainer._lightrainer.object_store
    with pytest.raises(LocalError):
        store._run_on_ranks(fail, runs=True)

    received = [pickle.loads(pickle.dumps(error)) for error in sent]
    monkeypatch.setattr(object_store, "gather_objects", lambda _: [*received, None])
    with pytest.raises(RuntimeError, match="failed here"):
        store._run_on_ranks(fail, runs=False)


@pytest.mark.parametrize("machine", ["the same", "another"])
def test_object_store_kill_during_an_upload(bucket, server, tmp_path, monkeypatch, machine):
    """The next run finishes it where its files are, and removes it elsewhere."""
    reached, goes_on = threading.Event(), threading.Event()

    def watch(method, path):
        if method == "PUT" and path.endswith("checkpoint-4/optimizer.pt"):
            reached.set()
            goes_on.wait(60)

    server.watch = watch
    log = tmp_path / "log"
    process = start([sys.executable, str(SCRIPT), "8", str(tmp_path), bucket], log)
    assert reached.wait(60), log.read_text()
    process.send_signal(signal.SIGKILL)
    assert code_of(process, log, 60) == -signal.SIGKILL
    server.watch = None
    goes_on.set()
    assert "checkpoint-4/_incomplete" in there(bucket)
    if machine == "another":
        elsewhere(monkeypatch, tmp_path)
    second = trained(bucket, resume=True, max_steps=2)
    assert ("checkpoint-4" in checkpoints(bucket)) == (machine == "the same")
    assert first_step(second) >= (4 if machine == "the same" else 2)
    assert not any(name.endswith("_incomplete") for name in there(bucket))


def test_object_store_that_is_not_writable_raises_before_the_training(bucket, tmp_path):
    trainer = with_trainer_in_callbacks(make_trainer("s3://no-such-bucket/run", **SAVES))
    with pytest.raises(
        ConnectionError,
        match=r"s3://no-such-bucket/run could not.*bucket does not exist.*Check the bucket",
    ):
        trainer.train()
    assert trainer.state.global_step == 0
    assert not storage().exists("no-such-bucket")


def test_object_store_deleted_checkpoints_do_not_come_back(folder, tmp_path):
    trained(folder)
    fsspec.filesystem("file").rm(str(tmp_path / "there"), recursive=True)
    trainer = trained(folder, max_steps=2)
    assert checkpoints(folder) == ["checkpoint-2"]
    assert [path.name for path in Path(trainer.args.output_dir).glob("check*")] == ["checkpoint-2"]


def test_trials_of_a_search(folder):
    options = {
        "save_total_limit": 1,
        "eval_strategy": "epoch",
        "model_init": lambda: make_trainer("x").model,
    }
    trainer = make_trainer(folder, model=None, **SAVES, **options)
    trainer.hyperparameter_search(
        n_trials=2, backend="optuna", hp_space=lambda trial: {"seed": trial.number}
    )
    for number in (0, 1):
        assert checkpoints(f"{folder}/run-{number}") == ["checkpoint-8"]


SHARDED = json.dumps(
    {"fsdp": "full_shard", "fsdp_config": {"version": 2, "state_dict_type": "SHARDED_STATE_DICT"}}
)


@pytest.mark.parametrize("words", [(), ("machines",), (SHARDED,)], ids=["DDP", "machines", "FSDP"])
def test_object_store_in_several_processes(folder, tmp_path, words):
    """Resumed where nothing is, in the same place as without an interruption; each machine
    fetches for itself.
    """
    places = {name: tmp_path / name for name in ("whole", "first", "second")}
    for name, (steps, *more) in {"whole": (8,), "first": (4,), "second": (8, "resume")}.items():
        places[name].mkdir()
        address = f"{folder}-whole" if name == "whole" else folder
        script = [SCRIPT, str(steps), str(places[name]), address, *words, *more]
        finished_ranks(
            *script,
            log=tmp_path / "log",
            seconds=120,
            LIGHTRAINER_STORES=str(tmp_path / f"at-{name}"),
        )
    for rank in (0, 1):
        (_, whole), (began, second) = (
            torch.load(places[name] / f"{rank}.pt") for name in ("whole", "second")
        )
        assert began == 4
        assert same_bits(whole, second)
    assert "checkpoint-8/rng_state_1.pth" in there(folder)
    assert len(list(tmp_path.glob("at-second*"))) == (2 if "machines" in words else 1)


# --- arguments


def test_object_store_address_is_kept_in_written_files(folder):
    args = TrainingArguments(folder, report_to="none", use_cpu=True)
    assert os.path.isabs(args.output_dir)
    assert args.output_dir.endswith("/there")
    assert args.to_dict()["output_dir"] == json.loads(args.to_json_string())["output_dir"] == folder
    assert TrainingArguments(**args.to_dict()).output_dir == args.output_dir
    (parsed,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(
        ["--output_dir", folder]
    )
    assert parsed.output_dir == args.output_dir == local_folder(folder)


BAD = {
    "sftp://me:secret@host/x": (ValueError, "password"),
    "s3://bucket/../x": (ValueError, "'..'"),
    "nowhere://x/y": (ValueError, "nowhere"),
    "gs://bucket/x": (ImportError, "gcsfs"),
    Path("s3://bucket/x"): (ValueError, "name a bucket"),
}


@pytest.mark.parametrize("address", BAD, ids=str)
def test_addresses_that_cannot_be(address, folder, tmp_path):
    kind, message = BAD[address]
    with pytest.raises(kind, match=message) as caught:
        TrainingArguments(address, report_to="none")
    assert "secret" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_save_on_each_node_is_refused(folder):
    with pytest.raises(
        ValueError, match=r"save_on_each_node=True has no use with an address.*Remove save_on"
    ):
        TrainingArguments(folder, save_on_each_node=True)
