"""How a Trainer behaves over its life: several trainings, modes of the model, interruptions, errors, callbacks."""

import contextlib
import copy
import signal
import sys

import pytest
import torch
from tiny import At, Tiny, losses, points, same, tiny, told, trainer, weights

from lightrainer import ProgressCallback, Trainer, TrainerCallback

# --- several runs of one trainer


def test_the_end_leaves_the_process_group(tmp_path):
    """As in 5.18; a second call, or one where there is no group, does nothing."""
    made = trainer(tmp_path)
    made.train()
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    made.end()
    assert not torch.distributed.is_initialized()
    made.end()


def test_training_twice_goes_on_with_the_model_and_starts_the_count_anew(tmp_path):
    made = trainer(tmp_path)
    first = made.train()
    after_first = weights(made.model)
    rates = [entry["learning_rate"] for entry in made.state.log_history if "learning_rate" in entry]
    second = made.train()
    assert first.global_step == second.global_step == made.state.global_step == 4
    assert [entry["learning_rate"] for entry in made.state.log_history if "learning_rate" in entry] == rates
    assert len(losses(made)) == 4
    assert not same(after_first, weights(made.model))
    assert second.training_loss < first.training_loss


def test_a_model_init_starts_from_the_same_weights_each_time(tmp_path):
    made = trainer(tmp_path, model_init=lambda: Tiny())
    made.train()
    first, model = weights(made.model), made.model
    made.train()
    assert same(first, weights(made.model))
    assert made.model is not model
    assert made.model_wrapped is made.model


def test_gradients_of_the_past_do_not_count(tmp_path):
    """Leftovers in `.grad`, of a script or an interrupted training, are not part of the first step."""
    clean = trainer(tmp_path)
    clean.train()
    made = trainer(tmp_path)
    for parameter in made.model.parameters():
        parameter.grad = torch.full_like(parameter, 10.0)
    made.train()
    assert losses(made) == losses(clean)
    assert same(weights(made.model), weights(clean.model))


def test_evaluating_before_training(tmp_path):
    made = trainer(tmp_path)
    before = made.evaluate()
    assert made.model_preparation_time == before["eval_model_preparation_time"]
    made.train()
    after = made.evaluate()
    assert after["eval_loss"] != before["eval_loss"]
    assert made.predict(points(6, seed=2)).metrics["test_loss"] == after["eval_loss"]


def calm():
    torch.manual_seed(3)
    return Tiny(dropout=0.0)


def test_predicting_in_the_middle_of_a_training(tmp_path):
    """The predictions are those of the model at that step; without dropout, nothing else tells that they were made."""
    undisturbed = trainer(tmp_path, model=calm())
    undisturbed.train()
    found = []
    predict = At("on_step_end", lambda of, *_: found.append((weights(of.model), of.predict(points(5)))), step=2)
    made = trainer(tmp_path, model=calm(), callbacks=[predict])
    told(made).train()
    assert same(weights(made.model), weights(undisturbed.model))
    ((then, prediction),) = found
    model = calm()
    model.load_state_dict(then)
    logits = model.eval().logits(torch.stack([item["x"] for item in points(5)]))
    assert torch.allclose(torch.tensor(prediction.predictions), logits, atol=1e-6)


# --- modes of the model


