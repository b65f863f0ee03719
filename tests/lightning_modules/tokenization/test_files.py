"""Folders of both libraries, of 4.x and 5.x, are read by both, and mean the same."""

import json
import pickle

import pytest
import transformers
from tokenizers import AddedToken

from helpers.tokenization.compared_answers import LATER, assert_same
from helpers.tokenization.trained_tokenizers import (
    KINDS,
    NAMED,
    SPECIAL,
    both_tokenizers,
    tokenizer_json,
)
from lightrainer import AutoTokenizer, PreTrainedTokenizerFast

TEXTS = ["some [MASK] text", "and <new> more, <extra> don't", "日本 🙂"]
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


ATTRIBUTES = """
special_tokens_map all_special_tokens extra_special_tokens added_tokens_decoder vocab vocab_size model_max_length
padding_side truncation_side model_input_names clean_up_tokenization_spaces split_special_tokens chat_template
all_special_ids pad_token_id name_or_path
"""


def assert_equal_tokenizers(mine, theirs):
    for name in ATTRIBUTES.split():
        assert getattr(mine, name) == getattr(theirs, name), name
    for options in ({}, {"padding": True}, {"max_length": 4}, {"text_pair": TEXTS}):
        if not options.get("padding") or theirs.pad_token:
            assert_same(mine(TEXTS, **options), theirs(TEXTS, **options), str(options))
    ids = theirs(TEXTS)["input_ids"]
    assert mine.batch_decode(ids, skip_special_tokens=True) == theirs.batch_decode(
        ids, skip_special_tokens=True
    )


def settings(folder):
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert config.pop("tokenizer_class") in ("PreTrainedTokenizerFast", "TokenizersBackend")
    config.pop("local_files_only", None)  # how it was loaded, as later versions write
    return config


def dressed(made):
    """A tokenizer with something of everything."""
    made.add_tokens([AddedToken("<extra>", rstrip=True)])
    made.add_special_tokens({"extra_special_tokens": ["<x>", "<y>"], "eos_token": "[SEP]"})
    made.chat_template = TEMPLATE
    made.model_max_length = 77
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_tokenizer_files_are_exchanged_with_the_reference(kind, tmp_path):
    options = {"padding_side": "left", "model_max_length": 50, "image_token": "<image>"}
    mine, theirs = (dressed(tokenizer) for tokenizer in both_tokenizers(kind, **options))
    keywords = {"padding": True, "max_length": 5, "truncation": True}
    assert_same(mine(TEXTS, **keywords), theirs(TEXTS, **keywords))
    paths = mine.save_pretrained(tmp_path / "mine")
    theirs.save_pretrained(tmp_path / "theirs")
    written = [
        sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("mine", "theirs")
    ]
    assert written[0] == written[1] == sorted(path.rpartition("/")[2] for path in paths)
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / "mine" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes()
    assert settings(tmp_path / "mine") == settings(tmp_path / "theirs")
    for folder in (tmp_path / "mine", tmp_path / "theirs"):
        reread = PreTrainedTokenizerFast.from_pretrained(folder)
        for loader in (transformers.AutoTokenizer, transformers.PreTrainedTokenizerFast):
            assert_equal_tokenizers(reread, loader.from_pretrained(folder))
        assert_equal_tokenizers(
            AutoTokenizer.from_pretrained(str(folder)), loader.from_pretrained(folder)
        )
        reread.save_pretrained(tmp_path / "again")
        loader.from_pretrained(folder).save_pretrained(tmp_path / "again theirs")
        assert settings(tmp_path / "again") == settings(tmp_path / "again theirs")


def folder_of(tmp_path, kind="WordPiece", **files):
    """A folder with a tokenizer.json of this kind and these JSON files."""
    folder = tmp_path / "made"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer_json(kind))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def flags(content, special=True, **more):
    defaults = {"lstrip": False, "normalized": not special, "rstrip": False, "single_word": False}
    return {"content": content, **defaults, "special": special, **more}


