"""Shard models and sequences over processes: FSDP, tensor and context parallel, DeepSpeed, XLA.

Not here: launchers and process groups (`facade/distributed`). Imports `common`, `internals`,
`models` and `optim`.
"""
