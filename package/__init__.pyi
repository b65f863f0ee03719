# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from .callbacks import CallbackHandler as CallbackHandler
from .callbacks import DefaultFlowCallback as DefaultFlowCallback
from .callbacks import EarlyStoppingCallback as EarlyStoppingCallback
from .callbacks import EMACallback as EMACallback
from .callbacks import ExportableState as ExportableState
from .callbacks import GradientNormCallback as GradientNormCallback
from .callbacks import LightningBridge as LightningBridge
from .callbacks import MemoryCallback as MemoryCallback
from .callbacks import NaNGuardCallback as NaNGuardCallback
from .callbacks import NaNGuardError as NaNGuardError
from .callbacks import NotebookProgressCallback as NotebookProgressCallback
from .callbacks import PrinterCallback as PrinterCallback
from .callbacks import ProfilerCallback as ProfilerCallback
from .callbacks import ProgressCallback as ProgressCallback
from .callbacks import RunReportCallback as RunReportCallback
from .callbacks import TensorBoardCallback as TensorBoardCallback
from .callbacks import ThroughputCallback as ThroughputCallback
from .callbacks import TimeLimitCallback as TimeLimitCallback
from .callbacks import TrainerCallback as TrainerCallback
from .callbacks import TrainerControl as TrainerControl
from .callbacks import TrainerState as TrainerState
from .facade import BestRun as BestRun
from .facade import EvalLoopOutput as EvalLoopOutput
from .facade import EvalPrediction as EvalPrediction
from .facade import HfArg as HfArg
from .facade import HfArgumentParser as HfArgumentParser
from .facade import HPSearchBackend as HPSearchBackend
from .facade import HubStrategy as HubStrategy
from .facade import IntervalStrategy as IntervalStrategy
from .facade import ParallelMode as ParallelMode
from .facade import PredictionOutput as PredictionOutput
from .facade import RunPlan as RunPlan
from .facade import SaveStrategy as SaveStrategy
from .facade import Seq2SeqTrainer as Seq2SeqTrainer
from .facade import Seq2SeqTrainingArguments as Seq2SeqTrainingArguments
from .facade import Trainer as Trainer
from .facade import TrainingArguments as TrainingArguments
from .facade import TrainOutput as TrainOutput
from .facade import notebook_launcher as notebook_launcher
from .facade.arguments.enums import DebugOption as DebugOption
from .facade.arguments.enums import FSDPOption as FSDPOption
from .facade.compat.processes import torch_distributed_zero_first as torch_distributed_zero_first
from .facade.evaluation.metrics import denumpify_detensorize as denumpify_detensorize
from .facade.evaluation.metrics import speed_metrics as speed_metrics
from .facade.keras.arguments import TFTrainingArguments as TFTrainingArguments
from .facade.keras.trainer import TFTrainer as TFTrainer
from .facade.search.hyperparameters import default_compute_objective as default_compute_objective
from .interception import install as install
from .interception import load_ipython_extension as load_ipython_extension
from .interception import uninstall as uninstall
from .interception import unload_ipython_extension as unload_ipython_extension
from .lightning_modules import Adafactor as Adafactor
from .lightning_modules import AutoTokenizer as AutoTokenizer
from .lightning_modules import BatchEncoding as BatchEncoding
from .lightning_modules import BatchMetrics as BatchMetrics
from .lightning_modules import CausalLMModule as CausalLMModule
from .lightning_modules import DataCollatorForLanguageModeling as DataCollatorForLanguageModeling
from .lightning_modules import DataCollatorForMultipleChoice as DataCollatorForMultipleChoice
from .lightning_modules import (
    DataCollatorForPermutationLanguageModeling as DataCollatorForPermutationLanguageModeling,
)
from .lightning_modules import DataCollatorForSeq2Seq as DataCollatorForSeq2Seq
from .lightning_modules import DataCollatorForSOP as DataCollatorForSOP
from .lightning_modules import (
    DataCollatorForTokenClassification as DataCollatorForTokenClassification,
)
from .lightning_modules import DataCollatorForWholeWordMask as DataCollatorForWholeWordMask
from .lightning_modules import DataCollatorWithFlattening as DataCollatorWithFlattening
from .lightning_modules import DataCollatorWithPacking as DataCollatorWithPacking
from .lightning_modules import DataCollatorWithPadding as DataCollatorWithPadding
from .lightning_modules import DataModule as DataModule
from .lightning_modules import DebugUnderflowOverflow as DebugUnderflowOverflow
from .lightning_modules import DefaultDataCollator as DefaultDataCollator
from .lightning_modules import FolderCheckpoint as FolderCheckpoint
from .lightning_modules import LossModule as LossModule
from .lightning_modules import OptimizerConfig as OptimizerConfig
from .lightning_modules import OptimizerNames as OptimizerNames
from .lightning_modules import OptunaPruningCallback as OptunaPruningCallback
from .lightning_modules import PreTrainedTokenizerFast as PreTrainedTokenizerFast
from .lightning_modules import ScheduleConfig as ScheduleConfig
from .lightning_modules import SchedulerType as SchedulerType
from .lightning_modules import Seq2SeqModule as Seq2SeqModule
from .lightning_modules import SequenceClassificationModule as SequenceClassificationModule
from .lightning_modules import TokenClassificationModule as TokenClassificationModule
from .lightning_modules import TokenLoss as TokenLoss
from .lightning_modules import TokenPerplexity as TokenPerplexity
from .lightning_modules import default_data_collator as default_data_collator
from .lightning_modules import enable_full_determinism as enable_full_determinism
from .lightning_modules import get_adafactor_schedule as get_adafactor_schedule
from .lightning_modules import get_constant_schedule as get_constant_schedule
from .lightning_modules import (
    get_constant_schedule_with_warmup as get_constant_schedule_with_warmup,
)
from .lightning_modules import get_cosine_schedule_with_warmup as get_cosine_schedule_with_warmup
from .lightning_modules import (
    get_cosine_with_hard_restarts_schedule_with_warmup as get_cosine_with_hard_restarts_schedule_with_warmup,
)
from .lightning_modules import get_inverse_sqrt_schedule as get_inverse_sqrt_schedule
from .lightning_modules import get_last_checkpoint as get_last_checkpoint
from .lightning_modules import get_linear_schedule_with_warmup as get_linear_schedule_with_warmup
from .lightning_modules import (
    get_polynomial_decay_schedule_with_warmup as get_polynomial_decay_schedule_with_warmup,
)
from .lightning_modules import get_scheduler as get_scheduler
from .lightning_modules import get_wsd_schedule as get_wsd_schedule
from .lightning_modules import set_seed as set_seed
from .lightning_modules.data.collators import DataCollator as DataCollator
from .lightning_modules.data.collators import (
    torch_default_data_collator as torch_default_data_collator,
)
from .lightning_modules.data.lengths import has_length as has_length
from .lightning_modules.optim.schedules import (
    get_cosine_with_min_lr_schedule_with_warmup as get_cosine_with_min_lr_schedule_with_warmup,
)
from .lightning_modules.optim.schedules import (
    get_cosine_with_min_lr_schedule_with_warmup_lr_rate as get_cosine_with_min_lr_schedule_with_warmup_lr_rate,
)
from .lightning_modules.optim.schedules import (
    get_reduce_on_plateau_schedule as get_reduce_on_plateau_schedule,
)

__version__: str
