"""Search for installed packages once, and let Lightning advise and warn of what tests do on
purpose.
"""

from pathlib import Path

import pytest

from helpers.lightning.searched_once import packages_searched_once  # noqa: F401 - a fixture

FILTERS = (
    # torch 2.13 warns of what Lightning 2.6 does with its trees (2025).
    "ignore:.*LeafSpec:FutureWarning",
    # Advice: more workers on machines with many cores, fewer steps between logs, other folders,
    # other hooks.
    "ignore:.*does not have many workers",
    "ignore:The number of training batches",
    "ignore:You defined a `validation_step` but have no `val_dataloader`",
    "ignore:Checkpoint directory .* exists and is not empty",
    "ignore:Be aware that when using `ckpt_path`",
)


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for warning_filter in FILTERS:
                item.add_marker(pytest.mark.filterwarnings(warning_filter), append=False)
