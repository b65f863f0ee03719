"""Logger, level, category and key words of warnings and errors equal those of the reference."""

import dataclasses
import logging
import warnings

import pytest

from helpers.parity.harness import DEFAULTS
from helpers.parity.parity_datasets import points
from helpers.parity.parity_models import Classifier
from lightrainer.interception.switch import LOGGERS


def make_trainer(api, folder, model=None, train=True, callbacks=(), **arguments):
    args = api.TrainingArguments(
        output_dir=str(folder), **{**DEFAULTS, "max_steps": 2, **arguments}
    )
    data = {"train_dataset": points(8), "eval_dataset": points(4)}
    trainer = api.Trainer(model or Classifier(), args, **data, callbacks=list(callbacks))
    return trainer.train() if train else trainer


def a_callback_twice(api, folder):
    make_trainer(api, folder, train=False, callbacks=[api.PrinterCallback, api.PrinterCallback])


def no_flow(api, folder):
    home = api.trainer_callback if api.__name__ == "transformers" else api
    home.CallbackHandler([], Classifier(), None, None, None)


def a_state_without_its_callback(api, folder):
    stop = api.EarlyStoppingCallback(early_stopping_patience=9)
    saving = {"eval_strategy": "epoch", "save_strategy": "epoch", "metric_for_best_model": "loss"}
    saving["load_best_model_at_end"] = True
    make_trainer(api, folder, callbacks=[stop], **saving)
    saving |= {"restore_callback_states_from_checkpoint": True, "num_train_epochs": 3}
    restored = make_trainer(api, folder, train=False, **saving)
    restored.train(resume_from_checkpoint=str(folder / "checkpoint-2"))


def other_arguments_than_in_the_checkpoint(api, folder):
    make_trainer(api, folder, save_strategy="steps", save_steps=1, logging_steps=1)
    changed = make_trainer(
        api, folder, train=False, save_strategy="steps", save_steps=3, logging_steps=2
    )
    changed.train(resume_from_checkpoint=str(folder / "checkpoint-1"))


def smoothing_with_several_labels(api, folder):
    model = Classifier()
    model.config = type("Config", (), {"problem_type": "multi_label_classification"})()
    trainer = make_trainer(api, folder, model, train=False, label_smoothing_factor=0.1)
    assert trainer.label_smoother is None


def tokens_of_an_unknown_input(api, folder):
    make_trainer(api, folder, include_num_input_tokens_seen="all")


SAID = {
    a_callback_twice: ["already one", "PrinterCallback"],
    no_flow: ["DefaultFlowCallback"],
    a_state_without_its_callback: ["callbacks", "not included", "EarlyStoppingCallback"],
    other_arguments_than_in_the_checkpoint: [
        "trainer_state.json",
        "\n\tlogging_steps: 2 (from args) != 1 (from trainer_state.json)",
        "\n\tsave_steps: 3 (from args) != 1 (from trainer_state.json)",
    ],
    smoothing_with_several_labels: [
        "Label smoothing is not compatible with multi-label classification"
    ],
    tokens_of_an_unknown_input: ["main_input_name"],
}


def emitted(api, cause, folder, words):
    """Return logger and level, or category, of the message."""
    records = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = records.append
    roots = [logging.getLogger(name) for name in ("transformers", "lightrainer")]
    for root in roots:
        root.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            cause(api, folder)
    finally:
        for root in roots:
            root.removeHandler(handler)
    messages = [(name_of(record), record.levelname, record.getMessage()) for record in records]
    messages += [("warnings", warning.category, str(warning.message)) for warning in warned]
    return {
        (who, how) for who, how, text in messages if all(word in text for word in words)
    }, messages


def name_of(record):
    """The reference's logger that emits it where its names are served."""
    name = record.name
    while name.startswith("lightrainer") and name not in LOGGERS:
        name = name.rpartition(".")[0]
    return LOGGERS.get(name, name)


@pytest.mark.parametrize("cause", SAID, ids=lambda one: one.__name__)
def test_warnings_are_those_of_the_reference(reference, ours, tmp_path, cause):
    expected, theirs = emitted(reference, cause, tmp_path / "reference", SAID[cause])
    actual, messages = emitted(ours, cause, tmp_path / "ours", SAID[cause])
    assert expected, theirs
    assert actual == expected, messages


def no_checkpoint(api, folder):
    make_trainer(api, folder, train=False).train(resume_from_checkpoint=True)


def a_missing_checkpoint(api, folder):
    make_trainer(api, folder, train=False).train(
        resume_from_checkpoint=str(folder / "checkpoint-9")
    )


def an_empty_checkpoint(api, folder):
    (folder / "checkpoint-9").mkdir(parents=True)
    make_trainer(api, folder, train=False).train(
        resume_from_checkpoint=str(folder / "checkpoint-9")
    )


def the_best_by_no_metric(api, folder):
    make_trainer(api, folder, train=False, save_strategy="best")


def the_best_by_an_unknown_metric(api, folder):
    by_epochs = {"eval_strategy": "epoch", "save_strategy": "epoch"}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "f2"}
    make_trainer(api, folder, **by_epochs, **best)


def accumulation_twice(api, folder):
    config = {"gradient_accumulation_kwargs": {"num_steps": 10}}
    make_trainer(api, folder, gradient_accumulation_steps=2, accelerator_config=config)


def a_class_as_configuration(api, folder):
    api.TrainingArguments(output_dir=str(folder), accelerator_config=dict)


def a_class_as_default_of_a_field(api, folder):
    @dataclasses.dataclass
    class Arguments(api.TrainingArguments):
        accelerator_config: dict = dataclasses.field(default=dict)

    Arguments(output_dir=str(folder))


def generation_that_contradicts_itself(api, folder):
    config = pytest.importorskip("transformers").GenerationConfig(max_length=4)
    config.temperature = 0.5
    config.do_sample = False
    model = Classifier()
    model.generate = model.forward
    model.generation_config = None
    args = api.Seq2SeqTrainingArguments(str(folder), generation_config=config, use_cpu=True)
    api.Seq2SeqTrainer(model, args, train_dataset=points(8))


RAISED = {
    no_checkpoint: (ValueError, "No valid checkpoint found in output directory"),
    a_missing_checkpoint: (ValueError, "Can't find a valid checkpoint at"),
    an_empty_checkpoint: (ValueError, "Can't find a valid checkpoint at"),
    the_best_by_no_metric: (ValueError, "`args.metric_for_best_model` must be provided"),
    the_best_by_an_unknown_metric: (
        KeyError,
        "The `metric_for_best_model` training argument is set to 'eval_f2', which is not found in "
        "the evaluation metrics",
    ),
    accumulation_twice: (ValueError, "The `AcceleratorConfig`'s `num_steps` is set but"),
    a_class_as_configuration: (
        NotImplementedError,
        "Tried passing in a callable to `accelerator_config`",
    ),
    a_class_as_default_of_a_field: (
        NotImplementedError,
        "Tried passing in a callable to `accelerator_config`",
    ),
    generation_that_contradicts_itself: (ValueError, "Fix these issues to train your model"),
}


@pytest.mark.parametrize("cause", RAISED, ids=lambda one: one.__name__)
def test_errors_have_the_words_by_which_scripts_know_them(reference, ours, tmp_path, cause):
    kind, words = RAISED[cause]
    for api in (reference, ours):
        with pytest.raises(kind) as error:
            cause(api, tmp_path / api.__name__)
        assert words in str(error.value)
