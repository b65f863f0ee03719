"""Commands of `lightrainer`, a module or folder each, which `__main__` imports when called."""
