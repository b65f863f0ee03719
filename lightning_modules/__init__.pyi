from .checkpoints import FolderCheckpoint as FolderCheckpoint
from .checkpoints import FolderCheckpointIO as FolderCheckpointIO
from .checkpoints import get_last_checkpoint as get_last_checkpoint
from .common.enums import OptimizerNames as OptimizerNames
from .common.enums import SchedulerType as SchedulerType
from .common.seeding import enable_full_determinism as enable_full_determinism
from .common.seeding import set_seed as set_seed
from .data.batch_samplers import ShardedBatchSampler as ShardedBatchSampler
from .data.collators import DataCollatorForLanguageModeling as DataCollatorForLanguageModeling
from .data.collators import DataCollatorForMultipleChoice as DataCollatorForMultipleChoice
from .data.collators import (
    DataCollatorForPermutationLanguageModeling as DataCollatorForPermutationLanguageModeling,
)
from .data.collators import DataCollatorForSeq2Seq as DataCollatorForSeq2Seq
from .data.collators import DataCollatorForSOP as DataCollatorForSOP
from .data.collators import DataCollatorForTokenClassification as DataCollatorForTokenClassification
from .data.collators import DataCollatorForWholeWordMask as DataCollatorForWholeWordMask
from .data.collators import DataCollatorMixin as DataCollatorMixin
from .data.collators import DataCollatorWithFlattening as DataCollatorWithFlattening
from .data.collators import DataCollatorWithPacking as DataCollatorWithPacking
from .data.collators import DataCollatorWithPadding as DataCollatorWithPadding
from .data.collators import DefaultDataCollator as DefaultDataCollator
from .data.collators import RemoveColumnsCollator as RemoveColumnsCollator
from .data.collators import default_data_collator as default_data_collator
from .data.length_grouping import LengthGroupedSampler as LengthGroupedSampler
from .data.loaders import EpochLoader as EpochLoader
from .data.loaders import build_loader as build_loader
from .data.samplers import IterableShard as IterableShard
from .data.samplers import SeedableRandomSampler as SeedableRandomSampler
from .evaluation.metrics import BatchMetrics as BatchMetrics
from .evaluation.token_metrics import TokenLoss as TokenLoss
from .evaluation.token_metrics import TokenPerplexity as TokenPerplexity
from .models.activation_checkpointing import checkpoint_activations as checkpoint_activations
from .models.underflow_overflow import DebugUnderflowOverflow as DebugUnderflowOverflow
from .optim import Adafactor as Adafactor
from .optim import AdafactorSchedule as AdafactorSchedule
from .optim import OptimizerConfig as OptimizerConfig
from .optim import decay_parameter_names as decay_parameter_names
from .optim import get_adafactor_schedule as get_adafactor_schedule
from .optim import parameter_groups as parameter_groups
from .optim.schedules import ScheduleConfig as ScheduleConfig
from .optim.schedules import get_constant_schedule as get_constant_schedule
from .optim.schedules import get_constant_schedule_with_warmup as get_constant_schedule_with_warmup
from .optim.schedules import get_cosine_schedule_with_warmup as get_cosine_schedule_with_warmup
from .optim.schedules import (
    get_cosine_with_hard_restarts_schedule_with_warmup as get_cosine_with_hard_restarts_schedule_with_warmup,
)
from .optim.schedules import get_inverse_sqrt_schedule as get_inverse_sqrt_schedule
from .optim.schedules import get_linear_schedule_with_warmup as get_linear_schedule_with_warmup
from .optim.schedules import (
    get_polynomial_decay_schedule_with_warmup as get_polynomial_decay_schedule_with_warmup,
)
from .optim.schedules import get_scheduler as get_scheduler
from .optim.schedules import get_wsd_schedule as get_wsd_schedule
from .search.shared_study import OptunaPruningCallback as OptunaPruningCallback
from .search.shared_study import optimize_together as optimize_together
from .tasks.data_module import DataModule as DataModule
from .tasks.loss_module import LossModule as LossModule
from .tasks.resuming import ResumableModule as ResumableModule
from .tasks.resuming import ResumingCallback as ResumingCallback
from .tasks.seq2seq_module import Seq2SeqModule as Seq2SeqModule
from .tasks.task_modules import CausalLMModule as CausalLMModule
from .tasks.task_modules import SequenceClassificationModule as SequenceClassificationModule
from .tasks.task_modules import TaskModule as TaskModule
from .tasks.task_modules import TokenClassificationModule as TokenClassificationModule
from .tokenization import AutoTokenizer as AutoTokenizer
from .tokenization import BatchEncoding as BatchEncoding
from .tokenization import PreTrainedTokenizerBase as PreTrainedTokenizerBase
from .tokenization import PreTrainedTokenizerFast as PreTrainedTokenizerFast
from .training.label_smoothing import LabelSmoother as LabelSmoother
