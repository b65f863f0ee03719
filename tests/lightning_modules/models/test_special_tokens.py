"""The model's special tokens follow the tokenizer, as in the later versions of the reference."""

import copy
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer, models
from transformers import GPT2Config, GPT2LMHeadModel, LlavaConfig, PreTrainedTokenizerFast
from transformers.trainer_utils import align_special_tokens as reference_align

from lightrainer.lightning_modules.models.special_tokens import align_special_tokens

VOCABULARY = {"<a>": 0, "<b>": 1, "<c>": 2, "x": 3, "y": 4}


def tokenizer(**special: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(VOCABULARY, unk_token="x")), **special
    )


def model(**special: object) -> GPT2LMHeadModel:
    config = {"bos_token_id": 3, "eos_token_id": 4, **special}
    return GPT2LMHeadModel(
        GPT2Config(n_layer=1, n_head=1, n_embd=4, vocab_size=5, n_positions=4, **config)
    )


CASES = {
    "all new": ({"eos_token": "<a>", "bos_token": "<b>", "pad_token": "<c>"}, {}),
    "padding only": ({"eos_token": "y", "bos_token": "x", "pad_token": "<c>"}, {}),
    "the same": ({"eos_token": "y", "bos_token": "x"}, {}),
    "the tokenizer has none": ({}, {}),
    "the tokenizer has no BOS": ({"eos_token": "<c>"}, {}),
    "several ends": ({"eos_token": "<c>"}, {"eos_token_id": [3, 4]}),
    "one of several ends": ({"eos_token": "y"}, {"eos_token_id": [3, 4]}),
    "the model has none": ({"eos_token": "<a>"}, {"eos_token_id": None, "bos_token_id": None}),
}
NEWEST = Path(sys.prefix) / "newest/transformers/trainer_utils.py"


@pytest.fixture(scope="module")
def later():
    """The function of the newest transformers; 5.3.0 erases tokens that the tokenizer lacks, and
    further ends.
    """
    if not NEWEST.is_file():
        pytest.skip("the newest transformers is not installed separately; run `make`")
    spec = importlib.util.spec_from_file_location("transformers.trainer_utils_of_newest", NEWEST)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.align_special_tokens


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("ends", [None, [4, 2]])
def test_configs_are_those_of_the_newest_reference(later, name, ends, monkeypatch):
    monkeypatch.setenv("LIGHTRAINER_FOLLOW", "5.23.0")
    special, config = CASES[name]
    ours, theirs = model(**config), model(**config)
    for instance in (ours, theirs):
        if ends is not None:
            instance.generation_config.eos_token_id = copy.copy(ends)
    align_special_tokens(ours, tokenizer(**special))
    later(theirs, tokenizer(**special))
    for part in ("config", "generation_config"):
        assert getattr(ours, part).to_dict() == getattr(theirs, part).to_dict()


@pytest.mark.parametrize("of_config", [4, 2, None])
@pytest.mark.parametrize("of_generation", [4, 2, [4], [3, 2], None])
def test_end_tokens_are_those_of_the_reference(of_config, of_generation, monkeypatch):
    """As 5.3.0, which leaves a list in the generation config, but without naming a token twice
    (right since 5.18).
    """
    monkeypatch.setenv("LIGHTRAINER_FOLLOW", "5.3.0")
    ours, theirs = model(eos_token_id=of_config), model(eos_token_id=of_config)
    for instance in (ours, theirs):
        instance.generation_config.eos_token_id = copy.copy(of_generation)
    align_special_tokens(ours, tokenizer(eos_token="y", bos_token="x"))
    reference_align(theirs, tokenizer(eos_token="y", bos_token="x"))
    assert ours.config.eos_token_id == theirs.config.eos_token_id == 4
    assert ours.generation_config.eos_token_id == list(
        dict.fromkeys(theirs.generation_config.eos_token_id)
    )


@pytest.mark.parametrize(("version", "end"), [("5.3.0", [4]), ("5.17.0", [4]), ("5.18.0", 4)])
def test_single_end_token_follows_the_version(version, end, monkeypatch):
    monkeypatch.setenv("LIGHTRAINER_FOLLOW", version)
    instance = model()
    align_special_tokens(instance, tokenizer(eos_token="y", bos_token="x"))
    assert instance.generation_config.eos_token_id == end


def test_tokens_of_another_class_change_nothing():
    """The reference asks for its own classes: an object that merely has such attributes says
    nothing of the model.
    """
    duck = SimpleNamespace(eos_token_id=0, bos_token_id=1, pad_token_id=2)
    holder = SimpleNamespace(tokenizer=tokenizer(eos_token="<a>", bos_token="<b>"))
    for processing_class in (duck, holder):
        untouched = model()
        assert align_special_tokens(untouched, processing_class) == {}
        assert (untouched.config.eos_token_id, untouched.generation_config.eos_token_id) == (4, 4)


def test_special_tokens_missing_in_the_tokenizer_are_kept():
    instance = model(bos_token_id=1, eos_token_id=[3, 4])
    align_special_tokens(instance, tokenizer(eos_token="<c>"))
    for place in (instance.config, instance.generation_config):
        assert (place.bos_token_id, place.eos_token_id) == (1, [2, 3, 4])


def test_tokens_of_a_composed_model_are_those_of_its_text():
    instance = SimpleNamespace(config=LlavaConfig(text_config=GPT2Config(bos_token_id=3)))
    align_special_tokens(instance, tokenizer(bos_token="<b>"))
    assert instance.config.text_config.bos_token_id == 1
    assert getattr(instance.config, "bos_token_id", None) is None


@pytest.mark.parametrize("processing_class", [None, object()])
def test_special_tokens_without_a_tokenizer_are_unchanged(processing_class):
    untouched = model()
    before = untouched.config.to_dict()
    assert align_special_tokens(untouched, processing_class) == {}
    assert untouched.config.to_dict() == before
