"""Helpers of the reference that scripts import: ours and theirs on the same things, bit for bit."""

import functools
import importlib.util
import inspect
import logging
import subprocess
import sys
import types
import warnings
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import hf_argparser as their_parser
from transformers import trainer_optimizer, trainer_pt_utils, trainer_utils, training_args

from lightrainer.facade.helpers import (
    arguments,
    checkpoints,
    hyperparameters,
    memory,
    metrics,
    models,
    nested,
    processes,
    samplers,
)

PAIRS = {
    arguments: (training_args, trainer_utils, their_parser),
    checkpoints: (trainer_utils, trainer_pt_utils),
    hyperparameters: (trainer_utils,),
    memory: (trainer_utils,),
    metrics: (trainer_pt_utils,),
    models: (trainer_utils, trainer_pt_utils, trainer_optimizer),
    nested: (trainer_pt_utils,),
    processes: (trainer_utils, trainer_pt_utils),
    samplers: (trainer_pt_utils,),
}


def theirs(ours, name):
    return next(getattr(module, name) for module in PAIRS[ours] if hasattr(module, name))


def same(left, right):
    """Equal values of equal types, dtypes and shapes, also inside of containers."""
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, np.ndarray):
        return isinstance(right, np.ndarray) and left.dtype == right.dtype and np.array_equal(left, right)
    if isinstance(left, dict):
        return type(left) is type(right) and left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, (list, tuple)):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and left == right


def test_the_comparison_sees_differences():
    """Negative control."""
    assert not same([torch.ones(1)], [torch.zeros(1)])
    assert not same(np.ones(1), np.ones(1, dtype=np.float32))
    assert not same((1,), [1])
    assert not same({"a": 1}, OrderedDict(a=1))


