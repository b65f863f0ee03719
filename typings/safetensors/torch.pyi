"""Types of `safetensors.torch`, whose paths are `PathLike` of nothing in particular."""

from collections.abc import Mapping
from os import PathLike

from torch import Tensor, nn

def load_file(filename: str | PathLike[str], device: str | int = ...) -> dict[str, Tensor]: ...
def save_file(
    tensors: Mapping[str, Tensor],
    filename: str | PathLike[str],
    metadata: dict[str, str] | None = ...,
) -> None: ...
def save_model(
    model: nn.Module,
    filename: str,
    metadata: dict[str, str] | None = ...,
    force_contiguous: bool = ...,
) -> None: ...
