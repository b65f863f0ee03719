"""Each difference between versions is one switch, thrown by the version that is followed."""

import dataclasses
from pathlib import Path

import pytest

from lightrainer.lightning_modules.common import followed
from lightrainer.lightning_modules.common.followed import Followed

SWITCHES = [one for one in dataclasses.fields(Followed) if one.metadata]


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch):
    monkeypatch.delenv(followed.VARIABLE, raising=False)
    monkeypatch.setattr(followed, "_served", None)


def test_the_documented_version_throws_no_switch():
    assert not any(getattr(followed.followed(), one.name) for one in SWITCHES)


def test_each_switch_is_in_the_table_with_an_existing_test():
    tests = Path(__file__).parents[2]
    guide = (tests.parent / "docs" / "develop" / "followed.md").read_text(encoding="utf-8")
    for switch in SWITCHES:
        (row,) = (line for line in guide.splitlines() if f"`{switch.name}`" in line)
        assert row.startswith(f"| {switch.metadata['since']} |")
        assert (tests / row.rstrip(" |").rpartition("|")[2].strip(" `")).is_file(), row


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda one: one.name)
def test_a_switch_is_thrown_from_its_version_on(switch):
    major, minor, patch = map(int, switch.metadata["since"].split("."))
    before = f"{major}.{minor}.{patch - 1}" if patch else f"{major}.{minor - 1}.9"
    assert getattr(Followed.at(switch.metadata["since"]), switch.name) is True
    assert getattr(Followed.at(f"{major}.{minor}.{patch + 1}.dev0"), switch.name) is True
    assert getattr(Followed.at(before), switch.name) is False


def test_the_variable_counts_before_what_is_served(monkeypatch):
    followed.serve("5.23.0")
    assert followed.followed().evaluates_last_step
    monkeypatch.setenv(followed.VARIABLE, "5.3.0")
    assert not followed.followed().evaluates_last_step
    followed.serve(None)
    monkeypatch.setenv(followed.VARIABLE, "5.23")
    assert followed.followed().evaluates_last_step


@pytest.mark.parametrize("wrong", ["newest", "5.x"])
def test_what_is_no_version_is_an_error(monkeypatch, wrong):
    monkeypatch.setenv(followed.VARIABLE, wrong)
    with pytest.raises(ValueError, match=f"LIGHTRAINER_FOLLOW='{wrong}' is not a version"):
        followed.followed()