def modes(api, cls, folder, eval_steps):
    """The mode of the model in every event and after every call."""
    seen = []

    class Looking(api.TrainerCallback):
        def look(self, args, state, control, model=None, **kwargs):
            seen.append((state.global_step, model.training, model.dropout.training))

        # All other events: tests/parity/test_event_sequences.py.
        on_train_begin = on_evaluate = on_prediction_step = on_predict = on_pre_optimizer_step = look

    saving = {
        "eval_strategy": "steps",
        "eval_steps": eval_steps,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    args = api.TrainingArguments(output_dir=str(folder), num_train_epochs=1, save_strategy="no", **saving)
    args.dataloader_pin_memory = False
    made = cls(tiny(), args, train_dataset=points(24), eval_dataset=points(4), callbacks=[Looking()])
    for act in (made.evaluate, made.train, made.evaluate, lambda: made.predict(points(4)), made.train):
        act()
        seen.append(("after", made.model.training))
    return seen


@pytest.mark.parametrize("eval_steps", [2, 3])
def test_the_model_is_in_the_mode_in_which_the_reference_has_it(tmp_path, eval_steps):
    """Of 3 steps the second is evaluated, or the last."""
    import lightrainer

    reference = pytest.importorskip("transformers")
    expected = modes(reference, reference.Trainer, tmp_path / "reference", eval_steps)
    assert modes(lightrainer, Trainer, tmp_path / "ours", eval_steps) == expected
    assert {entry[1] for entry in expected} == {True, False}


def test_each_training_step_puts_every_part_of_the_model_in_training_mode(tmp_path):
    """A module left in evaluation mode by a callback would silently train without dropout."""
    seen = []
    forget = At("on_step_begin", lambda of, *_: of.model.dropout.eval())
    made = trainer(
        tmp_path, callbacks=[forget, At("on_step_end", lambda of, *_: seen.append(of.model.dropout.training))]
    )
    told(made).train()
    assert seen == [True] * 4


# --- interruptions and errors


@pytest.mark.parametrize("event", ["on_train_begin", "on_step_begin", "on_step_end", "on_prediction_step", "on_log"])
def test_an_interruption_reaches_the_script(tmp_path, event):
    """As KeyboardInterrupt, not as the end of the process; Ctrl-C works afterwards, and so does the trainer."""
    handler = signal.getsignal(signal.SIGINT)
    interrupted = []

    def interrupt(*_):
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt

    made = trainer(tmp_path, callbacks=[At(event, interrupt)], eval_strategy="steps", eval_steps=1)
    with pytest.raises(KeyboardInterrupt):
        made.train()
    assert signal.getsignal(signal.SIGINT) is handler
    assert not made.is_in_train
    assert made.train().global_step == 4
    assert made.evaluate()["eval_loss"] > 0


@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_an_interruption_of_an_evaluation(tmp_path, method):
    handler = signal.getsignal(signal.SIGINT)

    def interrupt(*_):
        raise KeyboardInterrupt

    made = trainer(tmp_path, callbacks=[At("on_prediction_step", interrupt)])
    with pytest.raises(KeyboardInterrupt):
        made.evaluate() if method == "evaluate" else made.predict(points(4))
    assert signal.getsignal(signal.SIGINT) is handler
    assert made.pop_callback(At) is not None
    assert made.evaluate()["eval_loss"] > 0


def test_an_exit_keeps_its_code(tmp_path):
    """A callback that answers Ctrl-C by leaving with a code of its own."""

    def leave(*_):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            sys.exit(3)

    with pytest.raises((SystemExit, KeyboardInterrupt)) as raised:
        trainer(tmp_path, callbacks=[At("on_step_end", leave)]).train()
    assert isinstance(raised.value, SystemExit)
    assert raised.value.code == 3


STEPS = ["training_step", "compute_loss", "prediction_step", "create_optimizer", "_save", "get_train_dataloader", "log"]


@pytest.mark.parametrize("name", STEPS)
def test_an_error_of_the_user_comes_out_unchanged(tmp_path, name):
    problem = LookupError("as planned")

    def fail(self, *_, **__):
        raise problem

    cls = type("Failing", (Trainer,), {name: fail})
    made = trainer(tmp_path, cls, eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2)
    with pytest.raises(LookupError) as raised:
        made.train()
    assert raised.value is problem
    assert not made.is_in_train
    setattr(cls, name, getattr(Trainer, name))
    assert made.train().global_step == 4


def test_is_in_train_says_when(tmp_path):
    seen = []
    look = [At(event, lambda of, *_: seen.append(of.is_in_train)) for event in ("on_step_end", "on_evaluate")]
    made = told(trainer(tmp_path, callbacks=look, eval_strategy="epoch"))
    made.train()
    made.evaluate()
    assert seen == [True] * 5 + [False]
    assert not made.is_in_train


# --- callbacks


def test_an_epoch_can_be_stopped(tmp_path):
    """After the second of its four steps, each time; the next epoch begins as if nothing had happened."""

    class HalfEpochs(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_epoch_stop = state.global_step % 2 == 0

    made = trainer(tmp_path, callbacks=[HalfEpochs()], num_train_epochs=3)
    epochs = []
    made.add_callback(At("on_epoch_end", lambda of, state, control: epochs.append((state.global_step, state.epoch))))
    assert made.train().global_step == 6
    assert epochs == [(2, 0.5), (4, 1.5), (6, 2.5)]


def test_callbacks_come_and_go(tmp_path):
    made = trainer(tmp_path)
    present = lambda: [type(one).__name__ for one in made.callback_handler.callbacks]
    assert present() == ["DefaultFlowCallback", "PrinterCallback"]
    mine = At("on_step_end", lambda *_: None)
    made.add_callback(mine)
    made.add_callback(ProgressCallback)
    assert present() == ["DefaultFlowCallback", "PrinterCallback", "At", "ProgressCallback"]
    assert made.pop_callback(At) is mine
    assert made.pop_callback(At) is None
    made.remove_callback(ProgressCallback)
    printer = made.callback_handler.callbacks[1]
    made.remove_callback(printer)
    assert present() == ["DefaultFlowCallback"]
    with contextlib.suppress(ValueError):
        made.remove_callback(printer)
    assert made.train().global_step == 4


def test_a_copy_makes_its_own_components(tmp_path):
    """Uploads, signals and states of callbacks are of one Trainer; what the user gave is shared."""
    made = trainer(tmp_path)
    copied = copy.copy(made)
    assert made._callback_states.host is made
    assert copied._callback_states.host is copied
    assert copied.callback_handler is made.callback_handler
