"""Arguments that versions after 5.3.0 added, beside the older names of the same setting."""

import copy
import pickle

import pytest

from lightrainer.facade.arguments import TrainingArguments
from lightrainer.facade.arguments.derived import checkpointing


def make(**kwargs):
    return TrainingArguments(**{"output_dir": "out", "use_cpu": True, **kwargs})


def both(args):
    return args.activation_checkpointing, args.gradient_checkpointing


@pytest.mark.parametrize("older", [True, False, None])
def test_later_name_overrides_the_older_one(older, caplog):
    assert both(make(gradient_checkpointing=older)) == (bool(older), older)
    assert both(make(activation_checkpointing=True, gradient_checkpointing=older)) == (True, True)
    assert not caplog.messages
    assert both(make(activation_checkpointing=False, gradient_checkpointing=older)) == (
        False,
        older and False,
    )
    assert len(caplog.messages) == (1 if older else 0)


def test_settings_under_either_name():
    for name in ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"):
        for written in ({"every_n_layers": 2}, '{"every_n_layers": "2"}'):
            args = make(gradient_checkpointing=True, **{name: written})
            assert checkpointing(args) == (True, {"every_n_layers": 2})
            assert (
                args.activation_checkpointing_kwargs
                == args.gradient_checkpointing_kwargs
                == {"every_n_layers": 2}
            )
    args = make(
        activation_checkpointing_kwargs={"offload": True},
        gradient_checkpointing_kwargs={"use_reentrant": True},
    )
    assert checkpointing(args) == (False, {"offload": True})


@pytest.mark.parametrize("name", ["activation_checkpointing", "gradient_checkpointing"])
@pytest.mark.parametrize("before", [True, False])
def test_later_names_change_under_either_name(name, before):
    for args in (
        make(gradient_checkpointing=before),
        copy.deepcopy(make(activation_checkpointing=before)),
    ):
        setattr(args, name, not before)
        setattr(args, f"{name}_kwargs", {"use_reentrant": True})
        assert checkpointing(pickle.loads(pickle.dumps(args))) == (
            not before,
            {"use_reentrant": True},
        )


def test_workers_on_an_apple_gpu_are_forked(monkeypatch):
    from lightrainer.facade.arguments import derived

    monkeypatch.setattr(derived, "has_mps", lambda: True)
    assert make(dataloader_num_workers=2).dataloader_multiprocessing_context == "fork"
    assert make(dataloader_num_workers=1).dataloader_multiprocessing_context is None
    chosen = make(dataloader_num_workers=2, dataloader_multiprocessing_context="spawn")
    assert chosen.dataloader_multiprocessing_context == "spawn"


def test_setters_have_the_later_arguments():
    args = make().set_training(activation_checkpointing=True)
    assert args.gradient_checkpointing
    args.set_dataloader(num_workers=1, multiprocessing_context="spawn", in_order=False)
    assert (args.dataloader_multiprocessing_context, args.dataloader_in_order) == ("spawn", False)
