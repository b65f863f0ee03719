"""Which test shows each promise of README and differences.md, for each kind of user code that meets
it.

A row is named by the beginning of its left cell. Of a kind that is not named, `others` says why it
cannot differ.
"""

from dataclasses import dataclass

KINDS = (
    "head of transformers",
    "own module",
    "own module with kwargs",
    "override",
    "adapter",
    "two processes",
    "stream",
    "Lightning module",
    "accumulated window",
    "half precision",
)

ROWS = "tests/promises/test_rows.py::"
SAID = "tests/facade/trainer/test_what_a_run_says.py::"
USER_CODE = "tests/promises/test_user_code.py::test_window_is_one_batch"
BY_TWO = "tests/promises/test_user_code.py::test_window_is_one_batch_in_two_processes"
LIGHTNING = "tests/promises/test_lightning_accumulation.py::test_window_is_one_batch"
RESUMED = ROWS + "test_training_with_a_damaged_newest_checkpoint_ends_the_same"
RESUMED_DATA = "tests/facade/checkpointing/test_resume.py::test_from_every_place_it_ends_the_same"
NO_QUESTIONS = ROWS + "test_steps_between_two_logs_ask_nothing_of_the_device"
NOT_NUMBERS = ROWS + "test_losses_that_are_not_numbers_are_reported"
KILLED = "tests/faults/test_kills.py::test_killed_training_ends_the_same"
STOPPED_BY_TWO = (
    "tests/ddp/test_interrupted.py::test_interruption_of_one_rank_stops_both_and_resumes_exactly"
)
SMALLER = ROWS + "test_smaller_batches_keep_the_step"
SCALED = ROWS + "test_fp16_on_the_cpu_is_scaled"
ARRAYS = "tests/lightning_modules/evaluation/test_preallocated_arrays.py::"
FOLDER_IO = "tests/lightning_modules/checkpoints/test_folder_io.py::"
SAVED = "tests/facade/checkpointing/test_saved_by_class.py::"
ADAPTERS = "tests/parity/test_adapters.py::"
LOADERS = "tests/lightning_modules/data/test_loaders.py::"
FAILED = "tests/ddp/test_faults.py::"
IGNORED = "tests/parity/test_ignored_by_the_reference.py::"
OUTSIDE = "tests/facade/trainer/test_external_parameters.py::"
OUTSIDE_OF_KINDS = OUTSIDE + "test_weights_outside_the_model_are_trained_as_if_inside_of_every_kind"
ALL_EVALUATED = (
    "tests/ddp/test_evaluation.py::test_evaluation_in_training_is_of_one_model_for_all_kinds"
)
UNFROZEN = (
    "tests/ddp/test_callbacks.py::test_layer_that_a_callback_unfreezes_stays_equal_on_both_ranks"
)
WITHOUT_WRAPPER = (
    "tests/ddp/test_callbacks.py::"
    "test_loss_that_calls_the_model_without_ddp_gets_averaged_gradients"
)
PASSES = (
    "tests/deepspeed_runs/test_deepspeed_runs.py::"
    "test_deepspeed_adds_the_gradients_of_several_passes"
)
OBJECTS = "tests/parity/test_user_objects.py::"

ONE_BATCH = {
    "head of transformers": "tests/promises/test_walk.py::test_window_is_one_batch",
    "own module": USER_CODE,
    "own module with kwargs": USER_CODE,
    "override": USER_CODE,
    "adapter": USER_CODE,
    "two processes": BY_TWO,
    "stream": USER_CODE,
    "Lightning module": LIGHTNING,
    "accumulated window": (
        "tests/parity/test_accumulation.py::test_accumulation_of_4_equals_a_batch_of_4_times_the_size"
    ),
    "half precision": USER_CODE,
}

SAME_NUMBERS = {
    "head of transformers": RESUMED,
    "own module": RESUMED_DATA,
    "override": RESUMED,
    "adapter": ADAPTERS + "test_adapters_are_resumed",
    "two processes": KILLED,
    "stream": RESUMED_DATA,
    "Lightning module": "tests/ddp/test_modules.py::test_module_resumption_is_exact",
    "accumulated window": RESUMED,
    "half precision": RESUMED,
}

