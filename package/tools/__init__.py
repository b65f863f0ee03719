"""The commands of `lightrainer`. Each is a module or folder that `__main__` imports on use."""
