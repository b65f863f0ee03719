"""The public names, frozen: adding or removing one changes this list."""

import json
import subprocess
import sys

import pytest

import lightrainer
from helpers.trainer.tiny_trainings import split

NAMES = split("""
    Adafactor AutoTokenizer BatchEncoding BatchMetrics BestRun CallbackHandler CausalLMModule DataCollator
    DataCollatorForLanguageModeling DataCollatorForMultipleChoice DataCollatorForPermutationLanguageModeling
    DataCollatorForSOP DataCollatorForSeq2Seq DataCollatorForTokenClassification DataCollatorForWholeWordMask
    DataCollatorWithFlattening DataCollatorWithPacking DataCollatorWithPadding DataModule DebugOption
    DebugUnderflowOverflow DefaultDataCollator DefaultFlowCallback EMACallback EarlyStoppingCallback EvalLoopOutput
    EvalPrediction ExportableState FSDPOption FolderCheckpoint GradientNormCallback HPSearchBackend HfArg
    HfArgumentParser HubStrategy IntervalStrategy LightningBridge LossModule MemoryCallback
    NaNGuardCallback NaNGuardError NotebookProgressCallback OptimizerConfig OptimizerNames OptunaPruningCallback
    ParallelMode PreTrainedTokenizerFast PredictionOutput PrinterCallback ProfilerCallback ProgressCallback
    RunPlan RunReportCallback SaveStrategy ScheduleConfig SchedulerType Seq2SeqModule Seq2SeqTrainer
    Seq2SeqTrainingArguments SequenceClassificationModule TFTrainer TFTrainingArguments TensorBoardCallback
    ThroughputCallback TimeLimitCallback TokenClassificationModule TokenLoss TokenPerplexity TrainOutput Trainer
    TrainerCallback TrainerControl TrainerState TrainingArguments default_compute_objective
    default_data_collator denumpify_detensorize enable_full_determinism get_adafactor_schedule
    get_constant_schedule get_constant_schedule_with_warmup get_cosine_schedule_with_warmup
    get_cosine_with_hard_restarts_schedule_with_warmup get_cosine_with_min_lr_schedule_with_warmup
    get_cosine_with_min_lr_schedule_with_warmup_lr_rate get_inverse_sqrt_schedule
    get_last_checkpoint get_linear_schedule_with_warmup get_polynomial_decay_schedule_with_warmup
    get_reduce_on_plateau_schedule get_scheduler get_wsd_schedule has_length install load_ipython_extension
    notebook_launcher set_seed speed_metrics torch_default_data_collator torch_distributed_zero_first uninstall
    unload_ipython_extension
    """)


# Classes that the reference has under a newer name.
RENAMED = ["PreTrainedTokenizerFast"]
# Those of annotations only.
TYPES = ["DataCollator"]


def test_public_names_are_these():
    assert sorted(lightrainer.__all__) == NAMES
    assert len(NAMES) == len(set(NAMES))


@pytest.mark.parametrize("name", NAMES)
def test_public_names_can_be_imported(name):
    """By `from lightrainer import name`; it is documented, and seen by `dir()`."""
    scope = {}
    exec(f"from lightrainer import {name}", scope)
    assert scope[name] is getattr(lightrainer, name)
    assert scope[name].__doc__ or name in TYPES
    assert name in dir(lightrainer)


@pytest.mark.parametrize("name", NAMES)
def test_kinds_and_names_are_those_of_the_reference(name):
    """A class for a class and a function for a function, with the same `__name__`."""
    transformers = pytest.importorskip("transformers")
    theirs = getattr(transformers, name, None)
    if theirs is None:
        return
    ours = getattr(lightrainer, name)
    assert isinstance(ours, type) == isinstance(theirs, type)
    if name not in TYPES:
        assert ours.__name__ == (name if name in RENAMED else theirs.__name__)


LIGHT = {
    "import lightrainer": [
        "torch",
        "lightning",
        "datasets",
        "transformers",
        "accelerate",
        "optuna",
        "numpy",
    ],
    "from lightrainer import TrainingArguments": [
        "lightning",
        "datasets",
        "transformers",
        "accelerate",
        "optuna",
    ],
    "from lightrainer import TrainingArguments; TrainingArguments('out', use_cpu=True, report_to='none')": [
        *(
            "lightning",
            "torchmetrics",
            "datasets",
            "transformers",
            "accelerate",
            "optuna",
            "matplotlib",
            "tensorboard",
        )
    ],
    "from lightrainer import HfArgumentParser, TrainingArguments; HfArgumentParser(TrainingArguments)": [
        *("torch", "lightning", "datasets", "transformers", "accelerate", "numpy", "yaml")
    ],
    "import lightrainer.callbacks": ["torch", "lightning", "transformers", "numpy"],
    "from lightrainer import install; install(); import lightrainer.interception.runner": [
        *("torch", "numpy", "lightning", "datasets", "transformers", "accelerate")
    ],
    "from lightrainer.__main__ import main; main(['estimate', '--model', '8B', '--compare'])": [
        *("lightning", "datasets", "transformers", "accelerate", "matplotlib")
    ],
    "from lightrainer import Trainer": [
        "lightning",
        "datasets",
        "transformers",
        "accelerate",
        "matplotlib",
    ],
}


@pytest.mark.parametrize("statement", LIGHT)
def test_public_names_import_only_what_they_need(statement, tmp_path):
    """In a separate process, where nothing has been loaded before."""
    code = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}
    assert "lightrainer" in loaded
    assert loaded.isdisjoint(LIGHT[statement]), loaded & set(LIGHT[statement])
    assert list(tmp_path.iterdir()) == []
