"""Where data comes from, as a dataset tells, or as somebody says."""

import datasets
import pytest
from tiny import points

from lightrainer.facade.hub.facts import DataSource, named_sources, source_of, sources_of


def made(**info):
    data = datasets.Dataset.from_dict({"x": [1, 2, 3]}, split=info.pop("split", None))
    for name, value in info.items():
        setattr(data.info, name, value)
    return data


def test_a_repository_that_files_came_from():
    files = {"hf://datasets/stanfordnlp/imdb@e6281661ce1c48d9/plain_text/train.parquet": {"num_bytes": 1}}
    found = source_of(made(download_checksums=files, builder_name="parquet", config_name="plain_text", split="train"))
    assert found == DataSource(name="stanfordnlp/imdb", tag="stanfordnlp/imdb", config="plain_text", split="train")


def test_a_builder_of_its_own():
    found = source_of(made(builder_name="squad", config_name="default"))
    assert found is not None
    assert (found.tag, found.config, found.split) == ("squad", "default", None)
    assert source_of(made(builder_name="parquet", dataset_name="imdb")).tag == "imdb"


@pytest.mark.parametrize("builder", ["csv", "json", "text", "parquet", "generator", None])
def test_somebodys_own_files_have_no_name(builder):
    assert source_of(made(builder_name=builder, dataset_name=builder)) is None


def test_several_sets_have_prefixes():
    data = {"one": made(builder_name="squad"), "two": points()}
    (found,) = sources_of(data)
    assert (found.tag, found.prefix) == ("squad", "one_")


def test_what_somebody_says():
    found = named_sources(["IMDB", "Squad"], ["imdb", "squad"], ["plain"])
    assert [(each.name, each.tag, each.args) for each in found] == [("IMDB", "imdb", "plain"), ("Squad", "squad", None)]
    assert [(each.name, each.tag) for each in named_sources(["imdb"], [], [])] == [("imdb", None)]
    assert [(each.name, each.tag) for each in named_sources([], ["imdb"], [])] == [("imdb", "imdb")]
    assert named_sources([], [], ["plain"]) == ()
