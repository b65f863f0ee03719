"""The same trainings with transformers, with lightrainer, and with plain Lightning."""
