"""Search for installed packages once."""

from searched_once import packages_searched_once  # noqa: F401 - a fixture
