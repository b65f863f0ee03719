"""The model card: what it says, that the Hub's rules and the client's validators accept it, also
offline.
"""

import math
import sys
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import datasets
import pytest
import torch
from huggingface_hub import ModelCard, constants, metadata_eval_result
from huggingface_hub.repocard import metadata_load
from transformers import GPT2Config, GPT2ForSequenceClassification
from transformers.modelcard import TrainingSummary

from helpers.trainer.tiny_trainings import (
    make_trainer,
    points,
    trained_trainer,
    with_trainer_in_callbacks,
)
from lightrainer.facade.hub import model_card

EVALUATED = {"eval_strategy": "steps", "eval_steps": 2}


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def data(count, split, repo="stanfordnlp/imdb"):
    """A dataset as if it had a loading script."""
    generator = torch.Generator().manual_seed(1)
    rows = {
        "input_ids": torch.randint(0, 20, (count, 5), generator=generator).tolist(),
        "labels": torch.randint(0, 2, (count,), generator=generator).tolist(),
    }
    dataset = datasets.Dataset.from_dict(rows, split=split)
    dataset.info.builder_name = repo
    dataset.info.config_name = "plain_text"
    return dataset


def classifier(name="openai-community/gpt2"):
    torch.manual_seed(1)
    model = GPT2ForSequenceClassification(
        GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2, pad_token_id=0)
    )
    model.config._name_or_path = name
    return model


def fine_tuning(folder, **changes):
    options = {
        "train_dataset": data(16, "train"),
        "eval_dataset": data(6, "test"),
        "compute_metrics": accuracy,
    }
    return with_trainer_in_callbacks(
        make_trainer(folder, model=classifier(), **{**options, **EVALUATED, **changes})
    )


def card(folder):
    return (Path(folder) / "README.md").read_text(encoding="utf-8")


def test_model_card_says_what_was_trained_on_what_and_how(tmp_path, monkeypatch):
    """All of it, from a training with a model of `transformers` and data of the Hub; the Hub is
    not asked.
    """
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    trainer = fine_tuning(tmp_path / "my-model", gradient_accumulation_steps=2, weight_decay=0.1)
    trainer.train()
    trainer.create_model_card(language="en", license="mit", tags="mine")
    text = card(tmp_path / "my-model")
    assert "# my-model\n" in text
    assert "`GPT2ForSequenceClassification`, fine-tuned from" in text
    assert "[openai-community/gpt2](https://huggingface.co/openai-community/gpt2)" in text
    assert (
        "on [stanfordnlp/imdb](https://huggingface.co/datasets/stanfordnlp/imdb), in 2 steps"
        in text
    )
    for name, value in (
        ("learning_rate", "0.01"),
        ("gradient_accumulation_steps", "2"),
        ("lr_scheduler_type", "linear"),
        ("weight_decay", "0.1"),
        ("seed", "42"),
    ):
        assert f"| {name} | {value} |" in text
    for package in ("Python", "lightrainer", "torch", "lightning", "transformers", "datasets"):
        assert f"| {package} | " in text
    assert "![Training and evaluation loss over the steps](loss_curve.svg)" in text
    assert "svg" in ElementTree.parse(tmp_path / "my-model" / "loss_curve.svg").getroot().tag


def test_model_card_without_matplotlib_has_no_picture_and_warns_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # importing it would now fail
    model_card._warn_once.cache_clear()
    trainer = trained_trainer(tmp_path)
    for _ in range(2):
        trainer.create_model_card()
    assert "loss_curve.svg" not in card(tmp_path)
    assert not (tmp_path / "loss_curve.svg").exists()
    assert caplog.text.count("pip install 'lightrainer[plot]'") == 1


