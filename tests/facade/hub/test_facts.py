"""What a model card says of a training: the task, where data comes from, evaluations."""

import datasets
import pytest
from transformers import modelcard
from transformers.modelcard import parse_log_history

from lightrainer.facade.hub.evaluations import evaluations
from lightrainer.facade.hub.facts import sources_of
from lightrainer.facade.hub.tasks import task_of


def named(name, **attributes):
    return type(name, (), attributes)()


def test_images_and_sound_beside_text():
    images = type("Config", (), {"vision_config": {}})()
    assert task_of(named("LlavaForConditionalGeneration", config=images)) == "image-text-to-text"
    assert task_of(named("GitForCausalLM", config=images)) == "image-text-to-text"
    assert task_of(named("CLIPForImageClassification", config=images)) == "image-classification"
    sound = type("Config", (), {"audio_config": {}})()
    assert (
        task_of(named("VoxtralForConditionalGeneration", config=sound))
        == "automatic-speech-recognition"
    )


def test_most_names_of_the_reference_are_told_as_there():
    """Its tables of classes, by name alone; what is left are models of images and sound, and
    what has no ending.
    """
    tables = {
        task: set(modelcard._get_mapping_values(table))
        for task, table in modelcard.TASK_MAPPING.items()
    }
    last = {name: task for task, names in tables.items() for name in names}
    wrong = {name: task for name, task in last.items() if task_of(named(name)) != task}
    assert len(last) > 500
    assert len(wrong) / len(last) < 0.16
    text = {
        "text-generation",
        "fill-mask",
        "text-classification",
        "token-classification",
        "question-answering",
    }
    assert [name for name, task in wrong.items() if task in text] == ["BertGenerationDecoder"]


def made(**info):
    data = datasets.Dataset.from_dict({"x": [1, 2, 3]}, split=info.pop("split", None))
    for name, value in info.items():
        setattr(data.info, name, value)
    return data


def test_facts_of_a_dataset_with_a_custom_builder():
    (source,) = sources_of(made(builder_name="squad", config_name="default"))
    assert (source.tag, source.config, source.split) == ("squad", "default", None)


@pytest.mark.parametrize("builder", ["csv", "json", "text", "parquet", "generator", None])
def test_files_of_the_user_have_no_name(builder):
    assert sources_of(made(builder_name=builder)) == ()


def test_evaluations_leave_out_memory_but_no_metric_of_a_similar_name():
    entry = {"step": 1, "eval_item_mem_score": 0.5, "eval_mem_cpu_alloc_delta": 10}
    (row,) = evaluations([entry])
    assert row.metrics == {"item_mem_score": 0.5}


HISTORY = [
    {"loss": 2.0, "step": 1, "epoch": 0.5},
    {"eval_loss": 1.5, "eval_f1_macro": 0.25, "eval_runtime": 1.0, "step": 1, "epoch": 0.5},
    {"loss": 1.0, "step": 2, "epoch": 1.0},
    {
        "eval_loss": 1.25,
        "eval_f1_macro": 0.5,
        "eval_samples_per_second": 2.0,
        "step": 2,
        "epoch": 1.0,
    },
    {"train_runtime": 3.0, "train_loss": 1.5, "step": 2, "epoch": 1.0},
]


def test_facts_equal_the_reference():
    _, lines, results = parse_log_history(HISTORY)
    for row, line in zip(evaluations(HISTORY), lines, strict=True):
        assert (row.step, row.epoch, row.training_loss) == (
            line["Step"],
            line["Epoch"],
            line["Training Loss"],
        )
        assert [row.metrics["loss"], row.metrics["f1_macro"]] == [
            line["Validation Loss"],
            line["F1 Macro"],
        ]
    assert list(evaluations(HISTORY)[-1].metrics.values()) == list(results.values())
