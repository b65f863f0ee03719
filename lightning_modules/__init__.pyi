from .checkpoints import get_last_checkpoint as get_last_checkpoint
from .collators import DataCollatorWithPadding as DataCollatorWithPadding
from .collators import DefaultDataCollator as DefaultDataCollator
from .collators import RemoveColumnsCollator as RemoveColumnsCollator
from .collators import default_data_collator as default_data_collator
from .label_smoothing import LabelSmoother as LabelSmoother
from .lengths import LengthGroupedSampler as LengthGroupedSampler
from .loaders import EpochLoader as EpochLoader
from .loaders import build_loader as build_loader
from .loss_module import LossModule as LossModule
from .names import OptimizerNames as OptimizerNames
from .names import SchedulerType as SchedulerType
from .optimizers import OptimizerConfig as OptimizerConfig
from .optimizers import decay_parameter_names as decay_parameter_names
from .optimizers import parameter_groups as parameter_groups
from .samplers import IterableShard as IterableShard
from .samplers import SeedableRandomSampler as SeedableRandomSampler
from .samplers import ShardedBatchSampler as ShardedBatchSampler
from .schedules import ScheduleConfig as ScheduleConfig
from .schedules import get_constant_schedule as get_constant_schedule
from .schedules import get_constant_schedule_with_warmup as get_constant_schedule_with_warmup
from .schedules import get_cosine_schedule_with_warmup as get_cosine_schedule_with_warmup
from .schedules import (
    get_cosine_with_hard_restarts_schedule_with_warmup as get_cosine_with_hard_restarts_schedule_with_warmup,
)
from .schedules import get_inverse_sqrt_schedule as get_inverse_sqrt_schedule
from .schedules import get_linear_schedule_with_warmup as get_linear_schedule_with_warmup
from .schedules import get_polynomial_decay_schedule_with_warmup as get_polynomial_decay_schedule_with_warmup
from .schedules import get_scheduler as get_scheduler
from .schedules import get_wsd_schedule as get_wsd_schedule
from .seeding import enable_full_determinism as enable_full_determinism
from .seeding import set_seed as set_seed
