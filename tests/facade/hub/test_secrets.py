"""A token is shown in no message, and in no local variable of ours, by whichever door it comes
in.
"""

import json
import logging
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models

import lightrainer
from helpers.hub.hub_client import point_at
from helpers.hub.hub_server import HubServer
from helpers.trainer.tiny_trainings import tiny
from lightrainer import (
    AutoTokenizer,
    HfArgumentParser,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)
from lightrainer.lightning_modules.common.redaction import (
    Secret,
    is_secret_name,
    redacted,
    secret_words,
)

TOKEN = "hf_aTokenThatNobodyMayReadAtAllX"
ROOT = Path(__file__).parents[3]
OURS = [str(ROOT / folder) for folder in ("facade", "lightning_modules", "callbacks", "package")]


@dataclass
class OwnArguments(TrainingArguments):
    model: str = "a model"


@dataclass
class ModelArguments:
    name: str = "a model"
    token: str | None = field(default=None)
    length: int = 3


def shown(error: BaseException) -> list[str]:
    """Collect what tools show of an error: its text, its notes, and the variables of each frame of
    ours.

    Those of constructors which dataclasses write are ours too, and have no file.
    """
    texts, seen = [], set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        texts += traceback.format_exception_only(error)
        for frame, _ in traceback.walk_tb(error.__traceback__):
            name = frame.f_code.co_filename
            if name == "<string>" or name.startswith(tuple(OURS)):
                texts += [
                    f"{name} {frame.f_code.co_name} {key}={value!r}"
                    for key, value in frame.f_locals.items()
                ]
        error = error.__cause__ or error.__context__
    return texts


def arguments(**given):
    return TrainingArguments("out", use_cpu=True, report_to="none", **given)


def own_arguments(**given):
    return OwnArguments("out", use_cpu=True, report_to="none", **given)


def parsed(*words):
    return HfArgumentParser((OwnArguments, ModelArguments)).parse_args_into_dataclasses(list(words))


def from_dict(**given):
    return HfArgumentParser((TrainingArguments,)).parse_dict({"output_dir": "out", **given})


def from_file(tmp_path, text, read):
    path = tmp_path / "arguments.json"
    path.write_text(text)
    return getattr(HfArgumentParser(TrainingArguments), read)(path)


DOORS = {
    "beside a bad argument": lambda: arguments(hub_token=TOKEN, learning_rate="x"),
    "beside an unknown argument": lambda: arguments(hub_token=TOKEN, xyz=1),
    "misspelt": lambda: arguments(hub_tokn=TOKEN),
    "under an older name": lambda: arguments(push_to_hub_token=TOKEN),
    "under a name that is none": lambda: arguments(xyz=TOKEN),
    "in a list of a name that is none": lambda: arguments(xyz=["a" * 30, TOKEN]),
    "in an array in a tuple": lambda: arguments(xyz=(np.array(["a" * 30, TOKEN]), 1)),
    "as bytes": lambda: arguments(hub_token=TOKEN.encode()),
    "as a dict": lambda: own_arguments(hub_token={"token": TOKEN}),
    "of a subclass": lambda: own_arguments(hub_token=TOKEN, max_steps="x"),
    "set later": lambda: arguments().set_push_to_hub("me/model", strategy="x", token=TOKEN),
    "set later, as bytes": lambda: arguments().set_push_to_hub("me/model", token=TOKEN.encode()),
    "on the command line": lambda: parsed(
        "--output_dir", "out", "--hub_token", TOKEN, "--max_steps", "0.5.1"
    ),
    "on the command line with =": lambda: parsed(
        "--output_dir", "out", f"--hub-token={TOKEN}", "--max_steps", "x"
    ),
    "on the command line, misspelt with =": lambda: parsed(
        "--output_dir", "out", f"--hub_tokn={TOKEN}"
    ),
    "on the command line, of others": lambda: parsed(
        "--output_dir", "out", "--token", TOKEN, "--length", "x"
    ),
    "on the command line, loose": lambda: parsed("--output_dir", "out", TOKEN),
    "in a dict": lambda: from_dict(hub_token=TOKEN, max_steps="x"),
    "of a tokenizer": lambda: AutoTokenizer.from_pretrained("/no/such/folder", token=TOKEN),
    "of a fast tokenizer": lambda: PreTrainedTokenizerFast.from_pretrained("a//b", token=TOKEN),
    "of a tokenizer, misspelt": lambda: AutoTokenizer.from_pretrained(
        str(ROOT / "docs"), tokn=TOKEN
    ),
}


