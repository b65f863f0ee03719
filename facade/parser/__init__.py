"""Command line parser: fill dataclasses from a command line, a dict or a file.

Here: options, their help, and old spellings. The meaning of arguments is in `facade/arguments`, the
only subpackage that this one imports.
"""
