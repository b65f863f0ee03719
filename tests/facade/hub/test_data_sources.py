"""Where data comes from, as a dataset or the user says."""

import datasets
import pytest

from lightrainer.facade.hub.facts import source_of


def made(**info):
    data = datasets.Dataset.from_dict({"x": [1, 2, 3]}, split=info.pop("split", None))
    for name, value in info.items():
        setattr(data.info, name, value)
    return data


def test_a_builder_of_its_own():
    found = source_of(made(builder_name="squad", config_name="default"))
    assert found is not None
    assert (found.tag, found.config, found.split) == ("squad", "default", None)
    assert source_of(made(builder_name="parquet", dataset_name="imdb")).tag == "imdb"


@pytest.mark.parametrize("builder", ["csv", "json", "text", "parquet", "generator", None])
def test_files_of_the_user_have_no_name(builder):
    assert source_of(made(builder_name=builder, dataset_name=builder)) is None
