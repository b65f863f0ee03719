"""Versions that are compared are releases, whatever leads to them or is built of them."""

from importlib import metadata

import pytest

from lightrainer.lightning_modules.common.versions import installed, is_older


@pytest.mark.parametrize(
    "version", ["0.19.1", "0.19.1rc2", "0.19.1.dev3+gabc", "0.19.1+cpu", "0.19.1.post4"]
)
def test_versions_of_a_release_are_alike(version):
    assert not is_older(version, "0.19.1")
    assert not is_older("0.19.1", version)
    assert is_older("0.19", version)
    assert is_older(version, "0.19.2rc1")


def test_versions_of_installed_packages():
    assert installed("torch") == metadata.version("torch")
    assert installed("no-such-package-at-all") is None