def test_model_card_metadata_equals_the_client(tmp_path):
    """`model-index`, against `huggingface_hub.metadata_eval_result`, and through its own classes
    and back.
    """
    trainer = fine_tuning(tmp_path / "my-model")
    trainer.train()
    trainer.create_model_card()
    last = [entry for entry in trainer.state.log_history if "eval_loss" in entry][-1]
    stored = metadata_load(tmp_path / "my-model" / "README.md")
    assert stored is not None
    for name, value in (("loss", last["eval_loss"]), ("accuracy", last["eval_accuracy"])):
        ((result,),) = [
            [each for each in entry["results"][0]["metrics"] if each["type"] == name]
            for entry in stored["model-index"]
        ]
        task = {"task_pretty_name": "Text Classification", "task_id": "text-classification"}
        metric = {
            "metrics_pretty_name": name.capitalize(),
            "metrics_id": name,
            "metrics_value": value,
        }
        data = {"dataset_pretty_name": "stanfordnlp/imdb", "dataset_id": "stanfordnlp/imdb"}
        data |= {"dataset_config": "plain_text", "dataset_split": "test"}
        metadata = metadata_eval_result(model_pretty_name="my-model", **task, **metric, **data)
        expected = metadata["model-index"][0]
        theirs = expected["results"][0]
        theirs["metrics"][0].pop("verified")
        assert stored["model-index"][0]["name"] == expected["name"]
        ours = stored["model-index"][0]["results"][0]
        assert (ours["task"], ours["dataset"], result) == (
            theirs["task"],
            theirs["dataset"],
            theirs["metrics"][0],
        )
    loaded = ModelCard.load(tmp_path / "my-model" / "README.md")
    assert [result.metric_type for result in loaded.data.eval_results] == ["loss", "accuracy"]
    again = ModelCard(str(loaded))
    assert again.data.to_dict() == loaded.data.to_dict() == stored
    kind = {
        "library_name": "transformers",
        "metrics": ["accuracy"],
        "pipeline_tag": "text-classification",
    }
    assert (
        stored.items()
        >= {
            **kind,
            "base_model": "openai-community/gpt2",
            "datasets": ["stanfordnlp/imdb"],
        }.items()
    )


def test_model_card_arguments_precede_detected_facts(tmp_path):
    trainer = fine_tuning(tmp_path)
    trainer.train()
    tasks, tags = ["text-classification", "zero-shot-classification"], ["one", "two"]
    about = {
        "language": "de",
        "license": "cc0-1.0",
        "model_name": "Another name",
        "finetuned_from": "them/base",
    }
    data = {
        "dataset_tags": ["imdb", "squad"],
        "dataset": ["IMDB", "SQuAD"],
        "dataset_args": ["plain"],
    }
    trainer.create_model_card(tasks=tasks, tags=tags, **about, **data)
    stored = metadata_load(tmp_path / "README.md")
    assert stored is not None
    assert (stored["language"], stored["license"], stored["base_model"]) == (
        ["de"],
        "cc0-1.0",
        "them/base",
    )
    assert stored["tags"] == ["one", "two", "generated_from_trainer", "lightrainer"]
    assert stored["datasets"] == ["imdb", "squad"]
    index = stored["model-index"][0]
    assert index["name"] == "Another name"
    pairs = [(each["task"]["type"], each["dataset"]["name"]) for each in index["results"]]
    assert pairs == [(task, name) for task in tasks for name in ("IMDB", "SQuAD")]
    assert index["results"][0]["dataset"]["args"] == "plain"


@pytest.mark.parametrize("name", ["synthetic", "Points in a plane"])
def test_model_card_dataset_name_is_not_a_hub_identifier(tmp_path, name):
    """As in the reference: a name is text; tags are metadata and links, as soon as there are
    some.
    """
    trainer = trained_trainer(tmp_path, compute_metrics=accuracy, **EVALUATED)
    trainer.create_model_card(tasks="tabular-classification", dataset=name)
    stored = metadata_load(tmp_path / "README.md")
    theirs = TrainingSummary.from_trainer(
        reference_like(trainer), tasks="tabular-classification", dataset=name
    )
    assert stored is not None
    assert "datasets" not in stored
    assert "datasets:" not in theirs.to_model_card().partition("# ")[0]
    assert "model-index" not in stored
    assert f"On {name}, after step 4:" in card(tmp_path)
    assert "huggingface.co/datasets" not in card(tmp_path)
    trainer.create_model_card(
        tasks="tabular-classification", dataset=name, dataset_tags="me/points"
    )
    stored = metadata_load(tmp_path / "README.md")
    assert stored is not None
    assert stored["datasets"] == ["me/points"]
    assert stored["model-index"][0]["results"][0]["dataset"] == {"name": name, "type": "me/points"}
    assert f"[{name}](https://huggingface.co/datasets/me/points)" in card(tmp_path)


