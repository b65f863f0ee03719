"""Contract of every callback of the package."""

import inspect
import json
from types import SimpleNamespace

import pytest
import torch
from transformers import integrations
from transformers import trainer_callback as reference

import lightrainer.callbacks as ours
from lightrainer.callbacks.loggers import availability

NAMES = """
    DefaultFlow EMA EarlyStopping GradientNorm JITCheckpoint Memory NaNGuard NotebookProgress Printer
    Profiler Progress
    RunReport TensorBoard Throughput TimeLimit
"""
ARGUMENTS = {"EarlyStopping": {"early_stopping_patience": 2}, "TimeLimit": {"limit": 3600}}
CALLBACKS = {f"{name}Callback": ARGUMENTS.get(name, {}) for name in NAMES.split()}
WITH_COUNTERPART = ("DefaultFlow", "EarlyStopping", "Printer", "Progress", "TensorBoard")
"""Those whose arguments are those of the reference."""
# Those that need a client are in loggers/test_loggers.py.
TRACKERS = {kind for _, kind, _ in availability.TRACKERS.values()} - {"TensorBoardCallback"} | {
    "LoggerCallback"
}
NOT_A_CALLBACK_TO_PASS = {"CallbackHandler", "TrainerCallback"}
IN_A_RUN = [*(event for event in ours.EVENTS if event != "on_train_end"), "on_train_end"]
"""The events, `on_train_end` after those of the training."""
EXTRA = {"on_log": {"logs": {"loss": 1.5, "learning_rate": 1e-3, "note": "text"}}} | {
    event: {"metrics": {"eval_loss": 2.0}} for event in ("on_evaluate", "on_predict")
}


def arguments(tmp_path, **changed):
    values = {
        "output_dir": str(tmp_path),
        "logging_dir": None,
        "logging_first_step": False,
        "eval_delay": 0,
    }
    values |= {f"{kind}_strategy": "steps" for kind in ("logging", "eval", "save")}
    values |= {
        "metric_for_best_model": "loss",
        "greater_is_better": False,
        "load_best_model_at_end": True,
    }
    values |= {"gradient_accumulation_steps": 1, "world_size": 1}
    args = SimpleNamespace(**(values | changed))
    args.to_json_string = lambda: json.dumps(values)
    args.to_sanitized_dict = lambda: {
        k: v if isinstance(v, (int, float, str)) else str(v) for k, v in values.items()
    }
    return args


def everything():
    """Return the objects that the handler passes with each event."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names = (
        "model",
        "processing_class",
        "optimizer",
        "lr_scheduler",
        "train_dataloader",
        "eval_dataloader",
    )
    return dict(zip(names, (model, None, optimizer, None, [0], [0, 1]), strict=True))


def test_callbacks_of_the_package_are_all_tested():
    names = {
        name
        for name in ours.__all__
        if inspect.isclass(getattr(ours, name))
        and issubclass(getattr(ours, name), ours.TrainerCallback)
    } - TRACKERS
    assert names - NOT_A_CALLBACK_TO_PASS == set(CALLBACKS)


def test_callback_events_equal_the_reference():
    theirs = {name for name in vars(reference.TrainerCallback) if name.startswith("on_")}
    assert len(ours.EVENTS) == 16
    assert set(ours.EVENTS) == theirs


@pytest.mark.parametrize("name", [f"{name}Callback" for name in WITH_COUNTERPART])
def test_constructor_arguments_come_in_the_order_of_the_reference(name):
    counterpart = getattr(integrations if name == "TensorBoardCallback" else reference, name)
    mine, theirs = (
        inspect.signature(cls).parameters.values() for cls in (getattr(ours, name), counterpart)
    )
    assert [(p.name, p.default) for p in mine] == [(p.name, p.default) for p in theirs]


@pytest.mark.parametrize("first_process", [True, False])
@pytest.mark.parametrize("name", CALLBACKS)
def test_callback_events_accept_documented_arguments_and_return_control_or_none(
    name, first_process, tmp_path
):
    callback = getattr(ours, name)(**CALLBACKS[name])
    state = ours.TrainerState(max_steps=4, global_step=1, log_history=[{"loss": 1.5, "step": 1}])
    state.is_world_process_zero = state.is_local_process_zero = first_process
    control = ours.TrainerControl()
    for event in IN_A_RUN:
        returned = getattr(callback, event)(
            arguments(tmp_path), state, control, **everything(), **EXTRA.get(event, {})
        )
        assert returned is None or returned is control, event
    if not first_process:
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("event", ours.EVENTS)
@pytest.mark.parametrize("name", CALLBACKS)
def test_callback_events_work_without_earlier_ones(name, event, tmp_path):
    callback = getattr(ours, name)(**CALLBACKS[name])
    state = ours.TrainerState(max_steps=4, global_step=2)
    getattr(callback, event)(
        arguments(tmp_path), state, ours.TrainerControl(), **everything(), **EXTRA.get(event, {})
    )
    callback.on_train_end(arguments(tmp_path), state, ours.TrainerControl())


@pytest.mark.parametrize("name", CALLBACKS)
def test_callbacks_work_under_the_handler_of_the_reference(name, tmp_path):
    handler = reference.CallbackHandler(
        [getattr(ours, name)(**CALLBACKS[name])], None, None, None, None
    )
    state, control = reference.TrainerState(max_steps=4, global_step=1), reference.TrainerControl()
    for event in IN_A_RUN:
        control = getattr(handler, event)(
            arguments(tmp_path), state, control, *EXTRA.get(event, {}).values()
        )
    assert isinstance(control, reference.TrainerControl)
