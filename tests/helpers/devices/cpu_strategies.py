"""Strategies of Lightning that train on GPUs only, for CPUs: only checks for GPUs are left out."""

import importlib
import os

import torch
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, StateDictType


class FSDPOnCPU(FSDPStrategy):
    """Lightning wraps on GPUs only."""

    def _setup_model(self, model):
        return super()._setup_model(
            FullyShardedDataParallel(model, device_id=self.root_device, use_orig_params=True)
        )

    def lightning_module_state_dict(self):
        """Gather whole weights where they are: torch frees them too early where they are copied
        from the CPU to it.
        """
        if self._state_dict_type != "full":
            return super().lightning_module_state_dict()
        in_place = FullStateDictConfig(offload_to_cpu=False, rank0_only=True)
        with FullyShardedDataParallel.state_dict_type(
            self.model, StateDictType.FULL_STATE_DICT, in_place
        ):
            return self.model.state_dict()


class DeepSpeedOnCPU(DeepSpeedStrategy):
    """Lightning asks for GPUs before it makes the process group."""

    @property
    def root_device(self):
        return torch.device("cpu", 0)

    def setup_environment(self):
        super(DeepSpeedStrategy, self).setup_environment()

    def setup_distributed(self):
        """As DDP; DeepSpeed does not compile an operation for shared memory, which takes
        minutes.
        """
        importlib.import_module("deepspeed.ops").__compatible_ops__["deepspeed_shm_comm"] = False
        super(DeepSpeedStrategy, self).setup_distributed()
        os.environ.setdefault("LOCAL_RANK", str(self.local_rank))
