"""Command line parser: dataclasses filled from a command line, a dict or a file.

Here: options, their help, old spellings. Not here: what arguments mean (`facade/arguments`), the
only subpackage it imports.
"""
