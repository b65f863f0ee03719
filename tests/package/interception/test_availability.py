"""The functions `is_..._available` of the stand-in take the parameters of transformers."""

import inspect

import pytest

from lightrainer.interception.stand_in import availability


@pytest.mark.parametrize("name", availability.NAMES)
def test_parameters_are_those_of_the_reference(name):
    theirs = getattr(pytest.importorskip("transformers.utils.import_utils"), name, None)
    if theirs is None or name == "is_tiktoken_available":  # its parameter changes nothing
        return
    expected, actual = (
        [
            (parameter.name, parameter.default)
            for parameter in inspect.signature(function).parameters.values()
        ]
        for function in (theirs, getattr(availability, name))
    )
    assert actual == expected


def test_stand_in_older_version_is_not_available():
    assert availability.is_accelerate_available("0.26.0")
    assert not availability.is_accelerate_available(min_version="999.0")


def test_stand_in_missing_library_is_not_available(monkeypatch):
    monkeypatch.setattr(availability, "is_installed", lambda module: False)
    assert not availability.is_accelerate_available("0.1")
    assert not availability.is_torch_xla_available(check_is_tpu=True)