@pytest.mark.parametrize("door", DOORS)
def test_token_is_shown_by_no_error(door, capsys, caplog):
    caplog.set_level(logging.DEBUG)
    with pytest.raises((Exception, SystemExit)) as error:
        DOORS[door]()
    printed = capsys.readouterr()
    texts = [*shown(error.value), caplog.text, printed.out, printed.err]
    assert len(texts) > 4, "no frame of ours was looked at"
    assert [text for text in texts if TOKEN in text] == []


@pytest.mark.parametrize("read", ["parse_json_file", "parse_yaml_file"])
@pytest.mark.parametrize("broken", [False, True])
def test_token_is_shown_by_no_error_about_a_file(tmp_path, read, broken):
    text = json.dumps({"output_dir": "out", "hub_token": TOKEN, "max_steps": "x"})
    with pytest.raises((ValueError, TypeError)) as error:
        from_file(tmp_path, text[:-1] if broken else text, read)
    assert [text for text in shown(error.value) if TOKEN in text] == []


@pytest.mark.parametrize("call", ["push_to_hub", "init_hf_repo"])
@pytest.mark.parametrize("offline", [False, True])
def test_token_is_shown_by_no_error_of_the_hub(tmp_path, monkeypatch, call, offline):
    with HubServer() as server:
        point_at(server, monkeypatch, tmp_path / "cache")
        if offline:
            from huggingface_hub import constants

            monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        trainer = Trainer(tiny(), arguments(hub_model_id="me/model"))
        trainer.args.output_dir = str(tmp_path)
        with pytest.raises((OSError, ValueError)) as error:
            getattr(trainer, call)(token=TOKEN)
        assert offline or any(TOKEN in str(token) for _, token in server.requests)
    assert [text for text in shown(error.value) if TOKEN in text] == []


def test_token_is_shown_by_no_error_of_a_tokenizer_on_the_hub(tmp_path, monkeypatch):
    with HubServer() as server:
        point_at(server, monkeypatch, tmp_path / "cache")
        with pytest.raises(OSError, match="is not available") as error:
            AutoTokenizer.from_pretrained("me/none", token=TOKEN)
        assert any(TOKEN in str(token) for _, token in server.requests)
    texts = traceback.TracebackException.from_exception(error.value, capture_locals=True).format()
    assert [text for text in (*shown(error.value), *texts) if TOKEN in text] == []


def test_secrets_token_by_an_older_name_is_not_saved_with_a_tokenizer(tmp_path):
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    )
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(TypeError, match=r"`use_auth_token` is not a setting.*pass `token`"):
        AutoTokenizer.from_pretrained(str(tmp_path), use_auth_token=TOKEN)
    with pytest.raises(TypeError, match="is not a setting"):
        PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"), hub_token=TOKEN)


def test_secrets_shows_values_that_are_not_tokens():
    with pytest.raises(ValueError, match="optim='a value'"):
        arguments(optim="a value", hub_token=TOKEN)
    assert secret_words(
        ["--tokenizer", "mine", "--pad_token", "[PAD]", "--hub_token", "--lr", "1"]
    ) == [*("--tokenizer", "mine", "--pad_token", "[PAD]", "--hub_token", "--lr", "1")]
    assert not any(
        isinstance(word, Secret)
        for word in secret_words(["--tokenizer", "mine", "--pad_token", "[PAD]"])
    )
    secret = [isinstance(word, Secret) for word in secret_words(["--token", "a", "--lr", "1"])]
    assert secret == [False, True, False, False]
    for name in (
        "tokenizer",
        "pad_token",
        "boi_token",
        "image_token",
        "include_tokens_per_second",
        "hub_model_id",
    ):
        assert not is_secret_name(name), name
    assert redacted(f"no {TOKEN}, hf_home") == "no <hidden>, hf_home"


def test_secrets_search_finds_a_token():
    """Negative control: a frame that shows it is found."""
    source = f"def act(token):\n    raise ValueError(1)\nact({TOKEN!r})"
    with pytest.raises(ValueError, match="1") as error:
        exec(compile(source, str(ROOT / "facade" / "x.py"), "exec"), {})
    assert any(TOKEN in text for text in shown(error.value))
    assert lightrainer.__name__ in sys.modules
