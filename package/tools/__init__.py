"""Commands of `lightrainer`, one module or folder each; imported by `__main__` when they are
called.
"""
