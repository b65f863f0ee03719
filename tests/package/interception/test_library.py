"""With transformers installed: its Trainer-related modules are ours, all their names are there,
the rest is its own.
"""

import json

import pytest

from helpers import HELPERS
from helpers.processes.plain_pythons import forked, last_json
from lightrainer.interception.names import SERVED

OF_FOUR = {"trainer_tf", "training_args_tf"}
"""Modules that only transformers 4 has."""
AUDIT = HELPERS / "scripts" / "audit_script.py"

# In a process that serves because it says so itself: its models, which may be there already, stay
# with the collector.
INSTALL = """
import gc, json, lightrainer
lightrainer.install(children=False)
freezes, gc.freeze = [], lambda: freezes.append(1)
import transformers
print(json.dumps([freezes, type(transformers).__name__]))
"""

# In a process without interception: what the library's own modules have.
LOOK = """
import importlib, json, sys, transformers
names = {}
for inside in json.loads(sys.argv[1]):
    module = importlib.import_module("transformers." + inside)
    own = [name for name in vars(module) if not name.startswith("__") or name == "__version__"]
    names[inside] = own
print(json.dumps(names))
"""


@pytest.fixture(scope="module")
def theirs(with_either, tmp_path_factory):
    modules = json.dumps([*SERVED.keys() - OF_FOUR])
    return last_json(forked(with_either, "-c", LOOK, modules, cwd=tmp_path_factory.mktemp("look")))


def test_served_modules_have_every_name_once(theirs, with_either, tmp_path):
    """Public or not, defined there or imported; those of the table are ours, and each class is
    one object.
    """
    assert sum(map(len, theirs.values())) > 500
    assert "PreTrainedModel" in theirs["trainer"]
    audit = last_json(
        forked(with_either, AUDIT, served=True, cwd=tmp_path, input=json.dumps(theirs))
    )
    assert [name for name, right in audit.pop("built").items() if not right] == []
    assert audit == {"missing": [], "wrong": [], "several": []}


def test_library_served_later_freezes_nothing(with_either, tmp_path):
    assert last_json(forked(with_either, "-c", INSTALL, cwd=tmp_path)) == [[], "ServedPackage"]


LIGHT = """
import json, sys
import transformers
from transformers.utils import is_torch_available
from transformers.trainer_utils import IntervalStrategy
before = [name for name in ("lightrainer.facade.trainer", "lightning", "accelerate") if name in sys.modules]
from transformers import BertConfig
config = [name for name in ("lightrainer.facade.trainer", "lightning") if name in sys.modules]
print(json.dumps([before, config, IntervalStrategy.__module__]))
"""


def test_library_is_loaded_on_demand(with_either, tmp_path):
    before, config, home = last_json(forked(with_either, "-c", LIGHT, served=True, cwd=tmp_path))
    assert before == config == []
    assert home.startswith("lightrainer.")


COLLATORS = """
import json, tokenizers, torch
from transformers import DataCollatorWithPadding, default_data_collator, data
from transformers import PreTrainedTokenizerFast, Trainer, TrainingArguments
model = tokenizers.models.WordLevel({"a": 0}, unk_token="a")
words = PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(model), pad_token="a")
args = TrainingArguments("out", use_cpu=True, report_to="none")
chosen = Trainer(torch.nn.Linear(1, 1), args, processing_class=words).data_collator
plain = Trainer(torch.nn.Linear(1, 1), args).data_collator
one_class = DataCollatorWithPadding is data.DataCollatorWithPadding
print(json.dumps([type(chosen) is DataCollatorWithPadding, plain is default_data_collator, one_class]))
"""


def test_library_has_the_collators_that_a_trainer_chooses(with_either, tmp_path):
    """Scripts compare the collator of a Trainer with them."""
    assert last_json(forked(with_either, "-c", COLLATORS, served=True, cwd=tmp_path)) == [True] * 3
    assert last_json(forked(with_either, "-c", COLLATORS, cwd=tmp_path)) == [True] * 3


TRAINING = """
import json, logging, os, sys
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
from transformers.utils import logging as hf_logging
hf_logging.set_verbosity_info()
records = []
class Gather(logging.Handler):
    def emit(self, record):
        records.append([record.name, record.levelname, record.getMessage()])
logging.getLogger("transformers").addHandler(Gather())
torch.manual_seed(0)
config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
data = [{"input_ids": torch.tensor([i % 20, 3]), "labels": i % 2} for i in range(8)]
args = TrainingArguments("out", use_cpu=True, num_train_epochs=1, report_to="none", disable_tqdm=True, seed=3)
trainer = Trainer(BertForSequenceClassification(config), args, train_dataset=data)
loss = trainer.train().training_loss
names = sorted({name for name, _, _ in records})
levels = sorted({level for _, level, _ in records})
records.clear()
hf_logging.set_verbosity_error()
trainer.train()
after = len(records)
hf_logging.set_verbosity_warning()
from unittest.mock import patch
from transformers import EarlyStoppingCallback
from transformers.trainer_callback import CallbackHandler
said = {}
with patch("transformers.trainer_callback.logger.warning") as warning:
    handler = CallbackHandler([EarlyStoppingCallback], None, None, None, None)
    said["no flow"] = "DefaultFlowCallback" in warning.call_args[0][0]
    handler.add_callback(EarlyStoppingCallback)
    said["double"] = str(EarlyStoppingCallback) in warning.call_args[0][0]
with patch("transformers.trainer.logger.warning") as warning:
    trainer._save_checkpoint(trainer.model, None)
    folder = "out/checkpoint-" + str(trainer.state.global_step)
    written = json.load(open(folder + "/trainer_state.json"))
    written["stateful_callbacks"] = {"MyCallback": {"args": {}, "attributes": {}}}
    json.dump(written, open(folder + "/trainer_state.json", "w"))
    trainer.args.restore_callback_states_from_checkpoint = True
    trainer.train(resume_from_checkpoint=folder)
    said["stateful"] = any("MyCallback" in str(call[0][0]) for call in warning.call_args_list)
print(json.dumps([type(trainer).__module__.partition(".")[0], loss, names, levels, after, said]))
"""


def test_library_model_trains_to_the_same_loss_with_known_messages(with_either, tmp_path):
    ours = forked(with_either, "-c", TRAINING, served=True, cwd=tmp_path)
    plain = forked(with_either, "-c", TRAINING, cwd=tmp_path)
    (kind, loss, names, levels, after, replaced), theirs = last_json(ours), last_json(plain)
    assert (kind, theirs[0]) == ("lightrainer", "transformers")
    assert loss == theirs[1]
    assert "transformers.trainer" in set(names) & set(theirs[2])
    assert [name for name in names if not name.startswith("transformers.")] == []
    assert "INFO" in levels
    assert after == theirs[4] == 0
    # Through the loggers that scripts know, whose methods may be replaced.
    assert replaced == theirs[5] == {"no flow": True, "double": True, "stateful": True}
    # Logged only once, and in the same form.
    assert ours.stderr.count("Running training") == plain.stderr.count("Running training") == 1
