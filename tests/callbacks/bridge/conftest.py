"""Share the filters and the working folder of the bridge's tests."""

from pathlib import Path

import pytest
import torch

NARROW = (
    "ignore:.*does not have many workers",
    "ignore:.*LeafSpec",
    "ignore:.*but have no logger configured",
    "ignore:.*Checkpoint directory .* exists",
    "ignore:The dirpath has changed",
    "ignore:.*is not resumable",
    "ignore:The dirpath has changed",
    "ignore:.*your dataloader is not resumable",
)


def pytest_collection_modifyitems(items):
    """Third parties warn of what these tests do on purpose."""
    for item in items:
        if Path(item.fspath).parent == Path(__file__).parent:
            for warning in NARROW:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """Lightning writes to the present folder by default."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
