# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from .callbacks import CallbackHandler as CallbackHandler
from .callbacks import DefaultFlowCallback as DefaultFlowCallback
from .callbacks import EarlyStoppingCallback as EarlyStoppingCallback
from .callbacks import ExportableState as ExportableState
from .callbacks import LossCurveCallback as LossCurveCallback
from .callbacks import PrinterCallback as PrinterCallback
from .callbacks import ProgressCallback as ProgressCallback
from .callbacks import TensorBoardCallback as TensorBoardCallback
from .callbacks import TrainerCallback as TrainerCallback
from .callbacks import TrainerControl as TrainerControl
from .callbacks import TrainerState as TrainerState
from .facade import EvalPrediction as EvalPrediction
from .facade import HfArg as HfArg
from .facade import HfArgumentParser as HfArgumentParser
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
from .lightning_modules import Adafactor as Adafactor
from .lightning_modules import BatchMetrics as BatchMetrics
from .lightning_modules import DataCollatorForSeq2Seq as DataCollatorForSeq2Seq
from .lightning_modules import DataCollatorWithPadding as DataCollatorWithPadding
from .lightning_modules import DebugUnderflowOverflow as DebugUnderflowOverflow
from .lightning_modules import DefaultDataCollator as DefaultDataCollator
from .lightning_modules import LossModule as LossModule
from .lightning_modules import OptimizerConfig as OptimizerConfig
from .lightning_modules import OptimizerNames as OptimizerNames
from .lightning_modules import ScheduleConfig as ScheduleConfig
from .lightning_modules import SchedulerType as SchedulerType
from .lightning_modules import TokenLoss as TokenLoss
from .lightning_modules import TokenPerplexity as TokenPerplexity
from .lightning_modules import default_data_collator as default_data_collator
from .lightning_modules import enable_full_determinism as enable_full_determinism
from .lightning_modules import get_adafactor_schedule as get_adafactor_schedule
from .lightning_modules import get_constant_schedule as get_constant_schedule
from .lightning_modules import get_constant_schedule_with_warmup as get_constant_schedule_with_warmup
from .lightning_modules import get_cosine_schedule_with_warmup as get_cosine_schedule_with_warmup
from .lightning_modules import (
    get_cosine_with_hard_restarts_schedule_with_warmup as get_cosine_with_hard_restarts_schedule_with_warmup,
)
from .lightning_modules import get_inverse_sqrt_schedule as get_inverse_sqrt_schedule
from .lightning_modules import get_last_checkpoint as get_last_checkpoint
from .lightning_modules import get_linear_schedule_with_warmup as get_linear_schedule_with_warmup
from .lightning_modules import get_polynomial_decay_schedule_with_warmup as get_polynomial_decay_schedule_with_warmup
from .lightning_modules import get_scheduler as get_scheduler
from .lightning_modules import get_wsd_schedule as get_wsd_schedule
from .lightning_modules import set_seed as set_seed

__version__: str
