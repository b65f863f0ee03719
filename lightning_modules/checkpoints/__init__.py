"""Write folders `checkpoint-N` atomically and read them without unpickling arbitrary objects.

Here: the format, usable from any training loop: weights, states, integrity, crash-safe writing, selection and rotation
of folders; `FolderCheckpointIO` is for Lightning. Not here: when a checkpoint is written
(`facade/checkpointing`). Imports all rooms but `training` and `tasks`.

    staging.py            a folder under a hidden name, renamed when it is complete; leftovers of killed processes
    owners.py             which process, job and training a folder belongs to; the lock of a folder
    disk.py               flushing, free space, and a full disk, which is raised on all processes
    writing.py            the files of a checkpoint, at once or in a thread; copies of tensors
    manifest.py           sizes and checksums of all files
    folders.py            lists checkpoints, finds the newest intact one, removes older ones
    verify.py             whether a checkpoint is intact
    forms.py              weights in one file, in shards, as adapters, or in parts of processes
    weights.py            saves and loads the weights of any module
    tied_weights.py       one memory under several names
    adapters.py           weights of PEFT
    completeness.py       warns of weights that a saved model lacks
    sharded_files.py      the part of each process, by torch.distributed.checkpoint
    sharded_reading.py    reads the table of such parts without unpickling it
    state_guards.py       refuses the state of another kind of optimizer or schedule
    folder_io.py          CheckpointIO of Lightning for these folders
    folder_checkpoint.py  Lightning callback that writes them
    lightning_files.py    a checkpoint of Lightning as files of a folder, and back
    callback_paths.py     removes foreign paths from the states of Lightning callbacks
    conversion.py         `convert`: files of Lightning, DeepSpeed's states, parts of processes, whole weights
"""

import lazy_loader

# The names are listed in the stub beside this file, which type checkers read too.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
