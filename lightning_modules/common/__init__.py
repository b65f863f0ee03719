"""Seeds, files of torch, safe serialization, nested values, suggestions.

Here: helpers that several rooms need and that know nothing of training. Imports no other room.
"""
