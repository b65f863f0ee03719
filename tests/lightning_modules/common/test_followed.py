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


def test_followed_documented_version_sets_no_switch():
    assert not any(getattr(followed.followed(), one.name) for one in SWITCHES)


def test_followed_switches_are_in_the_table_with_a_test():
    tests = Path(__file__).parents[2]
    guide = (tests.parent / "docs" / "develop" / "followed.md").read_text(encoding="utf-8")
    for switch in SWITCHES:
        (row,) = (line for line in guide.splitlines() if f"`{switch.name}`" in line)
        assert row.startswith(f"| {switch.metadata['since']} |")
        assert (tests / row.rstrip(" |").rpartition("|")[2].strip(" `")).is_file(), row


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda one: one.name)
def test_followed_switch_applies_from_its_version(switch):
    major, minor, patch = map(int, switch.metadata["since"].split("."))
    before = f"{major}.{minor}.{patch - 1}" if patch else f"{major}.{minor - 1}.9"
    assert getattr(Followed.at(switch.metadata["since"]), switch.name) is True
    assert getattr(Followed.at(f"{major}.{minor}.{patch + 1}.dev0"), switch.name) is True
    assert getattr(Followed.at(before), switch.name) is False


def test_followed_variable_precedes_the_served_version(monkeypatch):
    followed.serve("5.23.0")
    assert followed.followed().evaluates_last_step
    monkeypatch.setenv(followed.VARIABLE, "5.3.0")
    assert not followed.followed().evaluates_last_step
    followed.serve(None)
    monkeypatch.setenv(followed.VARIABLE, "5.23")
    assert followed.followed().evaluates_last_step


@pytest.mark.parametrize("wrong", ["newest", "5.x"])
def test_followed_invalid_version_raises(monkeypatch, wrong):
    monkeypatch.setenv(followed.VARIABLE, wrong)
    with pytest.raises(ValueError, match=f"LIGHTRAINER_FOLLOW='{wrong}' is not a version"):
        followed.followed()
