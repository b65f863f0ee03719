"""Which of how many processes this one is, who started them, and what they tell each other.

Here: launchers, the process group, cluster environments, notebooks, which process reads which data. Not here: how a
model is spread over processes (`facade/strategies`). Imports `facade/arguments` and `lightning_modules`.
"""
