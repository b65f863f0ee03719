"""Served names have the parameters, members and values of those of the reference."""

import dataclasses
import enum
import importlib
import inspect

import pytest

from lightrainer import callbacks
from lightrainer.interception.names import SERVED
from lightrainer.interception.stand_in.names import STAND_IN
from lightrainer.interception.targets import resolve

MODULES = [
    "data.data_collator",
    "debug_utils",
    "hf_argparser",
    "hyperparameter_search",
    "integrations.integration_utils",
    "optimization",
    "trainer",
    "trainer_callback",
    "trainer_jit_checkpoint",
    "trainer_optimizer",
    "trainer_pt_utils",
    "trainer_seq2seq",
    "trainer_utils",
    "training_args",
    "training_args_seq2seq",
]
NOTEBOOK = "NotebookProgressCallback"
"""Not served by name: the reference looks it up itself."""
GENERATION = [
    "sortish_sampler",
    "predict_with_generate",
    "generation_max_length",
    "generation_num_beams",
    "generation_config",
]
OTHERWISE = {
    # "minimize" there; here a named metric has its own direction, so that a missing direction must
    # differ from "minimize".
    "trainer.Trainer.hyperparameter_search(direction)",
    "trainer_seq2seq.Seq2SeqTrainer.hyperparameter_search(direction)",
    # Of 5.23: what Trackio records stays on this machine unless a Space is named.
    "trainer.TrainingArguments(trackio_space_id)",
    "training_args_seq2seq.Seq2SeqTrainingArguments(trackio_space_id)",
    # Further arguments of a training come before those of generation, which are the last of more
    # than a hundred.
    *(f"training_args_seq2seq.Seq2SeqTrainingArguments({name})" for name in GENERATION),
    # A variable of a loop in the body of the class.
    "trainer.TrainingArguments.is_torch_greater_or_equal_than_2_8",
    "training_args_seq2seq.Seq2SeqTrainingArguments.is_torch_greater_or_equal_than_2_8",
    # Events are called by keywords; these are in `**kwargs`.
    "integrations.integration_utils.ClearMLCallback.on_train_begin(processing_class)",
    "integrations.integration_utils.ClearMLCallback.setup(processing_class)",
    "integrations.integration_utils.SwanLabCallback.on_train_end(model)",
    "integrations.integration_utils.SwanLabCallback.on_train_end(processing_class)",
    "integrations.integration_utils.TrackioCallback.on_train_end(model)",
    "integrations.integration_utils.TrackioCallback.on_train_end(processing_class)",
    # Takes anything, and passes it to the `setup` that ours is.
    "integrations.integration_utils.DagsHubCallback.setup(args)",
    "integrations.integration_utils.DagsHubCallback.setup(state)",
    # The ending of names of a second training in a task: here names are counted by the callback.
    "integrations.integration_utils.ClearMLCallback.log_suffix",
    # Steps of its report, which is a log here.
    *(
        f"debug_utils.DebugUnderflowOverflow.{name}"
        for name in [
            "analyse_model",
            "analyse_variable",
            "batch_end_frame",
            "batch_start_frame",
            "create_frame",
            "dump_saved_frames",
            "expand_frame",
            "forward_hook",
            "register_forward_hook",
            "reset_saved_frames",
            "save_frame",
            "trace_frames",
        ]
    ),
}
"""Deliberate differences."""


def pairs():
    """Theirs and ours by name, each object once."""
    seen = set()
    for module in MODULES:
        theirs = importlib.import_module(f"transformers.{module}")
        for name, target in {**STAND_IN.get(module, {}), **SERVED.get(module, {})}.items():
            other = getattr(theirs, name, None)
            if callable(other) and id(other) not in seen:
                seen.add(id(other))
                yield f"{module}.{name}", other, resolve(target)
    notebook = importlib.import_module("transformers.utils.notebook")
    yield f"utils.notebook.{NOTEBOOK}", getattr(notebook, NOTEBOOK), getattr(callbacks, NOTEBOOK)


def signature(value):
    try:
        return inspect.signature(value)
    except (TypeError, ValueError):
        return None


def differing_parameters(path, theirs, ours):
    """Yield parameters that cannot be passed as in theirs, by name and position, or have another
    default. One that is required there may be left out here.
    """
    expected, actual = signature(theirs), signature(ours)
    if expected is None or actual is None:
        return
    names = list(actual.parameters)
    for position, parameter in enumerate(expected.parameters.values()):
        counterpart = actual.parameters.get(parameter.name)
        if counterpart is None or counterpart.kind is not parameter.kind:
            yield f"{path}({parameter.name})"
            continue
        is_required = parameter.default is parameter.empty
        if not is_required and repr(counterpart.default) != repr(parameter.default):
            yield f"{path}({parameter.name})"
        if parameter.kind in BY_POSITION and names.index(parameter.name) != position:
            yield f"{path}({parameter.name})"
    for name, parameter in actual.parameters.items():
        packed = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if name not in expected.parameters and parameter.default is parameter.empty and not packed:
            yield f"{path}({name})"


def differing_members(path, theirs, ours):
    public = [name for name in dir(theirs) if not name.startswith("_")]
    if "__call__" in vars(theirs):
        public.append("__call__")
    for name in public:
        expected, actual = getattr(theirs, name), getattr(ours, name, NOTHING)
        if actual is NOTHING or callable(expected) != callable(actual):
            yield f"{path}.{name}"
        elif callable(expected) and not inspect.isclass(expected):
            yield from differing_parameters(f"{path}.{name}", expected, actual)
    if issubclass(theirs, enum.Enum):
        values = {member.name: member.value for member in ours}  # later versions have more members
        if any(values.get(member.name) != member.value for member in theirs):
            yield path
    if dataclasses.is_dataclass(theirs):
        names = [field.name for field in dataclasses.fields(theirs)]
        if [field.name for field in dataclasses.fields(ours) if field.name in names] != names:
            yield path


NOTHING = object()
BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def test_parameters_and_members_are_those_of_the_reference():
    pytest.importorskip("transformers")
    mismatches, compared = set(), 0
    for path, theirs, ours in pairs():
        compared += 1
        mismatches.update(differing_parameters(path, theirs, ours))
        if inspect.isclass(theirs) and inspect.isclass(ours):
            mismatches.update(differing_members(path, theirs, ours))
    assert compared > 110
    # accelerate's own class.
    mismatches = {
        name for name in mismatches if not name.startswith("training_args.ParallelismConfig")
    }
    assert sorted(mismatches - OTHERWISE) == []
    assert sorted(OTHERWISE - mismatches) == []


def test_signatures_check_finds_a_moved_parameter():
    """Negative control."""

    def theirs(first, second=1, *, third=2):
        pass

    def swapped(second, first=1, *, third=2):
        pass

    def longer(first, second=1, fourth=3, *, third=2):
        pass

    def changed(first, second=2, third=2):
        pass

    def found(ours):
        return set(differing_parameters("f", theirs, ours))

    assert found(longer) == found(theirs) == set()
    assert found(swapped) == {"f(first)", "f(second)"}
    assert found(changed) == {"f(second)", "f(third)"}
