"""Shard models and sequences over processes: FSDP, tensor and context parallel, DeepSpeed, XLA.

Launchers and process groups are in `facade/distributed`. Imports `common`, `internals`, `models`
and `optim`.
"""
