"""Shared helpers: seeding, torch files, safe serialization, nested values, suggestions.

They are independent of training. Imports no other subpackage.
"""
