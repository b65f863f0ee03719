"""Every training argument changes what it is documented to change; the list is frozen here."""

import copy
import dataclasses

import of_evaluation
import of_execution
import of_generation
import of_hub
import of_reporting
import of_run
import of_saving
import of_surroundings
import pytest
import transformers
from effects import Effect, Place, surroundings
from tiny import split

from lightrainer import Seq2SeqTrainingArguments

# The 109 of 5.3.0.
FROZEN = split(
    """
    output_dir per_device_train_batch_size num_train_epochs max_steps
    learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps optim optim_args weight_decay
    adam_beta1 adam_beta2 adam_epsilon optim_target_modules gradient_accumulation_steps average_tokens_across_devices
    max_grad_norm label_smoothing_factor
    bf16 fp16 bf16_full_eval fp16_full_eval tf32
    gradient_checkpointing gradient_checkpointing_kwargs torch_compile torch_compile_backend torch_compile_mode
    use_liger_kernel liger_kernel_config use_cache neftune_noise_alpha torch_empty_cache_steps auto_find_batch_size
    logging_strategy logging_steps logging_first_step log_on_each_node logging_nan_inf_filter
    include_num_input_tokens_seen log_level log_level_replica disable_tqdm report_to run_name project trackio_space_id
    eval_strategy eval_steps eval_delay per_device_eval_batch_size prediction_loss_only eval_on_start
    eval_do_concat_batches eval_use_gather_object eval_accumulation_steps include_for_metrics batch_eval_metrics
    save_only_model save_strategy save_steps save_on_each_node save_total_limit enable_jit_checkpoint
    push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision
    load_best_model_at_end metric_for_best_model greater_is_better ignore_data_skip
    restore_callback_states_from_checkpoint
    full_determinism seed data_seed use_cpu accelerator_config parallelism_config
    dataloader_drop_last dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers
    dataloader_prefetch_factor remove_unused_columns label_names train_sampling_strategy length_column_name
    ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_backend ddp_timeout fsdp fsdp_config
    deepspeed debug skip_memory_metrics do_train do_eval do_predict resume_from_checkpoint
    warmup_ratio logging_dir local_rank
    """
)
SEQ2SEQ = split("sortish_sampler predict_with_generate generation_max_length generation_num_beams generation_config")
# Since 5.3.0, up to 5.23.
LATER = split(
    """
    activation_checkpointing activation_checkpointing_kwargs trackio_bucket_id trackio_static_space_id
    dataloader_multiprocessing_context dataloader_in_order ddp_static_graph
    """
)
OWN = split("record_model_losses eval_aggregate fp8 parameter_rules max_tokens_per_batch")

PARTS = (of_run, of_execution, of_reporting, of_evaluation, of_generation, of_saving, of_hub, of_surroundings)
TABLE: dict[str, Effect] = {name: entry for part in PARTS for name, entry in part.ENTRIES.items()}


def names_of(kind):
    return [item.name for item in dataclasses.fields(kind)]


def test_the_list_is_that_of_the_reference():
    """Read from the installed one; 5.23 is not installed, what it adds is written down."""
    assert names_of(transformers.TrainingArguments) == FROZEN
    assert set(names_of(transformers.Seq2SeqTrainingArguments)) == {*FROZEN, *SEQ2SEQ}
    assert sorted(names_of(Seq2SeqTrainingArguments)) == sorted([*FROZEN, *LATER, *OWN, *SEQ2SEQ])


def test_every_argument_has_an_entry_and_every_entry_is_an_argument():
    assert sorted(TABLE) == sorted([*FROZEN, *LATER, *OWN, *SEQ2SEQ])


@pytest.mark.parametrize("name", TABLE)
def test_the_value_is_not_the_default(name):
    assert getattr(Seq2SeqTrainingArguments(), name) != TABLE[name].value


@pytest.mark.parametrize("name", TABLE)
def test_it_changes_what_it_is_documented_to_change(name, tmp_path, monkeypatch):
    entry = TABLE[name]
    given = surroundings(name, entry.beside)
    usual = entry.observe(copy.deepcopy(given), Place(tmp_path / "usual", monkeypatch))
    value = {name: copy.deepcopy(entry.value)}
    changed = entry.observe(copy.deepcopy(given) | value, Place(tmp_path / "changed", monkeypatch))
    assert entry.shows(usual, changed), f"{usual} -> {changed}"
    assert not entry.shows(usual, usual), f"{usual} shows it already"
