"""Values of a trial as the arguments hold them, spaces in files."""

import dataclasses
import json

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from helpers.trainer.tiny_trainings import arguments
from lightrainer.facade import Seq2SeqTrainingArguments, TrainingArguments
from lightrainer.facade.arguments.trial_values import apply, declared_types
from lightrainer.tools.sweep.space import read_space

NAMES = [
    ("learning_rate", "1e-3", 1e-3),
    ("num_train_epochs", 3, 3.0),
    ("per_device_train_batch_size", 8.0, 8),
    ("seed", 17.6, 17),  # as Ray draws seeds, and the reference cuts them
    ("seed", "9007199254740993", 9007199254740993),  # a float cannot hold it
    ("max_steps", "1e3", 1000),
    ("bf16_full_eval", "False", False),  # the reference holds True
    ("gradient_checkpointing", "True", True),
    ("lr_scheduler_type", "cosine", "cosine"),
    ("warmup_steps", 0.1, 0.1),  # the reference makes 0 of it
    ("lr_scheduler_kwargs", '{"num_cycles": 2}', {"num_cycles": 2}),
]


@pytest.mark.parametrize(("name", "given", "held"), NAMES)
def test_values_are_cast_to_what_the_field_holds(tmp_path, name, given, held):
    args = arguments(tmp_path)
    assert apply(args, {name: given}) == [name]
    value = getattr(args, name)
    assert value == held
    assert isinstance(value, type(held))


def test_search_values_are_not_set_if_one_is_invalid(tmp_path):
    args = arguments(tmp_path)
    with pytest.raises(ValueError, match="bf16"):
        apply(args, {"learning_rate": 0.5, "bf16": "perhaps"})
    assert args.learning_rate == 1e-2


@pytest.mark.parametrize("value", ["17.6", float("inf"), float("nan")])
def test_values_without_a_whole_number_are_refused(tmp_path, value):
    with pytest.raises(ValueError, match=r"seed=.*must be a whole number"):
        apply(arguments(tmp_path), {"seed": value})


@dataclasses.dataclass
class WithMapping(TrainingArguments):
    class_weights: dict[str, float] = dataclasses.field(default_factory=dict)


def test_values_in_json_are_read_for_a_mapping_of_a_subclass(tmp_path):
    args = WithMapping(output_dir=str(tmp_path), use_cpu=True)
    apply(args, {"class_weights": '{"rare": 2.0}'})
    assert args.class_weights == {"rare": 2.0}


SPACE = """
learning_rate: {low: 1e-5, high: 1e-2, log: true}
num_train_epochs: {low: 1, high: 4}
weight_decay: {low: 0, high: 1, step: 0.5}
lr_scheduler_type: [linear, cosine]
bf16: [true, false]
seed: 7
"""


def test_search_space_in_a_file(tmp_path):
    (tmp_path / "space.yaml").write_text(SPACE)
    trial = optuna.create_study().ask()
    assert read_space(str(tmp_path / "space.yaml")).suggest(trial) == trial.params
    assert trial.distributions == {
        "learning_rate": FloatDistribution(1e-5, 1e-2, log=True),
        "num_train_epochs": IntDistribution(1, 4),
        "weight_decay": FloatDistribution(0, 1, step=0.5),
        "lr_scheduler_type": CategoricalDistribution(("linear", "cosine")),
        "bf16": CategoricalDistribution((True, False)),
        "seed": CategoricalDistribution((7,)),
    }


@pytest.mark.parametrize("name", ["space.yaml", "space.json"])
def test_quoted_texts_of_a_space_stay_texts(tmp_path, name):
    texts = ["01", "8", "ok", "nan", "1e-5"]
    (tmp_path / name).write_text(json.dumps({"fold": texts}))
    assert read_space(str(tmp_path / name)).parameters[0].distribution.choices == tuple(texts)


