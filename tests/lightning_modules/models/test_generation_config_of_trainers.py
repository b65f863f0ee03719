"""Sources of the settings of a generation, and errors for invalid ones."""

import json
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from transformers import GenerationConfig, T5Config, T5ForConditionalGeneration
from transformers import Seq2SeqTrainer as Reference

from helpers.trainer.plain_seq2seq import Plain, plain, seq2seq_trainer
from lightrainer import Seq2SeqTrainer
from lightrainer.lightning_modules.models.generation_config import read_generation_config


def t5():
    tokens = {"vocab_size": 11, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    return T5ForConditionalGeneration(
        T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, **tokens)
    )


@pytest.fixture
def saved(tmp_path):
    GenerationConfig(max_length=7, num_beams=2).save_pretrained(tmp_path)
    return tmp_path


def test_generation_config_file_without_transformers_is_a_dict(saved, monkeypatch):
    monkeypatch.delitem(sys.modules, "transformers.generation.configuration_utils")
    config = Seq2SeqTrainer.load_generation_config(saved)
    assert config == {
        "max_length": 7,
        "num_beams": 2,
        **{key: value for key, value in config.items() if key[0] == "_"},
    }
    assert "transformers_version" not in config


@pytest.mark.parametrize(
    "name", ["./nowhere", "/no/such/folder", "config.json", "~/nowhere", "a/b/c"]
)
def test_generation_config_missing_path_is_named(name):
    with pytest.raises(FileNotFoundError, match=f"generation_config='{name}' is not a JSON file"):
        Seq2SeqTrainer.load_generation_config(name)
    with pytest.raises(
        FileNotFoundError, match="This model does not load generation configs from the Hub"
    ):
        read_generation_config("me/model", dict)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{max: 1}", ".*Expecting property name"), ("[1]", ".*the file holds a list")],
)
def test_generation_config_file_of_something_else_is_named(tmp_path, text, message):
    path = tmp_path / "settings.json"
    path.write_text(text)
    with pytest.raises(
        ValueError, match=rf"generation_config='.*settings.json' is invalid.*\n{message}"
    ):
        read_generation_config(path, dict)


STRICTLY_WRONG = [
    ({"temperature": 0.5, "top_p": 0.9}, ["temperature", "top_p"]),
    ({"length_penalty": 2.0}, ["length_penalty"]),
    ({"num_return_sequences": 3}, ["num_return_sequences"]),
]


@pytest.mark.parametrize(("settings", "names"), STRICTLY_WRONG, ids=str)
@pytest.mark.parametrize("form", ["object", "dict", "folder"])
def test_generation_config_that_cannot_be_saved_is_refused(tmp_path, settings, names, form):
    """As the reference does; all that is wrong is listed, before anything is written."""
    config = dict(settings)
    if form == "folder":
        config = tmp_path / "config"
        config.mkdir()
        (config / "generation_config.json").write_text(json.dumps(settings))
    elif form == "object":
        config = GenerationConfig()
        for name, value in settings.items():
            setattr(config, name, value)
    with pytest.raises(
        ValueError,
        match=r"(?s)generation_config=.*is invalid:.*Fix these issues to train your model",
    ) as error:
        seq2seq_trainer(tmp_path / "out", trainer={"model": t5()}, generation_config=config)
    assert all(f"`{name}`" in str(error.value) for name in names)
    assert not (tmp_path / "out").exists()
    if form != "dict":
        with pytest.raises(ValueError, match=names[0]):
            Reference.load_generation_config(config)


def test_unknown_settings_in_a_dict_are_named(tmp_path):
    wrong = {"max_lenght": 5, "beams": 2}
    with pytest.raises(
        ValueError, match=r"GenerationConfig has no setting 'max_lenght'. Did you mean"
    ) as error:
        seq2seq_trainer(tmp_path, trainer={"model": t5()}, generation_config=wrong)
    assert "'beams'" in str(error.value)
    with pytest.raises(
        ValueError, match=r"Plain.generate .* max_lenght=5, beams=2\. .*: source, max_length"
    ):
        seq2seq_trainer(tmp_path, generation_config=wrong)


def test_generation_config_path_gives_settings_to_a_plain_model(saved, tmp_path):
    (saved / "generation_config.json").write_text(
        json.dumps({"max_length": 4, "transformers_version": "5.3.0"})
    )
    trainer = seq2seq_trainer(tmp_path, generation_config=saved)
    assert trainer.model.generation_config == {"max_length": 4}


@dataclass
class Settings:
    max_length: int = 5
    num_beams: int = 1


class Reading(Plain):
    """Its generate reads the settings of the model itself."""

    def __init__(self):
        super().__init__()
        self.generation_config = Settings()

    def generate(self, source):
        return super().generate(
            source, self.generation_config.max_length, self.generation_config.num_beams
        )


@pytest.mark.parametrize(
    "given",
    [{"max_length": 3}, Settings(max_length=3), SimpleNamespace(max_length=3, num_beams=1)],
)
def test_generation_config_is_passed_to_a_model_that_reads_its_own(tmp_path, given):
    extra = {"model": plain(kind=Reading), "processing_class": SimpleNamespace(pad_token_id=0)}
    trainer = seq2seq_trainer(tmp_path, trainer=extra, generation_config=given)
    trainer.prediction_step(trainer.model, {"source": torch.ones(2, 2, dtype=torch.long)}, False)
    assert trainer.model.calls[-1]["max_length"] == 3
    assert Settings().max_length == 5


def test_generation_config_settings_reach_a_model_that_reads_its_own(tmp_path):
    with pytest.raises(
        ValueError, match=r"Settings has no setting 'max_lenght'. Did you mean 'max_length'"
    ):
        seq2seq_trainer(
            tmp_path, trainer={"model": plain(kind=Reading)}, generation_config={"max_lenght": 3}
        )