DAMAGED = {
    "head of transformers": RESUMED,
    "own module": RESUMED,
    "override": RESUMED,
    "adapter": RESUMED,
    "stream": RESUMED,
    "Lightning module": FOLDER_IO + "test_folder_io_damaged_folder_raises_before_loading",
    "accumulated window": RESUMED,
    "half precision": RESUMED,
}

ASKS_NOTHING = {
    "head of transformers": NO_QUESTIONS,
    "own module": NO_QUESTIONS,
    "own module with kwargs": NO_QUESTIONS,
    "override": NO_QUESTIONS,
    "adapter": NO_QUESTIONS,
    "stream": NO_QUESTIONS,
    "accumulated window": NO_QUESTIONS,
    "half precision": NO_QUESTIONS,
}

FAILING = {
    "own module": FAILED + "test_failed_rank_ends_the_others_with_its_error",
    "two processes": FAILED + "test_torchrun_ends_the_others_and_shows_the_cause",
    "stream": FAILED + "test_streams_of_other_lengths_end_together",
}


@dataclass(frozen=True)
class Promise:
    """A row of a table.

    Attributes:
        tests: kind of user code -> the test that shows it, as a node id without parameters.
        others: why the promise does not depend on the other kinds; empty where all are tested.
    """

    tests: dict[str, str]
    others: str = ""


