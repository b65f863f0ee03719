"""Spread models and sequences over processes: FSDP, tensor and context parallel, DeepSpeed, XLA.

Not here: who started the processes (`facade/distributed`). Imports `common`, `internals`, `models` and
`optim`.
"""
