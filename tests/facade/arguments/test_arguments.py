"""TrainingArguments after construction: copies, changes, texts, properties, setters."""

import copy
import dataclasses
import functools
import json
import pickle

import pytest
import torch

from lightrainer.callbacks import available_reporting_integrations
from lightrainer.facade.arguments import AcceleratorConfig, TrainingArguments
from lightrainer.facade.arguments.enums import IntervalStrategy

FIELDS = {item.name: item for item in dataclasses.fields(TrainingArguments)}


def make(**kwargs):
    return TrainingArguments(**{"output_dir": "out", "use_cpu": True, **kwargs})


@dataclasses.dataclass
class WithMore(TrainingArguments):
    x: int = 1
    model_init_kwargs: dict | str | None = None
    push_token: str | None = None
    learning_rate: float = 1.0
    _VALID_DICT_FIELDS = [*TrainingArguments._VALID_DICT_FIELDS, "model_init_kwargs"]


def test_arguments_survive_pickle_and_copy_and_compare_equal():
    args = make(
        learning_rate=1e-3, eval_strategy="epoch", lr_scheduler_kwargs={"a": 1}, hub_token="secret"
    )
    for other in (
        pickle.loads(pickle.dumps(args)),
        copy.deepcopy(args),
        copy.copy(args),
        dataclasses.replace(args),
    ):
        assert other == args
        assert vars(other) == vars(args)
        assert other.eval_strategy is IntervalStrategy.EPOCH
    assert make(learning_rate=1e-3) != make(learning_rate=1e-4)


def test_private_names_of_devices_are_those_of_the_reference():
    """Older scripts read them, and set the number of GPUs."""
    args = make()
    assert (args._n_gpu, args.n_gpu, args._setup_devices) == (0, 0, torch.device("cpu"))
    args._n_gpu = 1
    assert args.n_gpu == args._n_gpu == pickle.loads(pickle.dumps(args)).n_gpu == 1
    assert make().n_gpu == 0


def test_subclass_may_choose_the_device(tmp_path):
    """As in transformers, by the private name, which may be a cached property."""

    class OnMeta(TrainingArguments):
        @functools.cached_property
        def _setup_devices(self):
            return torch.device("meta")

    args = OnMeta(output_dir=str(tmp_path))
    assert args.device == torch.device("meta")
    assert make().device == torch.device("cpu")


def test_subclass_may_set_names_that_the_reference_does_not_have():
    """Arguments of libraries keep what they know of the processes under these names."""
    args = make()
    args.rank, args.global_world_size, args.local_world_size = 3, 8, 4
    assert (args.rank, args.global_world_size, args.local_world_size) == (3, 8, 4)
    assert args.distributed_state.local_world_size == args.world_size == 1


def test_subclass_adds_fields_and_changes_defaults():
    args = WithMore("out", x=2, use_cpu=True, model_init_kwargs='{"a": "1"}')
    assert (args.x, args.learning_rate, args.model_init_kwargs) == (2, 1.0, {"a": 1})
    assert pickle.loads(pickle.dumps(args)) == args
    assert [f.name for f in dataclasses.fields(args)][: len(FIELDS)] == list(FIELDS)


def test_containers_of_the_user_are_not_changed():
    kwargs = {
        "fsdp_config": {"fsdp_min_num_params": 0},
        "accelerator_config": {"even_batches": False},
    }
    before = copy.deepcopy(kwargs)
    args = make(**kwargs)
    assert kwargs == before
    assert args.fsdp_config["xla"] is False
    assert args.accelerator_config == AcceleratorConfig(even_batches=False)


def test_tokens_are_shown_nowhere():
    shown = make(hub_token="s3cret")
    for text in (str(shown), repr(shown), shown.to_json_string(), str(shown.to_sanitized_dict())):
        assert "s3cret" not in text
        assert "<HUB_TOKEN>" in text
    more = WithMore("out", use_cpu=True, hub_token="s3cret", push_token="t0ken")
    assert "s3cret" not in repr(more)
    assert "t0ken" not in str(more) + more.to_json_string()


def test_to_dict_is_json_and_does_not_change_the_arguments():
    kwargs = {"dtype": torch.bfloat16, "deep": {"dtype": torch.float16}}
    args = WithMore("out", use_cpu=True, model_init_kwargs=kwargs)
    written = args.to_dict()
    assert written["model_init_kwargs"] == {"dtype": "bfloat16", "deep": {"dtype": "float16"}}
    assert args.model_init_kwargs == {"dtype": torch.bfloat16, "deep": {"dtype": torch.float16}}
    assert json.loads(args.to_json_string()) == written
    assert written["optim"] == "adamw_torch_fused"


def test_report_to_has_many_forms():
    assert [make(report_to=form).report_to for form in ("none", ["none"], None, [], ())] == [[]] * 5
    assert make(report_to="tensorboard").report_to == ["tensorboard"]
    assert (
        make(report_to="all").report_to
        == make(report_to=["all"]).report_to
        == available_reporting_integrations()
    )
    assert "tensorboard" in available_reporting_integrations()


def test_setter_that_fails_changes_nothing():
    args = make()
    before = copy.deepcopy(args)
    with pytest.raises(ValueError, match="learning_rate=-1"):
        args.set_optimizer(name="sgd", learning_rate=-1)
    with pytest.raises(ValueError, match="Did you mean 'epoch'"):
        args.set_save(strategy="epochs")
    with pytest.raises(ValueError, match=r"^2 arguments are invalid:\nreport_to='foo' is not"):
        args.set_logging(report_to=["foo", "bar"])
    assert args == before


def test_setter_override_runs_once():
    calls = []

    class Counted(TrainingArguments):
        def set_lr_scheduler(self, *args, **kwargs):
            calls.append(kwargs)
            return super().set_lr_scheduler(*args, **kwargs)

    args = Counted().set_lr_scheduler(warmup_ratio=0.05)
    assert calls == [{"warmup_ratio": 0.05}]
    assert args.warmup_steps == 0.05


def test_token_counting_from_a_command_line():
    forms = {True: "all", False: "no", "true": "all", "False": "no", "non_padding": "non_padding"}
    assert {
        form: make(include_num_input_tokens_seen=form).include_num_input_tokens_seen
        for form in forms
    } == forms


def test_placeholders_of_tokens_are_dropped():
    """A dict of arguments shows no token, and what is made of it has none, not the text in its
    place.
    """
    args = WithMore("out", use_cpu=True, hub_token="s3cret", push_token="t0ken")
    again = WithMore(**args.to_dict())
    assert (again.hub_token, again.push_token) == (None, None)
    assert make(hub_token="<HUB>").hub_token == "<HUB>"