def test_search_grid_has_all_combinations(tmp_path):
    (tmp_path / "space.yaml").write_text("kind: [a, b]\nfast: {type: flag}\nseed: 7")
    points = read_space(str(tmp_path / "space.yaml")).grid()
    assert points == [
        {"kind": kind, "fast": fast, "seed": 7} for kind in ("a", "b") for fast in (False, True)
    ]
    (tmp_path / "space.yaml").write_text("rate: {low: 0.1, high: 0.3}")
    with pytest.raises(ValueError, match="rate is a range"):
        read_space(str(tmp_path / "space.yaml")).grid()


TEXTS = [
    ("a:", "a: it has no values"),
    ("a: {type: flag, value: true}", "'value' is not known"),
    ("a: {type: float, low: 0, high: 1}", "type 'float' is not known"),
    ("a: {low: 1}\nb: {low: x, high: 1}", "(?s)a: high .*None.*b: low .*'x'"),
    ("a: {low: 0, high: 2, log: true}", "a: .*log"),
    ("a: {typ: int, low: 0, high: 2}", "'typ'.*'type'"),
    ("a: [[1]]", r"values must be .*\[1\]"),
    ("a: {low: 1", "cannot be read"),
    ("a: [1]\nb: [2]\na: [3]", "the key 'a' appears 2 times"),
    ("a: {low: 1, low: 2, high: 3}", "the key 'low' appears 2 times"),
    ("lr_scheduler_kwargs.num_cycles: [1, 2]", "lr_scheduler_kwargs is a .* without nested names"),
    ("seed: {low: 0.0, high: 5.0}", "seed: the training argument is a whole number"),
]


@pytest.mark.parametrize(("text", "match"), TEXTS)
def test_search_space_that_is_invalid(tmp_path, text, match):
    path = tmp_path / "space.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=match):
        read_space(str(path), declared_types(Seq2SeqTrainingArguments))


def test_json_space_with_a_duplicate_key_is_refused():
    with pytest.raises(ValueError, match="the key 'seed' appears 2 times"):
        read_space('{"seed": [1], "seed": [2]}')


RANGES = [
    ("weight_decay: {low: 0, high: 1}", FloatDistribution(0, 1)),
    ("weight_decay: {low: 0, high: 4, step: 1}", FloatDistribution(0, 4, step=1)),
    ("num_train_epochs: {low: 1, high: 4}", FloatDistribution(1, 4)),
    ("num_train_epochs: {type: int, low: 1, high: 4}", IntDistribution(1, 4)),
    ("warmup_steps: {type: int, low: 0, high: 100}", IntDistribution(0, 100)),
    ("warmup_steps: {low: 0, high: 100}", IntDistribution(0, 100)),
    ("warmup_steps: {low: 0, high: 1}", FloatDistribution(0, 1)),
    ("optim.rate: {low: 0, high: 3}", IntDistribution(0, 3)),
    ("seed: {low: 0, high: 3}", IntDistribution(0, 3)),
    ("width: {low: 0, high: 3}", IntDistribution(0, 3)),
]


@pytest.mark.parametrize(("text", "distribution"), RANGES)
def test_whole_ends_are_a_range_of_floats_for_a_float_argument(tmp_path, text, distribution):
    (tmp_path / "space.yaml").write_text(text)
    (parameter,) = read_space(
        str(tmp_path / "space.yaml"), declared_types(Seq2SeqTrainingArguments)
    ).parameters
    assert parameter.distribution == distribution


def test_search_choices_that_differ_from_the_study_name_the_parameter(tmp_path):
    (tmp_path / "space.yaml").write_text("rate: {low: 0.1, high: 0.2}\nkind: [a, b]")
    study = optuna.create_study()
    space = read_space(str(tmp_path / "space.yaml"))
    study.optimize(lambda trial: len(space.suggest(trial)), n_trials=1)
    (tmp_path / "space.yaml").write_text("rate: {low: 0.1, high: 0.9}\nkind: [a, b]")
    read_space(str(tmp_path / "space.yaml")).require_compatible(study)
    (tmp_path / "space.yaml").write_text("rate: {low: 0.1, high: 0.2}\nkind: [a, c]")
    with pytest.raises(ValueError, match=r"kind is .*'a', 'c'.* was .*'a', 'b'"):
        read_space(str(tmp_path / "space.yaml")).require_compatible(study)