@pytest.mark.parametrize("ours", PAIRS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_the_parameters_have_the_same_names_and_order(ours):
    """Of each function and class that both have; ours may take more after them."""
    compared = 0
    for name, function in vars(ours).items():
        found = next((getattr(module, name) for module in PAIRS[ours] if hasattr(module, name)), None)
        is_own = getattr(function, "__module__", "") == ours.__name__
        if found is None or not is_own or not (inspect.isfunction(function) or inspect.isclass(function)):
            continue
        wanted = list(inspect.signature(found).parameters)
        assert list(inspect.signature(function).parameters)[: len(wanted)] == wanted, name
        compared += 1
    assert compared > 0


def tensors(*shapes, kind=torch.float32):
    generator = torch.Generator().manual_seed(3)
    return [torch.rand(shape, generator=generator).to(kind) for shape in shapes]


A, B, C, D = tensors((2, 3), (3, 5), (4,), (2, 4, 2))
CASES = {
    "torch_pad_and_concatenate": [(A, B), (A, B, 7), (C, C), (torch.tensor(1.0), torch.tensor(2.0)), (D, D[:, :3])],
    "numpy_pad_and_concatenate": [(A.numpy(), B.numpy()), (C.numpy(), C.numpy(), 3), (D.numpy(), D[:, :2].numpy(), 0)],
    "nested_concat": [
        (A, B),
        ([A, (C,)], [B, (C,)]),
        ({"x": A}, {"x": B}, 5),
        (A.numpy(), B.numpy()),
        ((A.numpy(), {"y": C.numpy()}), (B.numpy(), {"y": C.numpy()}), 9),
    ],
    "find_batch_size": [
        (A,),
        ([[], {"x": D}],),
        ({"a": "text", "b": C.numpy()},),
        (torch.tensor(1),),
        ("text",),
        ([],),
    ],
    "nested_detach": [([A.clone().requires_grad_(), {"x": 3}],)],
    "nested_numpify": [([A, (B,)],), ({"x": A.bfloat16()},)],
    "nested_new_like": [(A.numpy(), 5), ([A.numpy(), D.numpy()], 3, 0), (D.numpy(), 4, 1)],
    "expand_like": [(A.numpy(), 6), (D.numpy(), 4, 2), (np.arange(6).reshape(2, 3), 5, -1)],
    "nested_truncate": [([A, {"x": C}], 1), (B.numpy(), 2)],
    "atleast_1d": [(torch.tensor(1),), (np.float64(2),), (A,)],
}


@pytest.mark.parametrize("name", CASES)
def test_nested_tensors(name):
    for given in CASES[name]:
        assert same(getattr(nested, name)(*given), theirs(nested, name)(*given)), given


@pytest.mark.parametrize(("left", "right"), [(A, A.numpy()), ([A], (A,)), ("a", "b"), (1, 2)])
def test_what_cannot_be_joined_is_refused_alike(left, right):
    with pytest.raises((AssertionError, TypeError)) as ours:
        nested.nested_concat(left, right)
    with pytest.raises(type(ours.value)):
        trainer_pt_utils.nested_concat(left, right)


@pytest.mark.parametrize("join", [True, False])
def test_the_container_of_an_evaluation(join):
    made = [module.EvalLoopContainer(do_nested_concat=join, padding_index=-1) for module in (nested, trainer_pt_utils)]
    for container in made:
        assert container.get_arrays() is None
        for batch in ((A, [C]), (B, [C])):
            container.add(batch)
        container.to_cpu_and_numpy()
        assert container.tensors is None
        container.add((A, [C]))
    assert same(made[0].get_arrays(), made[1].get_arrays())


class Counted(torch.utils.data.Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index >= self.size:
            raise IndexError
        return {"input_ids": [0] * (index * 7 % 5 + 1)}


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, size, seeded=False):
        self.size = size
        if seeded:
            self.generator = torch.Generator()

    def __iter__(self):
        shift = torch.randint(9, (), generator=self.generator).item() if hasattr(self, "generator") else 0
        return iter([index + 10 * shift for index in range(self.size)])

    def __len__(self):
        return self.size


SHARES = [(10, 2, 3, False), (10, 2, 3, True), (12, 2, 3, False), (1, 4, 2, False), (7, 3, 1, True), (3, 4, 2, True)]


@pytest.mark.parametrize(("size", "batch", "processes_", "drop"), SHARES)
def test_shares_of_several_processes(size, batch, processes_, drop):
    for rank in range(processes_):
        for module in ("shard", "stream", "seeded stream"):
            made = []
            for here in (samplers, trainer_pt_utils):
                if module == "shard":
                    share = here.ShardSampler(Counted(size), batch, drop, processes_, rank)
                else:
                    share = here.IterableDatasetShard(
                        Stream(size, "seeded" in module), batch, drop, processes_, rank, 5
                    )
                    share.set_epoch(2)
                made.append([list(share), len(share), getattr(share, "num_examples", 0)])
            assert made[0] == made[1]


def test_samplers_by_length_and_with_a_loop():
    for drop in (False, True):
        for rank in range(3):
            made = []
            for here in (samplers, trainer_pt_utils):
                one = here.DistributedLengthGroupedSampler(2, Counted(11), 3, rank, seed=4, drop_last=drop)
                one.set_epoch(1)
                other = here.DistributedLengthGroupedSampler(2, None, 3, rank, lengths=torch.tensor([3, 1, 2, 5]))
                loop = here.DistributedSamplerWithLoop(Counted(11), 4, num_replicas=3, rank=rank, seed=2)
                made.append([list(one), len(one), list(other), list(loop), len(loop)])
            assert made[0] == made[1]
    for here in (samplers, trainer_pt_utils):
        with pytest.raises(ValueError, match="lengths"):
            here.DistributedLengthGroupedSampler(2)


def test_the_sampler_of_a_loader():
    loader = torch.utils.data.DataLoader(Counted(4), batch_size=2, shuffle=True)
    assert samplers.get_dataloader_sampler(loader) is trainer_pt_utils.get_dataloader_sampler(loader) is loader.sampler
    assert samplers.get_dataloader_sampler([1]) is trainer_pt_utils.get_dataloader_sampler([1]) is None


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(3, 4)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Sequential(nn.Linear(4, 2, bias=False)))
        self.block[0].weight.requires_grad_(False)
        self.bias_of_all = nn.Parameter(torch.zeros(2))


@pytest.mark.parametrize("names", [None, [], ["bias", "layernorm"], [r"block\.2", "norm"], ["weight$"], ["^weight"]])
@pytest.mark.parametrize("kinds", [[], [nn.LayerNorm], (nn.Linear, nn.Embedding)])
def test_parameter_names(names, kinds):
    assert models.get_parameter_names(Net(), kinds, names) == trainer_pt_utils.get_parameter_names(Net(), kinds, names)


