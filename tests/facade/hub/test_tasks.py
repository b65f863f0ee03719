"""The task of a model, told by its name and by what it is given."""

from transformers import modelcard

from lightrainer.facade.hub.facts import task_of


def named(name, **attributes):
    return type(name, (), attributes)()


def test_images_and_sound_beside_text():
    images = type("Config", (), {"vision_config": {}})()
    assert task_of(named("LlavaForConditionalGeneration", config=images)) == "image-text-to-text"
    assert task_of(named("GitForCausalLM", config=images)) == "image-text-to-text"
    assert task_of(named("CLIPForImageClassification", config=images)) == "image-classification"
    sound = type("Config", (), {"audio_config": {}})()
    assert task_of(named("VoxtralForConditionalGeneration", config=sound)) == "automatic-speech-recognition"


def test_most_names_of_the_reference_are_told_as_there():
    """Its tables of classes, by name alone; what is left are models of images and sound, and what has no ending."""
    tables = {task: set(modelcard._get_mapping_values(table)) for task, table in modelcard.TASK_MAPPING.items()}
    last = {name: task for task, names in tables.items() for name in names}
    wrong = {name: task for name, task in last.items() if task_of(named(name)) != task}
    assert len(last) > 500
    assert len(wrong) / len(last) < 0.16
    text = {"text-generation", "fill-mask", "text-classification", "token-classification", "question-answering"}
    assert [name for name, task in wrong.items() if task in text] == ["BertGenerationDecoder"]
