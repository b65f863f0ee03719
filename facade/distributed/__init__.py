"""Which of how many processes this one is, who started them, and what they tell each other.

Here: launchers, the process group, cluster environments, notebooks. Not here: how a model is spread over processes
(`facade/strategies`). The lowest room: imports `lightning_modules` only.
"""