def test_facts_about_a_model():
    for trainable in (False, True):
        assert models.get_model_param_count(Net(), trainable) == trainer_pt_utils.get_model_param_count(
            Net(), trainable
        )
    for name in ("Net", "LayerNorm", "Nothing"):
        net = Net()
        assert models.get_module_class_from_name(net, name) is trainer_pt_utils.get_module_class_from_name(net, name)
    for given in ("a.*", "block.0", ["block"], ["x", r".*\.\d"], [], ["emb.d"]):
        for key in ("block.0", "embed", "other"):
            for more in (False, True):
                ours = models.check_target_module_exists(given, key, more)
                assert ours == trainer_utils.check_target_module_exists(given, key, more), (given, key)
    for one in (torch.optim.SGD, Net, lambda: 0, 3):
        assert models.is_optimizer_factory(one) == trainer_optimizer.is_optimizer_factory(one)
    assert models.unwrap_peft_model(net) is net
    assert not models._is_peft_model(net)


def test_masks_that_look_ahead():
    causal = torch.tril(torch.ones(3, 3))
    large = torch.triu(torch.full((3, 3), -1e9), diagonal=1)
    masks = [None, torch.ones(2, 3), causal[None], causal[None, None], torch.ones(1, 3, 3), large[None, None]]
    masks += [torch.ones(1, 1, 1, 1), torch.ones(3), large[None] * 0 - 1, torch.ones(2, 2, 3, 3)]
    found = [models.is_attention_mask_causal(mask) for mask in masks]
    assert found == [trainer_pt_utils.is_attention_mask_causal(mask) for mask in masks]
    assert len(set(found)) == 2


def quantized(**facts):
    return types.SimpleNamespace(**facts)


@pytest.mark.parametrize(
    "model",
    [
        quantized(),
        quantized(is_quantized=True),
        quantized(is_quantized=True, _orig_mod=1),
        quantized(is_quantized=True, _hf_peft_config_loaded=True),
        quantized(
            is_quantized=True,
            hf_quantizer=types.SimpleNamespace(
                is_trainable=False, is_qat_trainable=True, quantization_config=types.SimpleNamespace(quant_method="q")
            ),
        ),
        quantized(is_quantized=True, hf_quantizer=types.SimpleNamespace(is_trainable=True, is_qat_trainable=True)),
        quantized(is_quantized=True, hf_quantizer=types.SimpleNamespace(is_trainable=True)),
    ],
)
def test_quantized_models_that_cannot_be_trained(model):
    outcomes = []
    for check in (models.validate_quantization_for_training, trainer_utils.validate_quantization_for_training):
        try:
            check(model)
            outcomes.append(None)
        except ValueError as error:
            outcomes.append(type(error))
    assert outcomes[0] == outcomes[1]


def test_objectives_and_spaces():
    for given in (
        {"eval_loss": 2.0},
        {"eval_loss": 2.0, "epoch": 3, "eval_runtime": 1.0, "eval_samples_per_second": 3.0},
        {"eval_loss": 2.0, "eval_f1": 0.5, "eval_exact": 0.25, "epoch": 1},
        {"epoch": 1},
    ):
        before = dict(given)
        ours = hyperparameters.default_compute_objective(given)
        assert ours == trainer_utils.default_compute_objective(given)
        assert given == before
    assert hyperparameters.default_hp_space_optuna(Trial()) == trainer_utils.default_hp_space_optuna(Trial())
    if importlib.util.find_spec("ray") is None:
        with pytest.raises(ImportError, match="ray"):
            hyperparameters.default_hp_space_ray(None)
    assert hyperparameters.BestRun._fields == trainer_utils.BestRun._fields
    assert hyperparameters.BestRun("1", 2.0, {}) == trainer_utils.BestRun("1", 2.0, {})
    sweep = hyperparameters.default_hp_space_wandb(None)
    assert sweep["parameters"].keys() == hyperparameters.default_hp_space_optuna(Trial()).keys()
    assert sweep["metric"] == {"name": "objective", "goal": "minimize"}


class Trial:
    """Returns what it is asked for."""

    def __getattr__(self, name):
        return lambda *args, **kwargs: (name, args, tuple(kwargs.items()))


