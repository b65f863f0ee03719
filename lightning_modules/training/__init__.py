"""The LightningModule behind the facade: accumulation windows, losses, out of memory.

Not here: modules for Lightning users (`lightning_modules/tasks`). Imports every room but `tasks` and `search`.
"""
