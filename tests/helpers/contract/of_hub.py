"""The Hub: uploads, their times, targets and tokens; against a stand-in on this machine."""

from collections.abc import Callable
from typing import Any

from helpers.contract.effects import Effect, Observation, Place, becomes, make
from helpers.hub.hub_client import point_at
from helpers.hub.hub_server import ANOTHER_TOKEN, TOKEN, HubServer
from helpers.trainer.tiny_trainings import At

PUSHING = {
    "push_to_hub": True,
    "hub_model_id": "me/model",
    "save_strategy": "steps",
    "save_steps": 2,
}


def on_the_hub(look: Callable[[HubServer], Any]) -> Observation:
    """Look at the Hub after a training, in which no upload gets through before the last step."""

    def observe(given: dict[str, Any], place: Place) -> Any:
        with HubServer() as hub, hub.held("preupload") as go:
            hub.all_regular = True
            point_at(hub, place.patch, place.folder / "cache")
            make(given, place, callbacks=lambda: [At("on_train_end", lambda *_: go.set())]).train()
            return look(hub)

    return observe


def _messages(hub: HubServer) -> list[str]:
    return [message for repo in hub.repos.values() for message in repo.messages()[1:]]


def _steps(hub: HubServer) -> list[int]:
    return [int(message.rpartition(" ")[2]) for message in _messages(hub)]


def _branches(hub: HubServer) -> list[str]:
    """Those that something was uploaded to."""
    (repo,) = hub.repos.values()
    return [name for name, commits in repo.branches.items() if len(commits) > 1]


def _tokens(hub: HubServer) -> set[str | None]:
    return {token for _, token in hub.requests}


def _privacy(hub: HubServer) -> list[bool]:
    return [repo.private for repo in hub.repos.values()]


ENTRIES: dict[str, Effect] = {
    "push_to_hub": Effect(
        True,
        on_the_hub(_messages),
        becomes([], ["Training in progress, epoch 1"]),
        {"hub_model_id": "me/model", "save_strategy": "epoch"},
    ),
    "hub_token": Effect(
        ANOTHER_TOKEN,
        on_the_hub(_tokens),
        becomes({f"Bearer {TOKEN}"}, {f"Bearer {ANOTHER_TOKEN}"}),
        PUSHING,
    ),
    "hub_private_repo": Effect(True, on_the_hub(_privacy), becomes([False], [True]), PUSHING),
    "hub_model_id": Effect(
        "me/model",
        on_the_hub(lambda hub: list(hub.repos)),
        becomes(["me/usual"], ["me/model"]),
        {"push_to_hub": True},
    ),
    "hub_strategy": Effect("end", on_the_hub(_steps), becomes([2, 4], []), PUSHING),
    "hub_always_push": Effect(
        True, on_the_hub(_steps), becomes([1, 4], [1, 2, 3, 4]), {**PUSHING, "save_steps": 1}
    ),
    "hub_revision": Effect("draft", on_the_hub(_branches), becomes(["main"], ["draft"]), PUSHING),
}
