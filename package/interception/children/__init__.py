"""Folder for PYTHONPATH: Python imports its `sitecustomize` at the start of every process."""
