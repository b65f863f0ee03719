"""Measure the cost of one callback more per step, over the four events of a step, in both
libraries' handlers.

Promised is under 2 us for a callback that does nothing: one that overrides no event, and one whose
events are empty. For comparison one whose events do the least there is to do, which Python itself
takes most of the time to call.
"""

import time

from .common import LIBRARIES, Figure, interleaved, library, medians, report

STEPS = 5_000
ROUNDS = 15
MANY = 10  # callbacks at once, so that what the handler costs anyway is divided out
EVENTS = ("on_step_begin", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end")


class Arguments:
    """Arguments that `DefaultFlowCallback` reads."""

    logging_first_step = False
    logging_strategy = eval_strategy = save_strategy = "no"
    eval_delay = 0


def callback_module(name: str):
    """Return the module in which a library has its callbacks."""
    return library(
        "transformers.trainer_callback" if name == "transformers" else "lightrainer.callbacks"
    )


def classes(api) -> dict[str, type]:
    """Callbacks that do nothing, and one that does a little."""

    class Overriding(api.TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            pass

        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            pass

        def on_optimizer_step(self, args, state, control, **kwargs):
            pass

        def on_step_end(self, args, state, control, **kwargs):
            pass

    def count(self, args, state, control, **kwargs):
        self.calls = 1

    bare = type("Bare", (api.TrainerCallback,), {})
    counting = type("Counting", (api.TrainerCallback,), dict.fromkeys(EVENTS, count))
    return {
        "no event overridden": bare,
        "four empty events": Overriding,
        "four events that do a little": counting,
    }


def seconds_per_step(api, callbacks: list) -> float:
    """Processor time of the events of a step, which other programs disturb less."""
    handler = api.CallbackHandler([api.DefaultFlowCallback(), *callbacks], None, None, None, None)
    state, control, args = (
        api.TrainerState(max_steps=10**9, global_step=3),
        api.TrainerControl(),
        Arguments(),
    )
    handlers = [getattr(handler, event) for event in EVENTS]
    begin = time.thread_time()
    for _ in range(STEPS):
        for call in handlers:
            control = call(args, state, control)
    return (time.thread_time() - begin) / STEPS


def main() -> list[Figure]:
    library("lightrainer")
    candidates = {}
    for name in LIBRARIES:
        api = callback_module(name)
        kinds = {"none": None, **classes(api)}
        for kind, cls in kinds.items():
            callbacks = [] if cls is None else [cls() for _ in range(MANY)]
            candidates[f"{name}, {kind}"] = lambda api=api, callbacks=callbacks: seconds_per_step(
                api, callbacks
            )
    rounds = interleaved(ROUNDS, candidates)
    # Disturbances only ever add time, so the quickest round is the nearest to the truth.
    best = {name: min(values) for name, values in rounds.items()}
    cost = {
        name: (seconds - best[f"{name.split(',')[0]}, none"]) / MANY * 1e6
        for name, seconds in best.items()
        if not name.endswith("none")
    }
    rows = [(name, f"{value:5.2f} us a step") for name, value in cost.items()]
    return report("callback_cost", rows, {"microseconds": cost, "medians": medians(rounds)})


if __name__ == "__main__":
    main()
