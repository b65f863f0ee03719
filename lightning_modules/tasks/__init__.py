"""LightningModules and a DataModule for users of plain `lightning.Trainer`.

Here: LossModule, the modules of the usual tasks, exact resumption. Independent of the facade.
"""
