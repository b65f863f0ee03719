"""One folder, three libraries: what Lightning writes resumes under the Trainer API, and the
other way round.
"""

import functools
import json
import shutil
from pathlib import Path

import pytest
import torch
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from safetensors.torch import load_file
from torch.utils.data import DataLoader

import lightrainer
from helpers.comparing.bit_differences import differences
from helpers.parity.harness import run
from helpers.parity.interrupted_runs import interrupted
from helpers.parity.lightning_side import CASE, EVERY_STEP, STEPS, WARNINGS, Plain
from helpers.parity.parity_datasets import Stream, point_data, points
from lightrainer.lightning_modules import build_loader
from lightrainer.lightning_modules.checkpoints import problems

pytestmark = [
    WARNINGS,
    # Several checkpoints go into one folder.
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]

# An epoch has 6 steps: in its middle, at its end, in the middle of the second.
POINTS = (1, 3, 6, 8)
LIMITS = {"epochs": {}, "steps": {"epochs": -1, "max_steps": STEPS}}


def assert_equal(left, right, name="weights"):
    mismatches = differences(left, right, name)
    assert not mismatches, "\n".join(mismatches)


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """`once(train)` is what `train(folder)` gives, and its folder; each is run once, when a test
    asks for it.
    """

    @functools.cache
    def get(train):
        folder = tmp_path_factory.mktemp("once")
        return train(folder), folder

    return get


def train_straight(folder):
    return run(lightrainer, CASE, folder)


def train_plain(folder):
    return Plain(folder, save=EVERY_STEP).run()


@pytest.fixture
def straight(once):
    """The weights of the uninterrupted run of the facade, which are those of the reference."""
    return once(train_straight)[0].weights


@pytest.fixture
def written(once, tmp_path):
    """The folders of a plain Lightning user, one for each step, whose training ran to its end."""
    result, folder = once(train_plain)
    shutil.copytree(folder, tmp_path / "written")
    return result