def test_words_and_numbers():
    for word in ("yes", "NO", "on", "0", "T", "f"):
        for to_bool in (True, False):
            assert same(arguments.str_to_bool(word, to_bool), training_args.str_to_bool(word, to_bool))
    with pytest.raises(ValueError, match="perhaps"):
        arguments.str_to_bool("perhaps")
    given = {"a": "True", "b": "12", "c": "1.5", "d": {"e": "false", "f": "1.2.3"}, "g": None, "h": "-3", "i": "1e5"}
    assert same(arguments._convert_str_dict(dict(given, d=dict(given["d"]))), training_args._convert_str_dict(given))
    for seconds in (0.0, 61.239, 3600 * 30 + 0.5):
        assert metrics._secs2timedelta(seconds) == trainer_pt_utils._secs2timedelta(seconds)
    assert arguments.log_levels == training_args.log_levels
    assert arguments.trainer_log_levels == training_args.trainer_log_levels
    for text in ("1", "two", "3"):
        ours = arguments.make_choice_type_function([1, "two"])(text)
        assert same(ours, their_parser.make_choice_type_function([1, "two"])(text))
    for word in ("yes", "F", True):
        assert arguments.string_to_bool(word) is their_parser.string_to_bool(word)
    for function in (len, lambda: 0, lambda a, b=1: 0, functools.partial(lambda a, b, c: 0, 1, c=2)):
        assert arguments.number_of_arguments(function) == trainer_utils.number_of_arguments(function)


def test_warnings_that_were_caught():
    for here in (metrics, trainer_pt_utils):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.warn("one", UserWarning, stacklevel=1)
            warnings.warn("two", FutureWarning, stacklevel=1)
        with warnings.catch_warnings(record=True) as again:
            warnings.simplefilter("always")
            here.reissue_pt_warnings(caught)
            here.reissue_pt_warnings(caught[1:])
        assert [one.category for one in again] == [FutureWarning]


def test_arguments_that_differ_from_those_of_the_checkpoint(caplog):
    args = types.SimpleNamespace(logging_steps=5, eval_steps=None, save_steps=2, per_device_train_batch_size=4, n_gpu=0)
    state = types.SimpleNamespace(logging_steps=5, eval_steps=3, save_steps=2, train_batch_size=4)
    with caplog.at_level(logging.WARNING, "lightrainer"):
        arguments.compare_trainer_and_checkpoint_args(args, state)
        assert caplog.text == ""
        state.save_steps, state.train_batch_size = 7, 8
        arguments.compare_trainer_and_checkpoint_args(args, state)
    assert "save_steps is 2 now and was 7" in caplog.text
    assert "per_device_train_batch_size is 4 now and was 8" in caplog.text


def test_a_batch_size_that_fits():
    """Halved until it does; errors of other kinds pass through."""
    tried = []

    @memory.find_executable_batch_size(starting_batch_size=12, auto_find_batch_size=True)
    def train(batch_size, more):
        tried.append((batch_size, more))
        if batch_size > 4:
            raise RuntimeError("CUDA out of memory. Tried to allocate")
        return batch_size

    assert train("x") == 3
    assert tried == [(12, "x"), (6, "x"), (3, "x")]
    assert memory.find_executable_batch_size(lambda batch_size: batch_size, 7)() == 7

    @memory.find_executable_batch_size(starting_batch_size=2, auto_find_batch_size=True)
    def never(batch_size):
        raise RuntimeError("CUDA out of memory. Tried to allocate")

    with pytest.raises(RuntimeError, match="one sample"):
        never()
    with pytest.raises(ZeroDivisionError):
        memory.find_executable_batch_size(lambda batch_size: 1 / 0, 4, True)()


def test_the_memory_tracker_knows_its_stage_by_its_caller():
    class Host:
        def __init__(self, kind):
            self.tracker = kind()
            self.tracker.start()
            self.tracker.stop_and_update_metrics()

        def evaluate(self):
            self.tracker.start()
            found = {"a": 1}
            self.tracker.stop_and_update_metrics(found)
            return found

        def other(self):
            self.tracker.start()

    pytest.importorskip("psutil")
    ours, reference = Host(memory.TrainerMemoryTracker), Host(trainer_utils.TrainerMemoryTracker)
    assert ours.evaluate().keys() == reference.evaluate().keys()
    assert ours.evaluate().keys() == reference.evaluate().keys()
    for host in (ours, reference):
        with pytest.raises(ValueError, match="other"):
            host.other()
    skipped = memory.TrainerMemoryTracker(skip_memory_metrics=True)
    skipped.start()