FOLDERS = {
    "4.x, with added tokens in the settings": {
        "tokenizer_config": {
            "added_tokens_decoder": {
                **{str(index): flags(token) for index, token in enumerate(SPECIAL)},
                "300": flags("<new>", special=False, lstrip=True),
                "301": flags("<late>", special=False),
                "302": flags("<x>"),
            },
            "additional_special_tokens": ["<x>"],
            "chat_template": TEMPLATE,
            "clean_up_tokenization_spaces": True,
            "model_max_length": 512,
            "tokenizer_class": "PreTrainedTokenizerFast",
            **NAMED,
        },
        "special_tokens_map": {"pad_token": {**flags("[UNK]")}},
    },
    "4.x, before that": {
        "tokenizer_config": {
            "model_max_length": 20,
            "name_or_path": "elsewhere",
            "special_tokens_map_file": None,
        },
        "special_tokens_map": {
            "pad_token": "[PAD]",
            "mask_token": flags("[MASK]", lstrip=True),
            "additional_special_tokens": ["<x>", "<y>"],
        },
    },
    "tokens as objects in the settings": {
        "tokenizer_config": {
            "unk_token": "[UNK]",
            "mask_token": {"__type": "AddedToken", **flags("[MASK]", lstrip=True)},
            "image_token": "<image>",
            "extra_special_tokens": {"audio_token": "<audio>"},
            "padding_side": "left",
            "truncation_side": "left",
        }
    },
    "begin and end tokens": {
        "tokenizer_config": {
            **{"add_bos_token": True, "bos_token": "[CLS]", "eos_token": "[SEP]"},
        }
    },
    "nothing else": {},
}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"pad_token": "[MASK]", "model_max_length": 9},
        {"add_bos_token": True, "bos_token": "[CLS]"},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", FOLDERS)
def test_tokenizer_folders_of_other_versions_equal_the_reference(tmp_path, name, given):
    folder = folder_of(tmp_path, **FOLDERS[name])
    mine = PreTrainedTokenizerFast.from_pretrained(folder, **given)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder, **given)
    assert_equal_tokenizers(mine, theirs)
    mine.save_pretrained(tmp_path / "mine")
    theirs.save_pretrained(tmp_path / "theirs")
    assert settings(tmp_path / "mine") == settings(tmp_path / "theirs")


def test_added_tokens_of_an_older_file_only_are_refused(tmp_path):
    """Without them the vocabulary would lack tokens that the model was trained with."""
    folder = folder_of(tmp_path, added_tokens={"<new>": 300})
    PreTrainedTokenizerFast.from_pretrained(folder)
    folder_of(tmp_path, added_tokens={"<new>": 300, "<x>": 301})
    with pytest.raises(NotImplementedError, match=r"'<x>' is in added_tokens\.json, but not in"):
        PreTrainedTokenizerFast.from_pretrained(folder)


def test_tokenizer_from_a_single_file(tmp_path):
    path = folder_of(tmp_path) / "tokenizer.json"
    assert_equal_tokenizers(
        PreTrainedTokenizerFast.from_pretrained(path, pad_token="[PAD]"),
        transformers.PreTrainedTokenizerFast.from_pretrained(path, pad_token="[PAD]"),
    )


def test_several_chat_templates_are_refused(tmp_path):
    """Saving would lose all but one; a template that is passed takes their place."""
    _, theirs = both_tokenizers("WordLevel")
    theirs.chat_template = {"default": "a", "rag": "b"}
    theirs.save_pretrained(tmp_path / "files")
    theirs.save_pretrained(tmp_path / "settings", save_jinja_files=False)
    load = PreTrainedTokenizerFast.from_pretrained
    for name, error in (("files", NotImplementedError), ("settings", TypeError)):
        with pytest.raises(error, match="`chat_template`"):
            load(tmp_path / name)
        assert load(tmp_path / name, chat_template="c").chat_template == "c"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"push_to_hub": True}, "processing_class"),
        ({"filename_prefix": "x"}, r"filename_prefix=\.\.\..*pip install transformers"),
        ({"legacy_format": True}, r"legacy_format=\.\.\..*pip install transformers"),
    ],
)
def test_save_pretrained_refuses_anything_but_a_folder(tmp_path, asked, message):
    mine, _ = both_tokenizers("WordLevel")
    with pytest.raises(NotImplementedError, match=message):
        mine.save_pretrained(tmp_path / "made", **asked)
    assert not (tmp_path / "made").exists()


# --- AutoTokenizer


BERT = {
    "tokenizer_config": {"do_lower_case": True, "tokenizer_class": "BertTokenizer"},
    "config": {"model_type": "bert"},
}


@pytest.mark.parametrize(
    "files",
    [BERT, {"config": BERT["config"]}, {"tokenizer_config": BERT["tokenizer_config"]}],
    ids=lambda files: " and ".join(files),
)
def test_tokenizer_older_folder_leaves_the_choice_to_the_class(tmp_path, files):
    """Pad and mask tokens, and token types, come from the class, as in the reference."""
    folder = folder_of(tmp_path, **files)
    if "tokenizer_config" not in files:
        (folder / "tokenizer_config.json").write_text("{}")
    mine, theirs = (
        module.from_pretrained(folder) for module in (AutoTokenizer, transformers.AutoTokenizer)
    )
    assert type(theirs).__name__ == "BertTokenizer"
    assert mine.special_tokens_map == theirs.special_tokens_map
    assert (
        mine.model_input_names
        == theirs.model_input_names
        == ["input_ids", "token_type_ids", "attention_mask"]
    )
    options = {"padding": "max_length", "max_length": 20}
    assert_same(
        mine("some text", "and more", **options), theirs("some text", "and more", **options)
    )
    mine.save_pretrained(tmp_path / "again")
    assert "token_type_ids" in PreTrainedTokenizerFast.from_pretrained(tmp_path / "again")("a")


