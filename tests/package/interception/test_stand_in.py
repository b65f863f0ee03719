"""Without transformers: the stand-in has the names of its table, and refuses others."""

import json

from helpers.processes.plain_pythons import forked, last_json
from lightrainer.interception.names import VERSION
from lightrainer.interception.stand_in.names import STAND_IN

EVERYTHING = """
import importlib, json, sys
import transformers
table = json.loads(sys.stdin.read())
broken, several = [], {}
for inside, names in table.items():
    module = importlib.import_module("transformers." + inside if inside else "transformers")
    for name in names:
        try:
            value = getattr(module, name)
        except Exception as error:
            broken.append(f"{inside}.{name}: {error!r}")
        else:
            if callable(value):
                several.setdefault(name, set()).add(id(value))
broken += [f"{name} is not one object" for name, ids in several.items() if len(ids) > 1]
undocumented = [name for name in table[""] if callable(value := getattr(transformers, name)) and not value.__doc__]
own = sorted(name for name in sys.modules if name.startswith("transformers"))
print(json.dumps([broken, undocumented, own]))
"""


def test_stand_in_serves_every_name_as_one_object(without_library, tmp_path):
    table = {inside: [*names] for inside, names in STAND_IN.items()}
    assert sum(map(len, table.values())) > 400
    done = forked(
        without_library, "-c", EVERYTHING, served=True, cwd=tmp_path, input=json.dumps(table)
    )
    broken, undocumented, modules = last_json(done)
    assert broken == []
    assert undocumented == []
    assert modules == sorted(
        ".".join(filter(None, ("transformers", inside))) for inside in STAND_IN
    )


REFUSALS = """
import importlib, importlib.metadata, json
said = {}
for statement in (
    "from transformers import BertModel",
    "from transformers.trainer_utils import nothing_known",
    "from transformers.models.bert.modeling_bert import BertModel",
    "import transformers; transformers.BertModel",
):
    try:
        exec(statement)
    except Exception as error:
        said[statement] = [type(error).__name__, str(error), getattr(error, "name", None)]
import transformers
try:
    importlib.metadata.version("transformers")
    version = "found"
except importlib.metadata.PackageNotFoundError:
    version = "not found"
probes = [
    hasattr(transformers, "BertModel"),
    getattr(transformers, "BertModel", 3),
    version,
    transformers.__version__,
]
print(json.dumps([said, probes]))
"""


def test_stand_in_refuses_other_names_with_a_remedy(without_library, tmp_path):
    refused, probes = last_json(forked(without_library, "-c", REFUSALS, served=True, cwd=tmp_path))
    assert len(refused) == 4
    for statement, (kind, text, name) in refused.items():
        assert kind == ("AttributeError" if ";" in statement else "ModuleNotFoundError")
        assert "not part of lightrainer" in text
        assert "pip install transformers" in text
        assert statement.split()[-1] in text or "models.bert" in text
        if kind == "ModuleNotFoundError":
            # as if there were no stand-in: who catches that, catches this
            assert name == "transformers"
    assert probes == [False, 3, "not found", VERSION]


LIBRARIES = """
import json
from transformers import Trainer
import torch, torchmetrics, datasets, accelerate, accelerate.utils, huggingface_hub, lightning, lightning.pytorch
import torchmetrics.text, torchmetrics.multimodal
data = datasets.Dataset.from_dict({"a": [1, 2, 3]}).map(lambda row: {"b": Trainer is not None and row["a"] + 1})
model = torch.compile(torch.nn.Linear(2, 2), backend="eager")
out = model(torch.ones(1, 2))
print(json.dumps([data["b"][:], bool(accelerate.utils.is_transformers_available()), list(out.shape)]))
"""


def test_libraries_that_look_for_it_work_as_without_it(without_library, tmp_path):
    """They ask for its version, which is not installed, or find it in `sys.modules`; none may
    break on the stand-in.
    """
    assert last_json(forked(without_library, "-c", LIBRARIES, served=True, cwd=tmp_path)) == [
        [2, 3, 4],
        False,
        [1, 2],
    ]


LOGGING = """
import json, logging, os, sys
from transformers.utils import logging as served
from transformers import logging as at_the_top
import transformers
seen = []
class Gather(logging.Handler):
    def emit(self, record):
        seen.append([record.name, record.levelno, record.getMessage()])
gather = Gather()
logging.getLogger("transformers").addHandler(gather)
ours = logging.getLogger("lightrainer.facade.trainer.anything")
other = logging.getLogger("lightrainer.callbacks.loggers.anything")
results = [served is at_the_top is sys.modules["transformers.utils.logging"], served.get_verbosity()]
ours.info("hidden"); ours.warning("shown")
served.set_verbosity_debug(); other.debug("shown too")
logging.getLogger("transformers.trainer").setLevel(logging.ERROR); ours.warning("hidden"); other.warning("shown 3")
logging.getLogger("transformers.trainer").setLevel(logging.NOTSET)
logging.getLogger("transformers.trainer").addFilter(lambda record: "secret" not in record.getMessage())
ours.warning("secret")
for _ in range(2):
    served.get_logger("transformers.trainer").warning_once("once")
served.disable_default_handler(); ours.error("not on stderr"); served.enable_default_handler()
served.disable_progress_bar()
from huggingface_hub.utils import are_progress_bars_disabled
results += [are_progress_bars_disabled()]
served.enable_propagation(); results += [logging.getLogger("transformers").propagate]
import lightrainer
lightrainer.uninstall()
print(json.dumps([results, seen, ours.getEffectiveLevel()]))
"""


def test_messages_go_through_the_loggers_that_scripts_know(without_library, tmp_path):
    """Levels, handlers and filters of `transformers.trainer` decide; each message appears once."""
    level = {"TRANSFORMERS_VERBOSITY": "warning"}
    done = forked(without_library, "-c", LOGGING, served=True, cwd=tmp_path, environment=level)
    results, records, level = last_json(done)
    assert results == [True, 30, True, True]
    assert records == [
        ["transformers.trainer", 30, "shown"],
        ["transformers.integrations.integration_utils", 10, "shown too"],
        ["transformers.integrations.integration_utils", 30, "shown 3"],
        ["transformers.trainer", 30, "once"],
        ["transformers.trainer", 40, "not on stderr"],
    ]
    assert done.stderr.splitlines() == ["shown", "shown too", "shown 3", "once"]
    assert level == 30
