"""Flow and early stopping: the same events and switches as the reference, state by state."""

import itertools
from types import SimpleNamespace

import pytest
from transformers import trainer_callback as reference

import lightrainer.callbacks as ours

STEPS_PER_EPOCH, EPOCHS = 5, 3
LOSSES = (
    3.0,
    2.0,
    2.05,
    1.5,
    1.49,
    1.6,
    1.7,
    float("nan"),
    1.0,
    1.1,
    1.2,
    1.3,
    1.4,
    1.5,
    1.6,
    1.7,
)
GRID = {
    "logging_strategy": ("no", "steps", "epoch"),
    "eval_strategy": ("no", "steps", "epoch"),
    "save_strategy": ("no", "steps", "epoch", "best"),
    "logging_first_step": (False, True),
    "eval_delay": (0, 4, 1.5),
}


def arguments(**changed):
    values = {name: options[0] for name, options in GRID.items()}
    values |= {"logging_steps": 2, "eval_steps": 3, "save_steps": 4}
    values |= {
        "metric_for_best_model": "loss",
        "greater_is_better": False,
        "load_best_model_at_end": True,
    }
    return SimpleNamespace(**(values | changed))


def drive(module, args, callbacks, max_steps=STEPS_PER_EPOCH * EPOCHS):
    """Walk a handler through a run as the training loop does, and note each event with the
    switches after it.
    """
    handler = module.CallbackHandler(callbacks, None, None, None, None)
    state, control, trace = module.TrainerState(max_steps=max_steps), module.TrainerControl(), []
    state.compute_steps(args, max_steps)
    losses = iter(LOSSES)

    def fire(event, *extra):
        nonlocal control
        control = getattr(handler, event)(args, state, control, *extra)
        trace.append((event, state.global_step, tuple(control.state()["args"].values())))

    def obey():
        if control.should_log:
            fire("on_log", {"loss": 1.0})
        if control.should_evaluate:
            loss = next(losses)
            fire("on_evaluate", {"eval_loss": loss})
            if state.best_metric is None or loss < state.best_metric:
                state.best_metric = loss
        if control.should_save:
            fire("on_save")

    fire("on_train_begin")
    for epoch in range(EPOCHS):
        fire("on_epoch_begin")
        for step in range(1, STEPS_PER_EPOCH + 1):
            fire("on_step_begin")
            fire("on_pre_optimizer_step")
            fire("on_optimizer_step")
            state.global_step += 1
            state.epoch = epoch + step / STEPS_PER_EPOCH
            fire("on_step_end")
            obey()
            if control.should_epoch_stop or control.should_training_stop:
                break
        fire("on_epoch_end")
        obey()
        if control.should_training_stop:
            break
    fire("on_train_end")
    return trace


def both(args, patience=None, threshold=0.0, **options):
    traces = []
    for module in (ours, reference):
        callbacks = [module.DefaultFlowCallback]
        if patience is not None:
            callbacks.append(module.EarlyStoppingCallback(patience, threshold))
        traces.append(drive(module, args, callbacks, **options))
    return traces


@pytest.mark.parametrize("max_steps", [STEPS_PER_EPOCH * EPOCHS, 7])
def test_switches_equal_those_of_the_reference_for_all_combinations_of_arguments(max_steps):
    for values in itertools.product(*GRID.values()):
        args = arguments(**dict(zip(GRID, values, strict=True)))
        mine, theirs = both(args, max_steps=max_steps)
        assert mine == theirs, args


@pytest.mark.parametrize("fraction", [0.2, 0.05])
def test_intervals_given_as_fractions_equal_those_of_the_reference(fraction):
    args = arguments(logging_strategy="steps", eval_strategy="steps", save_strategy="steps")
    args.logging_steps = args.eval_steps = args.save_steps = fraction
    mine, theirs = both(args)
    assert mine == theirs


@pytest.mark.parametrize(
    ("patience", "threshold"), [(1, 0.0), (2, 0.0), (2, 0.1), (3, 0.6), (0, 0.0), (99, 0.0)]
)
def test_early_stopping_equals_that_of_the_reference(patience, threshold):
    args = arguments(eval_strategy="steps", eval_steps=1, save_strategy="steps")
    mine, theirs = both(args, patience, threshold)
    assert mine == theirs
