"""Errors of torch, gloo and NCCL about other processes are recognised by their texts."""

import pytest
import torch.distributed as dist

from lightrainer.lightning_modules.distributed.health import OtherProcessError
from lightrainer.lightning_modules.distributed.health.failure_monitor import is_late, is_lost

GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/"
LOST = [
    RuntimeError(f"{GLOO}pair.cc:553] Connection closed by peer [127.0.0.1]:13213. This is typically caused by"),
    RuntimeError(f"{GLOO}pair.cc:537] Read error [127.0.0.1]:44248: Connection reset by peer. GLHF!"),
    RuntimeError(f"{GLOO}pair.cc:547] writev [127.0.0.1]:44248: Broken pipe"),
    dist.DistNetworkError("Failed to recv, got 0 bytes. Connection was likely closed."),
    dist.DistBackendError("NCCL error: remote process exited or there was a network error, NCCL version 2.21.5"),
    dist.DistBackendError("NCCL communicator was aborted on rank 3."),
]
LATE = [
    RuntimeError(f"{GLOO}unbound_buffer.cc:81] Timed out waiting 3000ms for recv operation to complete"),
    dist.DistStoreError("Timed out after 61 seconds waiting for clients. 1/2 clients joined."),
    dist.DistBackendError("wait timeout after 600000ms, keys: /default_pg/0//cuda//0"),
    dist.DistBackendError(
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, Timeout(ms)=1000)"
    ),
]
OTHERS = [
    ValueError("Connection closed by peer"),
    ConnectionResetError(104, "Connection reset by peer"),  # of a tracker, or of a dataset that reads from the network
    RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    RuntimeError("The file system says: broken pipe"),
    RuntimeError("DataLoader timed out after 5 seconds"),
    OtherProcessError("Process 1 failed: RuntimeError: gloo: Connection closed by peer"),
]


@pytest.mark.parametrize("error", LOST + LATE + OTHERS, ids=str)
def test_lost_connections_and_timeouts_are_known(error):
    assert (is_lost(error), is_late(error)) == (error in LOST, error in LATE)
