"""Components of a training for any loop: accumulation windows, losses, out-of-memory handling.

Not here: the LightningModule behind the facade (`facade/trainer/trainer_module.py`), modules for
Lightning users (`lightning_modules/tasks`). Imports every folder except `tasks`, `search` and
`tokenization`.
"""