def reference_like(made):
    """A Trainer as far as the reference's summary asks it."""
    attributes = {
        name: getattr(made, name) for name in ("train_dataset", "eval_dataset", "args", "state")
    }
    return SimpleNamespace(
        model=SimpleNamespace(config=SimpleNamespace(_name_or_path="")), **attributes
    )


def rows_of(text):
    """The cells of the table of evaluations."""
    table = text.partition("### Evaluations")[2].partition("### ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize("best", [True, False])
def test_model_card_ignores_evaluations_after_the_training(tmp_path, best):
    """Not that of the best model, nor one on other data, nor with another prefix; each is a
    separate row.
    """
    values = iter([0.9, 0.1, 0.9, 0.3, 0.4])
    loading = {"metric_for_best_model": "good", "save_strategy": "steps", "save_steps": 2}
    options = {"load_best_model_at_end": True, **loading} if best else {}
    trainer = trained_trainer(
        tmp_path, compute_metrics=lambda prediction: {"good": next(values)}, **options, **EVALUATED
    )
    published = {"tasks": "tabular-classification", "dataset_tags": "me/points"}
    trainer.create_model_card(**published)
    before, index = rows_of(card(tmp_path)), metadata_load(tmp_path / "README.md")["model-index"]
    trainer.evaluate()
    trainer.evaluate(points(5, seed=9))
    trainer.evaluate(points(5, seed=9), metric_key_prefix="test")
    trainer.create_model_card(**published)
    after, stored = rows_of(card(tmp_path)), metadata_load(tmp_path / "README.md")
    assert after[:-2] == before
    assert [row[0] for row in after[-2:]] == ["after training"] * 2
    assert [row[-1] for row in after] == ["0.9", "0.1", "0.9", "0.3"]
    assert stored["model-index"] == index
    good = next(metric for metric in index[0]["results"][0]["metrics"] if metric["type"] == "good")
    assert good["value"] == (0.9 if best else 0.1), "that of the model that is published"
    assert f"after step {2 if best else 4}:" in card(tmp_path)


def test_model_card_index_leaves_out_missing_numbers(tmp_path):
    values = {"good": 0.5, "bad": math.nan, "worse": math.inf}
    trainer = trained_trainer(tmp_path, compute_metrics=lambda prediction: values, **EVALUATED)
    trainer.create_model_card(tasks="text-classification", dataset="mine", dataset_tags="me/mine")
    stored = metadata_load(tmp_path / "README.md")
    assert stored is not None
    assert [each["type"] for each in stored["model-index"][0]["results"][0]["metrics"]] == [
        "loss",
        "good",
    ]
    assert "| Bad | nan |" in card(tmp_path)


def test_model_card_of_several_evaluation_sets(tmp_path):
    sets = {"one": data(6, "test"), "two": data(4, "test", repo="them/reviews")}
    trainer = fine_tuning(tmp_path, eval_dataset=sets)
    trainer.train()
    trainer.create_model_card()
    assert (
        "| Step | Epoch | Training loss | One loss | One accuracy | Two loss | Two accuracy |"
        in card(tmp_path)
    )
    stored = metadata_load(tmp_path / "README.md")
    assert stored is not None
    assert "model-index" not in stored
    trainer.create_model_card(dataset="All", dataset_tags="me/all")
    stored = metadata_load(tmp_path / "README.md")
    assert stored is not None
    (result,) = stored["model-index"][0]["results"]
    assert [metric["type"] for metric in result["metrics"]] == [
        "one_loss",
        "one_accuracy",
        "two_loss",
        "two_accuracy",
    ]


def test_model_card_license_is_that_of_the_base_model(hub, tmp_path):
    hub.make("openai-community/gpt2", **{"README.md": b"---\nlicense: bsd\n---\n"})
    trainer = fine_tuning(tmp_path)
    trainer.create_model_card()
    assert "license: bsd\n" in card(tmp_path)
    trainer.create_model_card(license="mit")
    assert "license: mit\n" in card(tmp_path)


def test_tags_of_an_older_card_are_kept(tmp_path):
    (tmp_path / "README.md").write_text("---\ntags:\n- theirs\n- lightrainer\n---\nOld.\n")
    trainer = make_trainer(tmp_path)
    trainer.create_model_card(tags="mine")
    stored = metadata_load(tmp_path / "README.md")
    assert stored is not None
    assert stored["tags"] == ["mine", "generated_from_trainer", "lightrainer", "theirs"]
    assert "Old." not in card(tmp_path)