PROMISES: dict[str, Promise] = {
    "gradients under accumulation are too small": Promise(ONE_BATCH),
    "losses that are means over a micro-batch": Promise(ONE_BATCH),
    "the loss that balances the experts": Promise(
        {
            "own module": USER_CODE,
            "accumulated window": ONE_BATCH["accumulated window"],
            "two processes": BY_TWO,
            "head of transformers": ONE_BATCH["accumulated window"],
        },
        others="only a model that adds this loss itself has one",
    ),
    "gradients of trained parameters outside the model": Promise(
        {
            "own module": OUTSIDE + "test_weights_outside_the_model_are_trained_as_if_inside",
            "override": OUTSIDE + "test_weights_outside_the_model_are_trained_as_if_inside",
            "accumulated window": (
                OUTSIDE + "test_weights_outside_the_model_are_trained_as_if_inside"
            ),
            "two processes": (
                "tests/ddp/test_external_parameters.py::test_weights_of_a_loss_are_those_of_one_process"
            ),
            "head of transformers": OUTSIDE_OF_KINDS,
            "adapter": OUTSIDE_OF_KINDS,
            "stream": OUTSIDE_OF_KINDS,
            "half precision": OUTSIDE_OF_KINDS,
        },
        others="Other modules differ in what forward takes; plain Lightning optimizes modules only.",
    ),
    "batches that are left over when a stream ends inside": Promise(
        {"stream": USER_CODE, "two processes": BY_TWO, "Lightning module": LIGHTNING},
        others="Losses are weighed after the window is read.",
    ),
    "the state of an optimizer is read and loaded once": Promise(
        {"own module": OBJECTS + "test_user_objects_are_called_as_in_the_reference"},
        others="Neither model nor data take part in it.",
    ),
    "`model.to(device)` is called when": Promise(
        {"own module": OBJECTS + "test_user_objects_are_called_as_in_the_reference"},
        others="The calls are those of the Trainer, whatever it trains.",
    ),
    "`num_parameters` of a transformers model": Promise(
        {"head of transformers": OBJECTS + "test_user_objects_are_called_as_in_the_reference"},
        others="Other models have no such method.",
    ),
    "with `group_by_length` the column": Promise(
        {
            "own module": IGNORED
            + "test_length_column_that_the_model_does_not_take_groups_samples_of_ours"
        },
        others="Lengths are those of the dataset, and streams have none.",
    ),
    "after a training, a loader of your own": Promise(
        {
            "override": IGNORED
            + "test_own_evaluation_loader_keeps_its_rows_after_a_training_in_ours"
        },
        others="Only overrides return such loaders, whatever is evaluated.",
    ),
    "`trainer.model = other` after construction": Promise(
        {"own module": IGNORED + "test_model_that_is_set_after_construction_is_trained_by_ours"},
        others="The attribute is read, whatever it holds.",
    ),
    "a second `train` after the model was replaced": Promise(
        {
            "own module": IGNORED
            + "test_model_that_is_replaced_between_trainings_is_trained_by_ours",
            "override": (
                "tests/facade/trainer/test_optimizers.py::"
                "test_optimizer_of_a_training_is_created_again_for_another_model"
            ),
        },
        others="The parameters of the optimizer are compared with the model's, whatever it is.",
    ),
    "a second `train` after `resize_token_embeddings`": Promise(
        {
            "own module": (
                "tests/facade/trainer/test_optimizers.py::"
                "test_optimizer_of_a_training_is_created_again_for_resized_weights"
            )
        },
        others="Shapes of parameters and averages are compared, whatever the model is.",
    ),
    "a module of your own whose `config` is a dict": Promise(
        {
            "own module": (
                "tests/facade/trainer/test_models.py::test_config_that_takes_no_attributes_is_kept"
            )
        },
        others="The configs of transformers take attributes.",
    ),
    "`trainer.args.per_device_train_batch_size`, `data_seed`": Promise(
        {"own module": IGNORED + "test_argument_that_is_set_after_construction_applies_in_ours"},
        others="The arguments are read when a training begins, whatever it trains.",
    ),
    "an override of `create_optimizer_and_scheduler`": Promise(
        {"override": IGNORED + "test_override_of_create_optimizer_and_scheduler_is_called_by_ours"},
        others="It is a method of the Trainer.",
    ),
    "with `dataloader_persistent_workers` the `set_epoch`": Promise(
        {
            "own module": LOADERS + "test_set_epoch_reaches_workers",
            "two processes": LOADERS + "test_set_epoch_reaches_workers",
            "stream": LOADERS + "test_set_epoch_reaches_workers",
        },
        others="Workers read data before a model gets it.",
    ),
    "with `group_by_length` every sample is read": Promise(
        {"own module": OBJECTS + "test_lengths_of_datasets_are_asked_as_in_the_reference"},
        others="Lengths are those of the dataset, and streams have none.",
    ),
    "an error in a training has the frames of all loops": Promise(
        {
            "own module": SAID + "test_traceback_of_an_own_error_has_no_loop_frames",
            "two processes": FAILED + "test_failed_rank_ends_the_others_with_its_error",
        },
        others="The frames that are left out are those of the loops, whatever they call.",
    ),
    "a label that is out of range ends in an assert": Promise(
        {
            "head of transformers": "tests/facade/trainer/test_wrong_kinds.py::test_labels_out_of_range"
        },
        others="Only heads of transformers tell their number of classes.",
    ),
    "checkpoints are written in place": Promise(
        {
            "own module": KILLED,
            "two processes": KILLED,
            "Lightning module": (
                "tests/lightning_modules/checkpoints/test_folder_checkpoint.py"
                "::test_folders_are_written_and_rotated_with_no_plugin"
            ),
            "override": (
                "tests/facade/checkpointing/test_background_saving.py::test_background_saving_override_finds_the_files"
            ),
        },
        others="All write into the one folder that is renamed.",
    ),
    "a damaged newest checkpoint makes": Promise(
        DAMAGED, others="Verification reads files, whatever is in them."
    ),
    "evaluation copies all earlier predictions": Promise(
        {
            "own module": ARRAYS + "test_preallocated_array_writes_each_value_once",
            "half precision": ARRAYS + "test_precisions_that_differ",
            "two processes": (
                "tests/ddp/test_evaluation.py::test_predictions_are_all_there_once_and_in_order"
            ),
        },
        others="Predictions are arrays by then, whatever computed them.",
    ),
    "in streams, in one process or with `dispatch_batches=False`": Promise(
        {"stream": IGNORED + "test_last_batch_of_a_stream_counts_its_rows_in_the_loss_of_ours"},
        others="Loaders of datasets with a length know how many rows their last batch has.",
    ),
    "metrics need all predictions in memory": Promise(
        {
            "own module": (
                "tests/facade/evaluation/test_live_metrics.py::test_predictions_are_not_kept"
            ),
            "two processes": "tests/ddp/test_evaluation.py::test_torchmetrics_are_exact",
            "Lightning module": "tests/ddp/test_modules.py::test_module_evaluates_each_sample_once",
            "half precision": (
                "tests/lightning_modules/evaluation/test_token_metrics.py"
                "::test_half_precision_is_summed_in_full"
            ),
        },
        others="Predictions are tensors by then, whatever computed them.",
    ),
    "NaN losses hidden by the logging filter": Promise(
        {
            "head of transformers": NOT_NUMBERS,
            "own module": NOT_NUMBERS,
            "override": NOT_NUMBERS,
            "adapter": NOT_NUMBERS,
            "stream": NOT_NUMBERS,
            "accumulated window": NOT_NUMBERS,
            "half precision": NOT_NUMBERS,
        },
        others=(
            "The losses of a step are counted after they are weighed; Lightning has no such filter."
        ),
    ),
    "a host synchronisation at every step": Promise(
        ASKS_NOTHING,
        others=(
            "The exchange between processes and Lightning's loop are torch's and Lightning's own."
        ),
    ),
    "models spread by `DistributedConfig`": Promise(
        {
            "two processes": (
                "tests/ddp/test_spread_models.py::test_spread_models_train_as_in_one_process_and_are_saved_whole"
            ),
        },
        others="Such a model is a head of transformers in several processes.",
    ),
    "errors come one at a time": Promise(
        {
            "own module": (
                "tests/facade/trainer/test_construction.py::test_construction_reports_all_wrong_values_at_once"
            ),
            "two processes": (
                "tests/facade/arguments/test_bad_input_together.py"
                "::test_right_arguments_wait_for_the_other_process"
            ),
        },
        others="Arguments are checked before the model is used.",
    ),
    "a `StopIteration` in a collator or dataset": Promise(
        {
            "own module": (
                "tests/facade/trainer/test_errors_of_user_code.py::test_training_stop_iteration_is_an_error"
            ),
            "override": (
                "tests/facade/trainer/test_errors_of_user_code.py::test_training_stop_iteration_is_an_error"
            ),
            "stream": (
                "tests/facade/trainer/test_errors_of_user_code.py::test_worker_stop_iteration_is_an_error"
            ),
            "Lightning module": (
                "tests/lightning_modules/tasks/test_stop_iteration.py"
                "::test_loss_module_stop_iteration_of_the_model_is_an_error"
            ),
        },
        others="An error of one call of user code, before it is of any kind of model.",
    ),
    "tied weights of a plain module cannot be saved": Promise(
        {
            "own module": "tests/parity/test_models.py::test_tied_weights_stay_tied",
            "two processes": "tests/ddp/test_sharding.py::test_saved_models_are_whole",
            "accumulated window": RESUMED,
        },
        others="Heads and adapters tie and save by themselves.",
    ),
    "resuming gives other numbers if": Promise(
        SAME_NUMBERS, others="Arguments of `forward` do not reach a checkpoint."
    ),
    "resuming changes the numbers if": Promise(
        SAME_NUMBERS, others="Arguments of `forward` do not reach a checkpoint."
    ),
    "a tokenizer without BOS erases": Promise(
        {
            "head of transformers": (
                "tests/lightning_modules/models/test_special_tokens.py"
                "::test_special_tokens_missing_in_the_tokenizer_are_kept"
            ),
        },
        others="Other models have no special tokens.",
    ),
    "an adapter that `model.add_adapter` put": Promise(
        {"adapter": ADAPTERS + "test_adapters_are_resumed"}, others="Adapters only."
    ),
    "weights that have other names in files": Promise(
        {
            "head of transformers": (
                "tests/facade/checkpointing/test_experts.py"
                "::test_experts_are_resumed_in_a_model_with_other_weights"
            ),
        },
        others="Only models of transformers have other names in files.",
    ),
    "weights that an overridden `_save` leaves out": Promise(
        {
            "override": (
                SAVED + "test_trained_weights_left_out_are_warned_of_and_an_error_when_loaded"
            )
        },
        others="Only an override leaves weights out.",
    ),
    "of several adapters of PEFT": Promise(
        {
            "adapter": ADAPTERS + "test_adapters_best_of_all_is_loaded_at_the_end",
            "two processes": ("tests/ddp/test_adapters.py::test_adapters_resumption_is_exact"),
        },
        others="Adapters only.",
    ),
    "p-tuning, prefix tuning with a projection": Promise(
        {
            "adapter": (
                ADAPTERS + "test_trained_weights_that_peft_leaves_out_are_resumed_and_the_best"
            )
        },
        others="Adapters only.",
    ),
    "training waits while a checkpoint is written": Promise(
        {
            "own module": (
                "tests/facade/checkpointing/test_background_saving.py"
                "::test_background_saving_completes_before_train_returns"
            ),
            "override": (
                "tests/facade/checkpointing/test_background_saving.py::test_background_saving_override_finds_the_files"
            ),
            "two processes": KILLED,
        },
        others="Weights are copied by name, whatever they belong to.",
    ),
    "Ctrl-C and SIGTERM lose": Promise(
        {
            "own module": (
                "tests/facade/checkpointing/test_signals.py::test_signal_resumption_is_exact"
            ),
            "two processes": STOPPED_BY_TWO,
        },
        others=(
            "A signal is answered between two steps; what is in them is in the row of resuming."
        ),
    ),
    "`auto_find_batch_size` changes": Promise(
        {
            "head of transformers": SMALLER,
            "own module": SMALLER,
            "override": SMALLER,
            "adapter": SMALLER,
            "stream": SMALLER,
            "accumulated window": SMALLER,
            "two processes": (
                "tests/ddp/test_interrupted.py::test_out_of_memory_on_one_rank_restarts_both"
            ),
        },
        others=(
            "The smaller batch is a window, and windows are in the first row; plain Lightning has "
            "no such argument."
        ),
    ),
    "a byte of a checkpoint that changed": Promise(
        {
            "own module": (
                "tests/faults/test_flips.py::test_flipped_bit_resumes_from_previous_checkpoint"
            ),
            "Lightning module": (FOLDER_IO + "test_folder_io_damaged_folder_raises_before_loading"),
        },
        others="Checksums are of files, whatever is in them.",
    ),
    "a `ReduceLROnPlateau` passed by": Promise(
        {
            "own module": (
                "tests/facade/evaluation/test_best_metric.py"
                "::test_best_metric_plateau_object_follows_the_loss_by_default"
            ),
        },
        others="The schedule reads metrics of an evaluation.",
    ),
    "fp16 on the CPU silently trains": Promise(
        {
            "head of transformers": SCALED,
            "own module": SCALED,
            "override": SCALED,
            "adapter": SCALED,
            "stream": SCALED,
            "accumulated window": SCALED,
            "half precision": SCALED,
            "two processes": (
                "tests/ddp/test_two_processes.py::test_ddp_ranks_skip_the_same_steps"
            ),
        },
        others=(
            "A keyword of `forward` changes no precision; plain Lightning takes a plugin of its "
            "own."
        ),
    ),
    "`accelerate config` asks": Promise(
        {
            "two processes": (
                "tests/facade/arguments/test_launched.py::test_launched_fsdp_settings_equal_accelerate"
            )
        },
        others="Read before there is a model.",
    ),
    "a misspelt setting of FSDP": Promise(
        {
            "own module": (
                "tests/facade/arguments/test_arguments_validation.py::test_misspelt_settings_of_fsdp_are_refused_without_fsdp_too"
            ),
            "two processes": (
                "tests/facade/arguments/test_launched.py::test_misspelt_values_of_fsdp_are_refused_by_option"
            ),
        },
        others="Read before there is a model.",
    ),
    "`full_determinism` gives matrix products": Promise(
        {
            "own module": (
                "tests/lightning_modules/common/test_seeding.py::test_full_determinism_equals_reference"
            )
        },
        others="A variable of the process.",
    ),
    "a batch that a worker cannot pickle": Promise(
        {"own module": LOADERS + "test_loader_batch_that_a_worker_cannot_send_raises"},
        others="An error before the batch reaches a model.",
    ),
    "`control.should_save = True` or another flag": Promise(
        {"two processes": FAILED + "test_decision_of_one_rank_names_switch_and_callback"},
        others="One process decides for itself.",
    ),
    "`torchrun` does not show why": Promise(
        FAILING, others="Processes report errors, whatever the model."
    ),
    "two trainings in one `output_dir`": Promise(
        {
            "own module": (
                "tests/lightning_modules/checkpoints/test_owners.py"
                "::test_owner_refuses_a_second_process_and_names_the_first"
            ),
        },
        others="Refused before anything is trained.",
    ),
    "a job restarted by `torchrun`": Promise(
        {"two processes": FAILED + "test_torchrun_starts_it_again_until_it_is_done"},
        others="What is resumed is in the row of resuming.",
    ),
    "`Seq2SeqTrainer` repeats the samples": Promise(
        {
            "two processes": (
                "tests/ddp/test_seq2seq.py::test_seq2seq_reference_generates_some_samples_twice"
            )
        },
        others="One process has no samples to fill up a round.",
    ),
    "an evaluation with `even_batches=False`": Promise(
        {"two processes": FAILED + "test_evaluations_without_even_batches_give_every_sample_once"},
        others="One process has one round.",
    ),
    "the `DistributedDataParallel` of a training": Promise(
        {
            "two processes": (
                "tests/promises/test_user_code.py::test_user_code_wrappers_end_with_the_training"
            )
        },
        others="One process has no wrapper.",
    ),
    "`evaluate()` before `train()` leaves DDP out": Promise(
        {"two processes": BY_TWO},
        others="One process has no wrapper.",
    ),
    "a loss that calls `self.model`, `accelerator.unwrap_model(model)` or a part of it": Promise(
        {
            "override": WITHOUT_WRAPPER,
            "own module": WITHOUT_WRAPPER,
            "two processes": WITHOUT_WRAPPER,
            "accumulated window": WITHOUT_WRAPPER,
        },
        others="The wrapper of DDP is the same, and one process has none.",
    ),
    "under DeepSpeed, a step with several backward passes in stages 1 and 2": Promise(
        {
            "override": PASSES,
            "own module": PASSES,
            "two processes": PASSES,
            "accumulated window": PASSES,
        },
        others="The engine's way of adding gradients does not depend on the model.",
    ),
    "parameters that a callback unfreezes during a training": Promise(
        {
            "own module": UNFROZEN,
            "two processes": UNFROZEN,
            "accumulated window": UNFROZEN,
        },
        others="The wrapper of DDP is the same, and one process has none.",
    ),
    "with layers such as BatchNorm each process evaluates": Promise(
        {
            "own module": (
                "tests/ddp/test_evaluation.py::test_evaluation_in_training_is_of_the_saved_model"
            ),
            "two processes": (
                "tests/ddp/test_evaluation.py::test_evaluation_in_training_is_of_the_saved_model"
            ),
            "head of transformers": ALL_EVALUATED,
            "override": ALL_EVALUATED,
            "adapter": ALL_EVALUATED,
            "accumulated window": ALL_EVALUATED,
            "stream": ALL_EVALUATED,
            "half precision": ALL_EVALUATED,
        },
        others="A plain lightning.Trainer validates by its own loop; kwargs change no buffer.",
    ),
    "pruning a trial under DDP hangs": Promise(
        {
            "two processes": (
                "tests/ddp/test_search.py"
                "::test_half_of_the_trials_are_pruned_and_both_processes_stop_at_the_same_steps"
            ),
        },
        others="Trials are pruned by their metrics.",
    ),
    "of results with other rows than samples": Promise(
        {
            "own module": (
                "tests/facade/evaluation/test_predictions.py"
                "::test_labels_of_the_last_batch_keep_all_boxes"
            ),
            "two processes": (
                "tests/ddp/test_evaluation.py::test_predictions_with_rows_of_tokens_are_gathered"
            ),
        },
        others="A single process gathers no results, of whatever model.",
    ),
    "labels that are lists of dicts": Promise(
        {
            "own module": (
                "tests/facade/evaluation/test_predictions.py"
                "::test_labels_of_the_last_batch_keep_all_boxes"
            ),
            "two processes": (
                "tests/ddp/test_library_code.py::test_labels_with_a_row_for_each_box_are_gathered"
            ),
        },
        others="Labels come from the collator, whatever model they are for.",
    ),
    "a sampler of an evaluation": Promise(
        {
            "override": (
                "tests/facade/evaluation/test_predictions.py"
                "::test_samples_of_a_sampler_are_all_predicted"
            ),
        },
        others="Only an override chooses the sampler of an evaluation.",
    ),
    "with accumulation, `accelerator.gather_for_metrics` in a loss": Promise(
        {
            "two processes": (
                "tests/ddp/test_library_code.py"
                "::test_gather_for_metrics_in_a_training_has_the_results_of_transformers"
            )
        },
        others="The padded rows are those of the loader, whatever the loss is of.",
    ),
    "a search in the `output_dir` of another one": Promise(
        {
            "own module": (
                "tests/facade/search/test_search.py"
                "::test_search_in_a_shared_folder_leaves_other_trials_alone"
            )
        },
        others="Folders are those of trials, whatever they train.",
    ),
    "a trial whose loss is `-inf`": Promise(
        {
            "own module": (
                "tests/facade/search/test_bad_input.py::test_search_impossible_value_fails_the_trial"
            )
        },
        others="Trials fail by their metrics.",
    ),
}
