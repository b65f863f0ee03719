"""What lower rooms know of the Trainer: protocols of what they read and call.

Here are types only, no behaviour. May import arguments, strategies, accelerator and callbacks, for their types.
"""
