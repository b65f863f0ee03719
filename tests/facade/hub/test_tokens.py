"""The token goes to the Hub and nowhere else: every file, log, text and error is looked through."""

import logging
import traceback

import pytest

from helpers.hub.hub_server import TOKEN
from helpers.trainer.tiny_trainings import make_trainer
from lightrainer.callbacks import RunReportCallback
from lightrainer.facade.hub import errors

SECRET = "hf_aTokenThatNobodyMayRead"


def contents(folder):
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def everything(caplog, capsys):
    """Everything that was logged and printed."""
    caplog.set_level(logging.DEBUG)

    def get():
        shown = capsys.readouterr()
        return [
            caplog.text,
            shown.out,
            shown.err,
            *(repr(vars(record)) for record in caplog.records),
        ]

    return get


def test_token_is_in_no_file_no_log_and_no_text(hub, tmp_path, monkeypatch, everything):
    monkeypatch.chdir(tmp_path)
    saving = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    pushing = {
        "push_to_hub": True,
        "hub_model_id": "me/model",
        "hub_strategy": "checkpoint",
        "hub_always_push": True,
    }
    reporting = {"hub_token": TOKEN, "log_level": "debug", "report_to": "tensorboard"}
    trainer = make_trainer(tmp_path / "out", **pushing, **reporting, **saving)
    trainer.add_callback(RunReportCallback())
    trainer.train()
    trainer.save_model()
    trainer.push_to_hub(token=TOKEN)
    trainer.create_model_card()
    assert any(token == f"Bearer {TOKEN}" for _, token in hub.requests)
    written = contents(tmp_path)
    assert any(name.endswith("README.md") for name in written)
    assert any(name.endswith("report.html") for name in written)
    assert [name for name, content in written.items() if TOKEN.encode() in content] == []
    for repo in hub.repos.values():
        for commit in repo.branches["main"]:
            assert [
                name for name, content in commit.files.items() if TOKEN.encode() in content
            ] == []
    texts = [
        *everything(),
        repr(trainer.args),
        str(trainer.plan),
        repr(trainer.state),
        repr(trainer),
        repr(trainer.push_in_progress),
    ]
    texts += [repr(value) for value in vars(trainer).values()]
    assert [text for text in texts if TOKEN in text] == []


@pytest.mark.parametrize(
    "at", ["repos/create", "GET /api/models", "preupload", "PUT /storage", "commit/main"]
)
@pytest.mark.parametrize("trouble", ["unknown", "broken"])
def test_token_is_in_no_error(hub, tmp_path, everything, at, trouble):
    """Nor among the local variables that some tools show with it. The server sends back a token
    it does not know.
    """
    hub.make("me/model")
    trainer = make_trainer(tmp_path / "out", hub_model_id="me/model")
    trainer.args.hub_token = SECRET if trouble == "unknown" else TOKEN
    if trouble == "broken":
        hub.break_off(at)
    if trouble == "broken" and at == "GET /api/models":
        hub.refuse("repos/create", 403)  # only then it is asked whether the repository is there
    with pytest.raises(Exception, match="repository is 'me/model'") as error:
        trainer.push_to_hub()
    assert any(token == f"Bearer {trainer.args.hub_token}" for _, token in hub.requests)
    with_locals = traceback.TracebackException.from_exception(error.value, capture_locals=True)
    texts = [*with_locals.format(), str(error.value), repr(error.value), *everything()]
    assert "push_to_hub" in "".join(texts)
    assert [text for text in texts if trainer.args.hub_token in text] == []


def test_token_is_in_no_warning_of_the_background(hub, tmp_path, everything):
    trainer = make_trainer(
        tmp_path / "out",
        push_to_hub=True,
        hub_model_id="me/model",
        hub_token=TOKEN,
        save_strategy="epoch",
    )
    trainer.args.hub_token = SECRET
    trainer.train()
    texts = everything()
    assert "<hidden>" in texts[0], "the server has not sent it back"
    assert [text for text in texts if SECRET in text] == []


def test_describe_redacts_a_token_that_is_cut():
    """The limit of the message lies within the token."""
    beginning = "x" * (errors._MAX_LENGTH - len("ValueError: ") - 10)
    text = errors.describe(ValueError(f"{beginning}{TOKEN}{beginning}"), TOKEN)
    assert text.endswith("...")
    assert TOKEN[:6] not in text
