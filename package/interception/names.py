"""The table of served names: modules of transformers, their names, and where our objects are.

To serve another name, add it to its module in `_SERVED`, or in `_FURTHER_NAMES` of
`stand_in/names.py` if it is needed only when transformers is not installed. If `transformers`
itself exports the name, add it to the `_TOP_LEVEL` of the same file, too. All other names of a
served module remain the library's own.
"""

from __future__ import annotations

from .targets import targets

VERSION = "5.3.0"
"""Version of transformers that has these names."""

_CALLBACKS = (
    "CallbackHandler DefaultFlowCallback EarlyStoppingCallback ExportableState PrinterCallback "
    "ProgressCallback TrainerCallback TrainerControl TrainerState"
)
_COLLATORS = "DataCollatorWithPadding default_data_collator"
_STRATEGIES = "HubStrategy IntervalStrategy SaveStrategy SchedulerType"
_FILES = ".lightning_modules.common.file_names"
_ENUMS = ".facade.arguments.enums"

# For each module of transformers, the modules with our objects, each with the names that it
# provides in the form that `targets` reads.
_SERVED: dict[str, dict[str, str]] = {
    "trainer": {
        ".facade": (
            "Trainer TrainingArguments EvalPrediction EvalLoopOutput PredictionOutput TrainOutput"
        ),
        ".callbacks": _CALLBACKS,
        _ENUMS: "HPSearchBackend HubStrategy OptimizerNames ParallelMode SaveStrategy",
        _FILES: (
            "OPTIMIZER_NAME OPTIMIZER_NAME_BIN PREFIX_CHECKPOINT_DIR SCALER_NAME SCHEDULER_NAME "
            "TRAINER_STATE_NAME TRAINING_ARGS_NAME"
        ),
        ".lightning_modules": "enable_full_determinism get_last_checkpoint get_scheduler set_seed",
        ".lightning_modules.optim.groups": "ALL_LAYERNORM_LAYERS",
    },
    "trainer_seq2seq": {".facade": "Seq2SeqTrainer Trainer"},
    "trainer_tf": {
        ".facade.keras.trainer": "TFTrainer",
        ".facade.keras.arguments": "TFTrainingArguments",
    },
    "training_args": {
        ".facade": "ParallelMode TrainingArguments",
        ".facade.arguments.parallelism": "ParallelismConfig",
        ".facade.arguments.accelerator": "AcceleratorConfig",
        _ENUMS: f"DebugOption FSDPOption OptimizerNames {_STRATEGIES}",
    },
    "training_args_seq2seq": {".facade": "Seq2SeqTrainingArguments TrainingArguments"},
    "training_args_tf": {".facade.keras.arguments": "TFTrainingArguments"},
    "trainer_callback": {
        ".callbacks": _CALLBACKS,
        _ENUMS: "IntervalStrategy SaveStrategy",
        ".facade": "TrainingArguments",
        ".lightning_modules.data.lengths": "has_length",
    },
    "trainer_utils": {
        ".facade": "EvalLoopOutput EvalPrediction PredictionOutput TrainOutput",
        _ENUMS: f"FSDPOption HPSearchBackend {_STRATEGIES}",
        ".lightning_modules": (
            "RemoveColumnsCollator enable_full_determinism get_last_checkpoint set_seed"
        ),
        ".lightning_modules.common.seeding": "seed_worker",
        ".lightning_modules.data.lengths": "has_length",
        ".facade.evaluation.metrics": "denumpify_detensorize speed_metrics",
        _FILES: "PREFIX_CHECKPOINT_DIR",
        ".facade.compat.checkpoints": "load_sharded_checkpoint",
        ".lightning_modules.checkpoints": "rotate_checkpoints sort_checkpoints",
        ".facade.search.hyperparameters": (
            "BestRun default_compute_objective default_hp_space_optuna "
            "default_hp_space_ray default_hp_space_wandb"
        ),
        ".lightning_modules.models.wrappers": "unwrap_peft_model=base_of_adapter",
        ".lightning_modules.models.special_tokens": "align_special_tokens",
        ".facade.compat.processes": "is_main_process",
    },
    "trainer_pt_utils": {
        ".facade.arguments.accelerator": "AcceleratorConfig",
        ".facade.evaluation.metrics": "metrics_format",
        ".facade.trainer": (
            "log_metrics=Trainer.log_metrics save_metrics=Trainer.save_metrics "
            "save_state=Trainer.save_state "
            "get_num_trainable_parameters=Trainer.get_num_trainable_parameters "
            "get_learning_rates=Trainer.get_learning_rates "
            "get_optimizer_group=Trainer.get_optimizer_group"
        ),
        ".lightning_modules": "LabelSmoother LengthGroupedSampler",
        ".lightning_modules.data.length_grouping": "get_length_grouped_indices",
        ".lightning_modules.common.nested": "find_batch_size nested_detach nested_numpify",
        ".facade.compat.processes": "torch_distributed_zero_first",
    },
    "trainer_optimizer": {
        _ENUMS: "OptimizerNames ParallelMode",
        ".lightning_modules": "Adafactor",
        ".lightning_modules.optim": "_parse_optim_args=parse_optimizer_args",
    },
    "trainer_jit_checkpoint": {
        ".callbacks": "JITCheckpointCallback TrainerCallback",
        ".callbacks.checkpoint_manager": "CheckpointManager",
        _FILES: "PREFIX_CHECKPOINT_DIR",
    },
    "hyperparameter_search": {
        _ENUMS: "HPSearchBackend",
        ".facade.search.hyperparameters": (
            "default_hp_space_optuna default_hp_space_ray default_hp_space_wandb"
        ),
    },
    "integrations.deepspeed": {
        ".facade.arguments.hf_deepspeed": (
            "HfDeepSpeedConfig HfTrainerDeepSpeedConfig deepspeed_config "
            "is_deepspeed_available "
            "is_deepspeed_zero3_enabled set_hf_deepspeed_config unset_hf_deepspeed_config"
        ),
    },
    "integrations.integration_utils": {
        ".callbacks": (
            "AzureMLCallback ClearMLCallback CodeCarbonCallback CometCallback DVCLiveCallback "
            "DagsHubCallback FlyteCallback MLflowCallback ProgressCallback SwanLabCallback "
            "TensorBoardCallback TrackioCallback TrainerCallback WandbCallback rewrite_logs "
            "get_available_reporting_integrations=available_reporting_integrations"
        ),
        ".callbacks.loggers.availability": (
            "is_azureml_available is_clearml_available is_codecarbon_available is_comet_available "
            "is_dagshub_available is_dvclive_available is_flyte_deck_standard_available "
            "is_flytekit_available is_mlflow_available is_swanlab_available "
            "is_tensorboard_available is_trackio_available is_wandb_available"
        ),
        _FILES: "PREFIX_CHECKPOINT_DIR",
        ".facade.search.hyperparameters": "BestRun",
        _ENUMS: "IntervalStrategy ParallelMode",
    },
    "optimization": {
        ".lightning_modules": (
            "Adafactor AdafactorSchedule get_adafactor_schedule get_constant_schedule "
            "get_constant_schedule_with_warmup get_cosine_schedule_with_warmup "
            "get_cosine_with_hard_restarts_schedule_with_warmup get_inverse_sqrt_schedule "
            "get_linear_schedule_with_warmup get_polynomial_decay_schedule_with_warmup "
            "get_wsd_schedule"
        ),
        ".lightning_modules.optim.schedules": (
            "get_cosine_with_min_lr_schedule_with_warmup "
            "get_cosine_with_min_lr_schedule_with_warmup_lr_rate "
            "get_reduce_on_plateau_schedule get_scheduler TYPE_TO_SCHEDULER_FUNCTION=SCHEDULES"
        ),
        _ENUMS: "SchedulerType",
    },
    # The collators that a Trainer chooses itself, because scripts compare with them.
    "data.data_collator": {".lightning_modules": _COLLATORS},
    "hf_argparser": {
        ".facade": "HfArg HfArgumentParser",
        ".facade.parser.options": "string_to_bool=to_bool",
    },
    "debug_utils": {
        _ENUMS: "DebugOption",
        ".lightning_modules": "DebugUnderflowOverflow",
    },
    "utils.notebook": {".callbacks": "NotebookProgressCallback"},
}

