"""Commands of `lightrainer`, one folder each; imported by `__main__` when they are called."""
