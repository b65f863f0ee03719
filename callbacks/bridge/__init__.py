"""TrainerCallbacks in a plain `lightning.Trainer(callbacks=[...])`, without the facade.

`adapter` has the `LightningBridge`; `phase` says in which hooks of Lightning each event fires.
"""