SERVED = {module: targets(names) for module, names in _SERVED.items()}
"""For each module of transformers its served names, with their targets.

Names of modules are relative to `transformers`: `trainer`, not `transformers.trainer`.
"""

_TOP_LEVEL = {
    "trainer": "Trainer",
    "trainer_seq2seq": "Seq2SeqTrainer",
    "trainer_tf": "TFTrainer",
    "training_args": "TrainingArguments",
    "training_args_seq2seq": "Seq2SeqTrainingArguments",
    "training_args_tf": "TFTrainingArguments",
    "trainer_callback": (
        "DefaultFlowCallback EarlyStoppingCallback PrinterCallback ProgressCallback "
        "TrainerCallback TrainerControl TrainerState"
    ),
    "trainer_pt_utils": "torch_distributed_zero_first",
    "trainer_utils": (
        "EvalPrediction IntervalStrategy SchedulerType enable_full_determinism set_seed"
    ),
    "optimization": (
        "Adafactor get_constant_schedule get_constant_schedule_with_warmup "
        "get_cosine_schedule_with_warmup get_cosine_with_hard_restarts_schedule_with_warmup "
        "get_inverse_sqrt_schedule get_linear_schedule_with_warmup "
        "get_polynomial_decay_schedule_with_warmup get_scheduler get_wsd_schedule"
    ),
    "data.data_collator": _COLLATORS,
    "hf_argparser": "HfArgumentParser",
    "debug_utils": "",
}
TOP_LEVEL: dict[str, str] = {}
"""Served names that `transformers` itself exports, each with the module that has it."""
for _module, _names in _TOP_LEVEL.items():
    TOP_LEVEL.update(dict.fromkeys(_names.split(), _module))
