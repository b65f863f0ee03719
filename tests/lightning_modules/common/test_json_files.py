"""A JSON file that cannot be used is named, with the place in it, at every door that reads one."""

import json

import pytest
from tokenizers import Tokenizer, models

from lightrainer import AutoTokenizer, HfArgumentParser, PreTrainedTokenizerFast, TrainingArguments
from lightrainer.facade.compat.checkpoints import load_sharded_checkpoint
from lightrainer.lightning_modules.common.json_files import read_object
from lightrainer.lightning_modules.models.generation_config import read_generation_config
from lightrainer.tools.estimate import read_shape

BROKEN = {
    "a list": ('\n[1, {"a": 2}]', "holds a list, expected an object"),
    "a text": ('"a"', "holds a str"),
    "nothing": ("", r"is not JSON \(Expecting value\): line 1 column 1"),
    "cut off": ('{\n "a": 1,\n "b": ', r"is not JSON .*line 3 column 7"),
    "single quotes": ("{'a': 1}", r"is not JSON .*line 1 column 2"),
    "other bytes": (b'{"a": "\xff"}', r"is not JSON \(byte 7 is not UTF-8\)"),
    "nested": ("[" * 100_000, "is not JSON .*(nested too deeply|Expecting value)"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_read_object_error_names_the_file(tmp_path, kind):
    content, message = BROKEN[kind]
    path = tmp_path / "settings.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=rf"(?s)what='.*settings.json'.*{message}"):
        read_object(path, "what")


def arguments(path, **given):
    return TrainingArguments("out", use_cpu=True, report_to="none", **given)


DOORS = {
    "accelerator_config": lambda path: arguments(path, accelerator_config=str(path)),
    "fsdp_config": lambda path: arguments(path, fsdp="full_shard", fsdp_config=str(path)),
    "deepspeed": lambda path: arguments(path, deepspeed=str(path)),
    "parse_json_file": lambda path: HfArgumentParser(TrainingArguments).parse_json_file(path),
    "generation_config": lambda path: read_generation_config(path, dict),
    "estimate": read_shape,
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", ["a list", "cut off"])
def test_read_object_error_is_raised_by_every_caller(tmp_path, door, kind):
    path = tmp_path / "settings.json"
    path.write_text(BROKEN[kind][0])
    with pytest.raises(ValueError, match=rf"settings.json(?s:.*){BROKEN[kind][1]}"):
        DOORS[door](path)


FILES = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "config.json",
)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["a list", "cut off"])
def test_read_object_names_each_tokenizer_file(tmp_path, name, kind):
    vocabulary = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=vocabulary).save_pretrained(tmp_path)
    (tmp_path / name).write_text(BROKEN[kind][0])
    with pytest.raises(OSError, match=rf"{name}(?s:.*){BROKEN[kind][1]}.*Is it complete"):
        AutoTokenizer.from_pretrained(str(tmp_path))


@pytest.mark.parametrize("kind", ["a list", "cut off"])
def test_tokenizer_json_that_tokenizers_cannot_read_is_named(tmp_path, kind):
    """`tokenizers` reads this file itself, and says where it is wrong."""
    vocabulary = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=vocabulary).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(BROKEN[kind][0])
    with pytest.raises(OSError, match=r"tokenizer.json cannot be read: .* line 2 .*Is it complete"):
        AutoTokenizer.from_pretrained(str(tmp_path))


def test_read_object_names_an_index_of_weights(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weights": {}}))
    with pytest.raises(
        ValueError, match=r"index.json is not a readable index of shards .*weight_map"
    ):
        load_sharded_checkpoint(None, tmp_path)
