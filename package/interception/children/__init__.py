"""The folder that is put on PYTHONPATH: Python imports the `sitecustomize` in it at the start of every process."""
