"""Histories of runs that were never made, for reports on them."""

import html.parser
import math
from types import SimpleNamespace

from lightrainer.callbacks import TrainerState

NAME = 'gpt2 <script>alert(1)</script> "q" & co'


def arguments(folder, **changed):
    values = {
        "output_dir": str(folder),
        "run_name": NAME,
        "learning_rate": 3e-4,
        "seed": 42,
        "world_size": 1,
    }
    return SimpleNamespace(**values | changed)


def history(steps=300, every=10):
    """A loss that is not finite for a while, evaluations, measurements, and a metric of the
    script.
    """
    logs = []
    for step in range(every, steps + 1, every):
        entry = {
            "loss": 1 + 3 * math.exp(-step / 100),
            "grad_norm": 1.5 + math.sin(step),
            "learning_rate": 1e-3 / step,
        }
        entry |= {
            "samples_per_second": 800.0 + step,
            "tokens_per_second": 1e5 + step,
            "flops_per_second": 3e14,
        }
        entry |= {
            "mfu": 0.41,
            "host_memory_gib": 3.25,
            "device_memory_peak_gib": 41.5,
            "reward<b>": step / 7,
        }
        entry |= {f"grad_norm/h.{layer}": 0.1 * layer + 0.2 for layer in range(12)}
        if step == 2 * every:
            entry["loss"] = math.nan
        if step == 3 * every:
            entry["grad_norm"] = math.inf
        logs.append({**entry, "epoch": step / 100, "step": step})
        if step % (5 * every) == 0:
            metrics = {
                "eval_loss": 2 - step / 400,
                "eval_accuracy": step / 400,
                "eval_runtime": 1.0,
            }
            logs.append({**metrics, "epoch": step / 100, "step": step})
    return [*logs, {"train_runtime": 3723.0, "train_loss": 1.5, "step": steps}]


def state(**changed):
    values = {
        "max_steps": 300,
        "global_step": 300,
        "epoch": 3.0,
        "num_train_epochs": 3,
        "log_history": history(),
    }
    return TrainerState(**values | changed)


class Page(html.parser.HTMLParser):
    """The texts of a page, and the elements that are open at its end."""

    VOID = {"meta", "img"}

    def __init__(self, text):
        super().__init__()
        self.open, self.texts, self.attributes = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("script", "style"):
            self.texts.append(data)