def test_lightning_training_equals_the_facade(straight, tmp_path):
    """Dropout on, linear schedule, two epochs: what follows compares like with like."""
    assert_equal(straight, Plain(tmp_path).run().weights)


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("step", POINTS)
@pytest.mark.parametrize("writer", ["ours", "reference"])
def test_lightning_folder_of_the_trainer_api_resumes(
    request, straight, ours, tmp_path, writer, step, limit
):
    """To the bits of the facade's own resumption, of which one test says that they are those of
    the straight run.
    """
    api = request.getfixturevalue(writer)
    interrupted(api, CASE, step, tmp_path / "stopped")
    plain = Plain(tmp_path / "plain", seed=99, **LIMITS[limit])
    resumed = plain.run(tmp_path / "stopped" / f"checkpoint-{step}")
    assert_equal(straight, resumed.weights)
    assert [place[:2] for place in resumed.notes.seen] == [
        (at // 6, at + 1) for at in range(step, STEPS)
    ]
    assert resumed.lightning.current_epoch == 2


@pytest.mark.parametrize("writer", ["ours", "reference"])
def test_lightning_folder_is_read_without_a_plugin(request, straight, tmp_path, writer):
    """`fit(LossModule(...), ckpt_path=folder)` of a Trainer that writes files: it resumes and
    still writes files.
    """
    interrupted(request.getfixturevalue(writer), CASE, 3, tmp_path / "stopped")
    plain = Plain(tmp_path / "plain", seed=99, wrap=lambda _: None, save=EVERY_STEP).but_files()
    assert_equal(straight, plain.run(tmp_path / "stopped" / "checkpoint-3").weights)
    assert (tmp_path / "plain" / "checkpoint-4.ckpt").is_file()
    module = plain.module()
    data = build_loader(points(10, seed=11), batch_size=4)
    folder = tmp_path / "stopped" / "checkpoint-3"
    plain.trainer(module).validate(module, data, ckpt_path=folder, verbose=False)
    assert_equal(load_file(folder / "model.safetensors"), dict(module.model.state_dict()))


@pytest.mark.parametrize("step", POINTS)
@pytest.mark.parametrize("reader", ["ours", "reference", "lightning"])
def test_lightning_folder_resumes_everywhere(request, straight, written, tmp_path, reader, step):
    folder = tmp_path / "written" / f"checkpoint-{step}"
    assert problems(folder) == []
    if reader == "lightning":
        resumed = Plain(tmp_path / "plain", seed=99).run(folder)
        assert_equal(written.random, resumed.random, "random")
    else:
        case = CASE.but(model_seed=99, arguments={"save_strategy": "steps", "save_steps": 2})
        resumed = run(
            request.getfixturevalue(reader), case, tmp_path / "resumed", resume=str(folder)
        )
        assert resumed.state["global_step"] == STEPS
        assert (tmp_path / "resumed" / f"checkpoint-{STEPS}").is_dir()
    assert_equal(straight, resumed.weights)


def test_lightning_folder_intervals_default_to_the_arguments(ours, written, tmp_path, caplog):
    case = CASE.but(arguments={"save_strategy": "steps", "save_steps": 5})
    resumed = run(
        ours, case, tmp_path / "resumed", resume=str(tmp_path / "written" / "checkpoint-3")
    )
    assert (resumed.state["save_steps"], resumed.state["logging_steps"]) == (5, 1)
    assert sorted(path.name for path in (tmp_path / "resumed").iterdir()) == [
        f"checkpoint-{n}" for n in (10, 12, 5)
    ]
    assert "differ from those of the checkpoint" not in caplog.text


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("step", [2, 3, 4])
def test_accumulation_and_validation(tmp_path, step, limit):
    """Windows of 4 with a remainder, validated after each epoch: Lightning's own numbers, epochs
    and steps continue.
    """
    options = {"accumulation": 4, "validate": True, "total": 4, **LIMITS[limit]}
    if limit == "steps":
        options["max_steps"] = 4
    # At the end of an epoch Lightning validates between a save by steps and the next epoch, and not
    # after resuming.
    saving = {"every_n_epochs": 1, "save_top_k": -1} if step == 2 else EVERY_STEP
    whole = Plain(tmp_path / "whole", save=saving, **options).run()
    resumed = Plain(tmp_path / "plain", seed=99, **options).run(
        tmp_path / "whole" / f"checkpoint-{step}"
    )
    assert_equal(whole.weights, resumed.weights)
    assert whole.notes.seen[-len(resumed.notes.seen) or 99 :] == resumed.notes.seen
    assert len(resumed.notes.seen) == {2: 6, 3: 2, 4: 0}[step]


def test_lightning_folder_of_the_facade_with_accumulation(ours, tmp_path):
    """Lightning weighs the last, shorter window of an epoch less, so only the place is the same."""
    case = CASE.but(arguments={"gradient_accumulation_steps": 4})
    for step, place in {1: (0, 2), 2: (1, 3), 3: (1, 4)}.items():
        interrupted(ours, case, step, tmp_path / f"{step}")
        resumed = Plain(tmp_path / "plain", accumulation=4, total=4).run(
            tmp_path / f"{step}" / f"checkpoint-{step}"
        )
        assert len(resumed.notes.seen) == {1: 2 + 6, 2: 6, 3: 2}[step]
        assert resumed.notes.seen[-1][:2] == (1, 4)
        assert next(note[:2] for note in resumed.notes.seen if note[1] > step) == place


def test_lightning_folder_of_a_stream_resumes_in_place(ours, tmp_path):
    """Read again up to there, as it cannot be asked to skip."""
    case = CASE.but(
        data=lambda: {**point_data(), "train_dataset": Stream(points(60))},
        arguments={"max_steps": 10},
    )
    straight = run(ours, case, tmp_path / "straight").weights
    interrupted(ours, case, 4, tmp_path / "stopped")
    loader = lambda: build_loader(Stream(points(60)), batch_size=4)
    plain = {"loader": loader, "total": 10, "epochs": -1, "max_steps": 10}
    resumed = Plain(tmp_path / "plain", seed=99, **plain).run(tmp_path / "stopped" / "checkpoint-4")
    assert_equal(straight, resumed.weights)
    Plain(tmp_path / "plain", save=EVERY_STEP, **plain).run()
    for step in (4, 9):
        again = Plain(tmp_path / "again", seed=99, **plain).run(
            tmp_path / "plain" / f"checkpoint-{step}"
        )
        assert_equal(straight, again.weights)


def test_lightning_folder_of_a_torch_loader_resumes_at_the_end_of_an_epoch(tmp_path):
    """In mid-epoch Lightning says that it cannot."""
    loader = lambda: DataLoader(points(22), batch_size=4)
    whole = Plain(tmp_path / "whole", save=EVERY_STEP, loader=loader).run()
    assert not (tmp_path / "whole" / "checkpoint-6" / "data_state_0.pth").exists()
    resumed = Plain(tmp_path / "plain", seed=99, loader=loader).run(
        tmp_path / "whole" / "checkpoint-6"
    )
    assert_equal(whole.weights, resumed.weights)
    with pytest.warns(UserWarning, match="dataloader is not resumable"):
        Plain(tmp_path / "plain", loader=loader).run(tmp_path / "whole" / "checkpoint-3")


@pytest.mark.parametrize("schedule", [None, "cosine"])
def test_lightning_folder_with_a_constant_rate(ours, tmp_path, schedule):
    """Without one the Trainer API would begin with a new optimizer."""
    case = CASE.but(arguments={"lr_scheduler_type": schedule or "constant"})
    straight = run(ours, case, tmp_path / "straight").weights
    Plain(tmp_path / "written", save=EVERY_STEP, schedule=schedule).run()
    resumed = run(
        ours,
        case.but(model_seed=99),
        tmp_path / "r",
        resume=str(tmp_path / "written" / "checkpoint-3"),
    )
    assert_equal(straight, resumed.weights)


def test_written_in_the_background(straight, tmp_path):
    """Through Lightning's own asynchronous plugin: what was when it was due."""
    Plain(tmp_path / "written", save=EVERY_STEP, wrap=AsyncCheckpointIO).run()
    resumed = Plain(tmp_path / "plain", seed=99, wrap=AsyncCheckpointIO).run(
        tmp_path / "written" / "checkpoint-3"
    )
    assert_equal(straight, resumed.weights)


def test_lightning_folders_keep_and_find_the_best(tmp_path):
    """`ModelCheckpoint` names, ranks and removes folders as it does with files."""
    save = {"monitor": "val_loss", "save_top_k": 1, "save_last": True}
    original = Plain(tmp_path / "out", validate=True, epochs=3, save=save).run()
    saving = original.lightning.checkpoint_callback
    folders = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert folders == sorted({Path(saving.best_model_path).name, "last"})
    module = original.module()
    data = build_loader(points(10, seed=11), batch_size=4)
    result = original.trainer(module).validate(
        module, data, ckpt_path=saving.best_model_path, verbose=False
    )
    again = original.lightning.validate(dataloaders=data, ckpt_path="best", verbose=False)
    # In the training it was computed where gradients are known of, for which torch may choose other
    # kernels.
    assert result[0]["val_loss"] == pytest.approx(float(saving.best_model_score), rel=1e-6)
    assert result[0]["val_loss"] == again[0]["val_loss"]
    best = int(Path(saving.best_model_path).name.removeprefix("checkpoint-"))
    resumed = Plain(tmp_path / "out", validate=True, epochs=3, save=save, seed=99).run(
        tmp_path / "out" / "last"
    )
    assert resumed.notes.seen == original.notes.seen[best:]


def test_lightning_file_resumption_is_exact(straight, tmp_path):
    """`ckpt_path` of a plain file, in mid-epoch: the module keeps what a folder would; nothing
    but tensors is in it.
    """
    saved = Plain(tmp_path, save=EVERY_STEP, wrap=lambda _: None).but_files().run()
    file = tmp_path / "checkpoint-3.ckpt"
    torch.load(file, weights_only=True)
    assert_equal(straight, saved.weights)
    for wrap in (lambda _: None, lambda folder_io: folder_io):
        resumed = Plain(tmp_path / "plain", seed=99, wrap=wrap).run(file)
        assert_equal(straight, resumed.weights)


def test_lightning_folder_contents(written, tmp_path):
    folder = tmp_path / "written" / f"checkpoint-{STEPS}"
    theirs = {
        "model.safetensors",
        "optimizer.pt",
        "rng_state.pth",
        "scheduler.pt",
        "trainer_state.json",
    }
    ours = {"_manifest.json", "data_state_0.pth", "lightning_state.pt"}
    assert {path.name for path in folder.iterdir()} == theirs | ours
    state = json.loads((folder / "trainer_state.json").read_text())
    assert (state["global_step"], state["epoch"], state["num_train_epochs"]) == (STEPS, 2.0, 2)
    middle = json.loads((tmp_path / "written" / "checkpoint-3" / "trainer_state.json").read_text())
    assert (middle["global_step"], middle["epoch"]) == (3, 0.5)