def test_weights_in_several_files(tmp_path):
    """Read through either index; what is missing or too much is refused, or returned."""
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    torch.manual_seed(0)
    saved = BertModel(config)
    saved.save_pretrained(tmp_path, max_shard_size="1KB")
    made = []
    for here in (checkpoints, trainer_utils):
        torch.manual_seed(1)
        model = BertModel(config)
        keys = here.load_sharded_checkpoint(model, str(tmp_path))
        made.append([model.state_dict(), list(keys.missing_keys), list(keys.unexpected_keys)])
    assert same(dict(made[0][0]), dict(made[1][0]))
    assert made[0][1:] == made[1][1:]
    assert same(dict(made[0][0]), dict(saved.state_dict()))
    for here in (checkpoints, trainer_utils):
        with pytest.raises(RuntimeError, match=r"embeddings|weight"):
            here.load_sharded_checkpoint(nn.Linear(2, 2), str(tmp_path))
        loose = here.load_sharded_checkpoint(nn.Linear(2, 2), str(tmp_path), strict=False)
        assert sorted(loose.missing_keys) == ["bias", "weight"]
        with pytest.raises(ValueError, match="index"):
            here.load_sharded_checkpoint(model, str(tmp_path / "nothing"))


def test_small_things_of_checkpoints(tmp_path, caplog):
    (tmp_path / "a").write_text("")
    (tmp_path / "b").write_text("")
    checkpoints.remove_dummy_checkpoint(False, tmp_path, ["a"])
    assert (tmp_path / "a").exists()
    checkpoints.remove_dummy_checkpoint(True, tmp_path, ["a", "never there"])
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    torch.save({"numpy": np.random.RandomState(3).get_state()}, tmp_path / "rng.pth")
    with checkpoints.safe_globals():
        assert torch.load(tmp_path / "rng.pth", weights_only=True)["numpy"][0] == "MT19937"
    with pytest.raises(Exception, match=r"(?i)weights"):
        torch.load(tmp_path / "rng.pth", weights_only=True)
    module = types.SimpleNamespace(random=torch.random)
    state = torch.random.get_rng_state()
    drawn = torch.rand(3)
    checkpoints.set_rng_state_for_device("CPU", module, {"cpu": state}, False)
    assert torch.equal(torch.rand(3), drawn)
    with caplog.at_level(logging.ERROR, "lightrainer"):
        checkpoints.set_rng_state_for_device("CUDA", module, {}, False)
    assert "CUDA" in caplog.text


def test_one_process_has_nobody_to_gather_from():
    for rank, main in ((-1, True), (0, True), (1, False)):
        assert processes.is_main_process(rank) is trainer_utils.is_main_process(rank) is main
    assert processes.total_processes_number(-1) == trainer_utils.total_processes_number(-1) == 1
    mode = training_args.ParallelMode.NOT_PARALLEL
    assert processes.nested_gather(A, mode) is A
    assert processes.nested_gather(None, mode) is None
    with processes.torch_distributed_zero_first(-1):
        pass
    for function in (
        processes.distributed_concat,
        functools.partial(processes.distributed_broadcast_scalars, device="cpu"),
    ):
        with pytest.raises(AssertionError, match="one process"):
            function([A] if function is processes.distributed_concat else [1.0])


def test_progress_bars_of_the_hub_are_quiet_meanwhile():
    from huggingface_hub.utils import are_progress_bars_disabled

    before = are_progress_bars_disabled()
    with processes.suppress_progress_bars():
        assert are_progress_bars_disabled()
    assert not before
    assert not are_progress_bars_disabled()


def test_two_processes(tmp_path):
    """What they gather is what the reference gathers; the script raises where it is not."""
    script = Path(__file__).with_name("gathering_script.py")
    started = [
        subprocess.Popen([sys.executable, script, str(rank), tmp_path], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for process in started:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
