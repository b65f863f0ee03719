"""LightningModules and a DataModule for users of plain `lightning.Trainer`.

Contains LossModule, modules for common tasks, and exact resumption. Independent of the facade.
"""
