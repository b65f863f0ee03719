"""Each difference between versions is one switch, thrown by the version that is followed."""

import dataclasses
from pathlib import Path

import pytest

from lightrainer.lightning_modules.common import version_behavior
from lightrainer.lightning_modules.common.version_behavior import VersionBehavior

SWITCHES = [one for one in dataclasses.fields(VersionBehavior) if one.metadata]


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch):
    monkeypatch.delenv(version_behavior.VARIABLE, raising=False)
    monkeypatch.setattr(version_behavior, "_served", None)


def test_followed_documented_version_sets_no_switch():
    assert not any(getattr(version_behavior.version_behavior(), switch.name) for switch in SWITCHES)


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
    assert getattr(VersionBehavior.at(switch.metadata["since"]), switch.name) is True
    assert getattr(VersionBehavior.at(f"{major}.{minor}.{patch + 1}.dev0"), switch.name) is True
    assert getattr(VersionBehavior.at(before), switch.name) is False


def test_followed_variable_precedes_the_served_version(monkeypatch):
    version_behavior.serve("5.23.0")
    assert version_behavior.version_behavior().evaluates_last_step
    monkeypatch.setenv(version_behavior.VARIABLE, "5.3.0")
    assert not version_behavior.version_behavior().evaluates_last_step
    version_behavior.serve(None)
    monkeypatch.setenv(version_behavior.VARIABLE, "5.23")
    assert version_behavior.version_behavior().evaluates_last_step


@pytest.mark.parametrize("wrong", ["newest", "5.x"])
def test_followed_invalid_version_raises(monkeypatch, wrong):
    monkeypatch.setenv(version_behavior.VARIABLE, wrong)
    with pytest.raises(ValueError, match=f"LIGHTRAINER_FOLLOW='{wrong}' is not a version"):
        version_behavior.version_behavior()