def test_tokenizer_class_defaults_equal_the_reference():
    """The table, against the classes of the reference."""
    import inspect

    from lightrainer.lightning_modules.tokenization.auto import _BY_CLASS, _BY_MODEL

    checked = 0
    for name, defaults in _BY_CLASS.items():
        theirs = getattr(transformers, f"{name}Tokenizer", None)
        if theirs is None:
            continue
        checked += 1
        parameters = inspect.signature(theirs.__init__).parameters
        for key, value in defaults.items():
            if key.endswith("_token") and key in parameters:
                assert str(parameters[key].default) == str(value), (name, key)
            elif not key.endswith("_token"):
                assert getattr(theirs, key) == value, (name, key)
        for key in NAMED:
            if key in parameters and parameters[key].default:
                assert str(parameters[key].default) == str(defaults.get(key)), (name, key)
        assert theirs.padding_side == defaults.get("padding_side", "right"), name
        input_names = ["input_ids", "attention_mask"]
        assert list(theirs.model_input_names) == list(
            defaults.get("model_input_names", input_names)
        ), name
    assert checked > 30
    mapping = transformers.models.auto.tokenization_auto.TOKENIZER_MAPPING_NAMES
    for model, name in _BY_MODEL.items():
        assert mapping[model] == f"{name}Tokenizer" or (
            LATER and mapping[model] == "TokenizersBackend"
        ), model


def test_tokenizer_class_without_known_defaults_gives_a_warning(tmp_path, caplog):
    for files, name in (
        ({"tokenizer_config": {"tokenizer_class": "FunnelTokenizer"}}, "FunnelTokenizer"),
        ({"config": {"model_type": "funnel"}}, "funnel"),
    ):
        caplog.clear()
        AutoTokenizer.from_pretrained(folder_of(tmp_path / name, **files))
        assert f"default settings of the tokenizer of {name} are unknown" in caplog.text
    caplog.clear()
    AutoTokenizer.from_pretrained(folder_of(tmp_path))
    assert caplog.text == ""


def test_tokenizer_custom_class_is_not_run(tmp_path, caplog):
    folder = folder_of(
        tmp_path, tokenizer_config={"auto_map": {"AutoTokenizer": ["code.Tok", None]}}
    )
    AutoTokenizer.from_pretrained(folder, trust_remote_code=True, use_fast=True)
    assert "has its own tokenizer class, whose code is not run" in caplog.text


# --- copies


def test_copies_are_equal_and_apart():
    mine = dressed(both_tokenizers("Unigram")[0])
    encoded = mine(TEXTS, padding=True, return_tensors="pt")
    other, again = pickle.loads(pickle.dumps((mine, encoded)))
    assert_same(other(TEXTS, padding=True, return_tensors="pt"), encoded)
    other.add_tokens("<only here>")
    assert len(mine) == len(other) - 1
    assert again.word_ids(0) == encoded.word_ids(0)


# --- what cannot be read


def test_file_that_cannot_be_read_is_named(tmp_path):
    load = PreTrainedTokenizerFast.from_pretrained
    other = tokenizer_json("WordLevel").replace('"WordLevel"', '"WordsOfTomorrow"')
    for name, content, message in (
        ("vocab.txt", "a", "has no tokenizer.json, but vocab.txt, .*transformers"),
        ("tokenizer.json", "{", "tokenizer.json cannot be read: .*line 1 column .*Is it complete"),
        ("tokenizer.json", other, "pip install -U tokenizers"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(OSError, match=message):
            load(tmp_path)
    with pytest.raises(OSError, match=r"'\./not/there' is neither a file nor a folder"):
        load("./not/there")
    with pytest.raises(NotImplementedError, match="`gguf_file` is not supported here"):
        load(tmp_path, gguf_file="x.gguf")


WRONG_SETTINGS = {
    "model_max_length": (-1, float("nan")),
    "model_input_names": ("input_ids", [1], 3),
    "split_special_tokens": ("yes",),
    "clean_up_tokenization_spaces": ("no",),
    "chat_template": (3, {"default": 3}, [{"name": "default"}]),
    "padding_side": (3,),
    "truncation_side": (None,),
}


@pytest.mark.parametrize("name", WRONG_SETTINGS)
def test_settings_of_the_wrong_type_are_named(tmp_path, name):
    """In a file, as when they are passed."""
    for value in WRONG_SETTINGS[name]:
        folder = folder_of(tmp_path, tokenizer_config={name: value})
        with pytest.raises((TypeError, ValueError), match=rf"`{name}` is "):
            AutoTokenizer.from_pretrained(folder)
