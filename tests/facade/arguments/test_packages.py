"""Name packages that the arguments need and that are missing or too old, before anything is loaded."""

import re

import pytest

from lightrainer.facade.arguments import packages


def is_installed(monkeypatch, found):
    """DeepSpeed is there, in this version; None stands for one that was built in place."""

    monkeypatch.setattr(packages, "is_installed", lambda name: True)
    monkeypatch.setattr(packages, "installed", lambda name: found)


@pytest.mark.parametrize("found", ["0.18.9", "0.9.5+cu121"])
def test_an_old_deepspeed_is_refused(monkeypatch, found):
    is_installed(monkeypatch, found)
    with pytest.raises(ImportError, match=rf"{re.escape(found)} is installed.*wrong losses.*'deepspeed>=0\.19'"):
        packages.require_deepspeed()


@pytest.mark.parametrize("found", ["0.19.0", "0.19.8+unknown", "1.0.0", None])
def test_others_are_not(monkeypatch, found):
    is_installed(monkeypatch, found)
    packages.require_deepspeed()
