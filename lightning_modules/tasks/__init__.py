"""LightningModules and a DataModule for users of plain `lightning.Trainer`.

Here: LossModule, the modules of the usual tasks, exact resumption. Nothing of the facade is needed, and nothing imports
this but the list of public names.
"""
