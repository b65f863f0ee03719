"""What training arguments are refused beyond the combinations in contract/refusals.py, and what is said about it."""

import copy
import json

import pytest
import torch
from transformers import TrainingArguments as Reference

from lightrainer.facade.arguments import AcceleratorConfig, TrainingArguments, hardware, problems


def refusal(cls, kwargs):
    try:
        cls(**copy.deepcopy(kwargs))
    except Exception as error:
        return type(error)
    return None


REFUSED_BY_BOTH = [
    {"optim": "adam"},
    {"load_best_model_at_end": True},
    {"torch_empty_cache_steps": 1.5},
    {"accelerator_config": AcceleratorConfig},
    {"fsdp_config": "no/such/file.json"},
    {"no_such_argument": 1},
]
ON_THE_CPU = [{"bf16": True}, {"bf16_full_eval": True}, {"tf32": True}]


@pytest.mark.filterwarnings("ignore:.*only when:UserWarning")  # from the reference, before it looks for the file
@pytest.mark.parametrize("kwargs", REFUSED_BY_BOTH, ids=str)
def test_what_the_reference_refuses_is_refused_with_the_same_error(kwargs):
    assert refusal(Reference, kwargs) is not None
    assert refusal(TrainingArguments, kwargs) is refusal(Reference, kwargs)


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
@pytest.mark.parametrize("kwargs", ON_THE_CPU, ids=str)
def test_what_needs_a_gpu_is_refused_without_one(kwargs):
    assert refusal(TrainingArguments, kwargs) is refusal(Reference, kwargs) is ValueError
    with pytest.raises(ValueError, match="no GPU here"):
        TrainingArguments(**kwargs)


def test_with_a_gpu_it_is_accepted(monkeypatch):
    from lightrainer.facade.arguments import training_arguments, validation

    switched = []
    monkeypatch.setattr(validation, "supports_bf16", lambda: True)
    monkeypatch.setattr(validation, "supports_tf32", lambda: True)
    monkeypatch.setattr(training_arguments, "supports_tf32", lambda: True)
    monkeypatch.setattr(training_arguments, "set_tf32", switched.append)
    assert TrainingArguments(bf16=True, tf32=True).bf16
    TrainingArguments(tf32=False)
    TrainingArguments()
    assert switched == [True, False]


def test_tf32_is_switched_in_a_way_that_lightning_can_read():
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        for enable, precision in ((True, "high"), (False, "highest")):
            hardware.set_tf32(enable)
            assert torch.get_float32_matmul_precision() == precision
            assert torch.backends.cuda.matmul.allow_tf32 is torch.backends.cudnn.allow_tf32 is enable
    finally:
        hardware.set_tf32(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


REFUSED_HERE = [
    ({"learning_rate": float("inf")}, ValueError, "learning_rate=inf must be at least 0 and finite"),
    ({"learning_rate": "abc"}, TypeError, r"learning_rate='abc' is a str; pass a number\."),
    ({"learning_rate": None}, TypeError, "learning_rate=None"),
    ({"per_device_train_batch_size": -8}, ValueError, "per_device_train_batch_size=-8"),
    ({"per_device_eval_batch_size": "8"}, TypeError, "per_device_eval_batch_size='8' .* whole number, 8 without"),
    ({"num_train_epochs": "3"}, TypeError, "num_train_epochs='3'"),
    ({"max_steps": 1.5}, TypeError, "max_steps=1.5"),
    ({"adam_beta2": -0.1}, ValueError, "adam_beta2"),
    ({"adam_epsilon": -1}, ValueError, "adam_epsilon"),
    ({"seed": None}, TypeError, "seed=None"),
    ({"dataloader_num_workers": 1, "dataloader_prefetch_factor": 0}, ValueError, "dataloader_prefetch_factor=0"),
    ({"logging_steps": None}, ValueError, "logging_steps=None: pass a number of steps"),
    ({"logging_steps": float("inf")}, ValueError, "logging_steps=inf"),
    ({"report_to": ["tensorboard", "none"]}, ValueError, "report_to='none' is not known"),
    ({"include_for_metrics": 3}, TypeError, "include_for_metrics=3"),
    ({"lr_scheduler_kwargs": "min_lr=1"}, TypeError, "lr_scheduler_kwargs='min_lr=1' is a str; pass a dict"),
    ({"output_dir": 3}, TypeError, "output_dir=3 is an int; pass text"),
]


@pytest.mark.parametrize(("kwargs", "kind", "message"), REFUSED_HERE, ids=str)
def test_nonsense_is_refused_with_its_name_its_value_and_a_remedy(kwargs, kind, message):
    with pytest.raises(kind, match=message):
        TrainingArguments(**kwargs)


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(ValueError, match=r"^5 arguments cannot be used:") as error:
        TrainingArguments(
            learning_rate="abc",
            weight_decay=-1,
            eval_strategy="sometimes",
            seed="x",
            load_best_model_at_end=True,
        )
    for name in ("learning_rate", "weight_decay", "eval_strategy", "seed", "load_best_model_at_end"):
        assert sum(line.startswith(name) for line in str(error.value).splitlines()) == 1


def test_nothing_is_written_before_the_check(tmp_path):
    with pytest.raises(ValueError, match="learning_rate"):
        TrainingArguments(str(tmp_path / "out"), learning_rate=-1)
    assert list(tmp_path.iterdir()) == []


def test_problems_are_found_again_after_a_change():
    args = TrainingArguments(use_cpu=True)
    assert problems(args) == []
    args.save_strategy, args.report_to, args.max_grad_norm = "epoch", "none", float("inf")
    assert problems(args) == []
    args.optim, args.gradient_accumulation_steps = "adam", 0
    assert len(problems(args)) == 2
    assert len(problems(args, ["optim"])) == 1
    assert problems(args, ["seed"]) == []


def test_broken_json_is_refused():
    kwargs = {"lr_scheduler_kwargs": "{'min_lr': 1}"}
    with pytest.raises(ValueError, match=r"lr_scheduler_kwargs=.* is not JSON .* double quotes"):
        TrainingArguments(**kwargs)
    assert issubclass(refusal(Reference, kwargs), ValueError)


def test_a_backend_may_be_named_in_a_single_process():
    assert TrainingArguments(ddp_backend="gloo", use_cpu=True).world_size == 1


def test_numbers_of_numpy_are_numbers():
    import numpy as np

    args = TrainingArguments(learning_rate=np.float32(0.5), seed=np.int64(3), max_steps=np.int32(3), do_train=np.True_)
    assert args.learning_rate == 0.5


def test_a_file_with_an_unknown_key_is_refused(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"even_batch": True}))
    assert refusal(TrainingArguments, {"accelerator_config": str(path)}) is ValueError
    assert refusal(Reference, {"accelerator_config": str(path)}) is ValueError
    path.write_text("[]")
    with pytest.raises(ValueError, match=r"accelerator_config=.*config.json.*the file holds a list"):
        TrainingArguments(accelerator_config=str(path))
