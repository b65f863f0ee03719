"""The FSDP plugin of the accelerator, for scripts that ask for whole weights before they save the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from ..arguments.fsdp_config import FSDPSettings

_TYPES = {"full": "FULL_STATE_DICT", "sharded": "SHARDED_STATE_DICT"}


class FSDPPlugin:
    """As `accelerate.FullyShardedDataParallelPlugin`, without what shards a second model.

    Args:
        settings: those of the training arguments.

    Raises:
        NotImplementedError: for all other attributes, when they are read or set.
    """

    __slots__ = ("_settings",)
    _settings: FSDPSettings

    def __init__(self, settings: FSDPSettings) -> None:
        object.__setattr__(self, "_settings", settings)

    @property
    def fsdp_version(self) -> int:
        """Return the version of FSDP, 1 or 2."""
        return self._settings.version

    @property
    def state_dict_type(self) -> str:
        """Return the form of checkpoints: `FULL_STATE_DICT` or `SHARDED_STATE_DICT`."""
        return _TYPES[self._settings.state_dict_type]

    def set_state_dict_type(self, state_dict_type: Any = None) -> None:
        """Accept `FULL_STATE_DICT`: `save_model` writes whole weights in any case.

        Args:
            state_dict_type: a name, or a `torch.distributed.fsdp.StateDictType`. None changes nothing.

        Raises:
            NotImplementedError: another form than whole weights or that of the arguments.
        """
        if state_dict_type is None:
            return
        name = str(getattr(state_dict_type, "name", state_dict_type)).upper()
        if name not in ("FULL_STATE_DICT", self.state_dict_type):
            raise NotImplementedError(
                f"fsdp_plugin.set_state_dict_type({name!r}): save_model writes whole weights, and the form of "
                "checkpoints is fixed when a training begins: set fsdp_config={'state_dict_type': ...} for it."
            )

    def __getattr__(self, name: str) -> Any:
        """Refuse what is not here; names with two underscores are those that Python looks for."""
        if name.startswith("__"):
            raise AttributeError(name)
        _refuse(name)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse settings, which would have no effect."""
        _refuse(name)


def _refuse(name: str) -> NoReturn:
    raise NotImplementedError(
        f"trainer.accelerator.state.fsdp_plugin.{name}: fsdp shards the model that is trained, and no other. For that "
        "model set fsdp_config in the arguments. A second model needs fsdp left out; an adapter needs no second model."
    )
