"""DeepSpeed for real, in one process and in two, on the CPU: the numbers of a plain training,
and of the reference.
"""

import functools
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from helpers import HELPERS
from helpers.processes import beside_one_process
from helpers.processes.starting import finished_ranks
from lightrainer.lightning_modules.distributed.zero_states import ZeroStates

SCRIPT = HELPERS / "ddp" / "deepspeed_script.py"
BESIDE = Path(sys.prefix) / "deepspeed"
"""Where the Makefile installs it: transformers and accelerate would import it in every process
that has it.
"""

pytestmark = pytest.mark.skipif(
    not BESIDE.is_dir(), reason="deepspeed is not installed separately; run `make test`"
)

SECONDS = 300
EXACT = ["stage0", "stage1", "stage2", "stage3", "offload2", "offload3", "silent", "parts"]
PASSES = ["overlap1", "passes0", "passes1", "passes2", "passes3", "passes_offload2"]
HALF = ["bf16", "bf16_3", "fp16_low", "fp16_low_3"]
OTHERS = ["sections", "unclipped", "fp16"]
ALONE = ["stage2", "stage3"]
COMPARED = ["sections", "its_schedule", "its_optimizer", "stage3"]
RESUMED = ["stage2", "stage3", "offload3", "parts", "sections", "bf16", "fp16_low"]
DEALT_OUT = [
    "stage2-2-numbers",
    "stage3-2-stage3",
    "parts-2-parts",
    "stage2-2-stage3",
    "stage3-2-offload2",
]
"""From two processes to one, also in another stage; see `dealt_out` in the script."""
TO_MORE = ["stage2-1-offload2", "stage3-1-stage3"]
"""From one process to two; `offload2` stores parameters in another order
(`round_robin_gradients`).
"""
STAGE3 = ["stage3", "offload3", "parts", "bf16_3", "fp16_low_3"]
NUMBERS = ("loss", "grad_norm", "learning_rate", "eval_loss", "last_eval_loss")
close = functools.partial(beside_one_process.close, names=NUMBERS)
PARAMETERS = 264


class Results:
    """Read what the runs wrote: `results(way, processes, rank)`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, way: str, processes: int = 2, rank: int = 0) -> Any:
        return json.loads((self.folder / f"{way}-{processes}-rank{rank}.json").read_text())

    def weights(
        self, way: str, processes: int = 2, where: str = "saved"
    ) -> dict[str, torch.Tensor]:
        return load_file(self.folder / str(processes) / way / where / "model.safetensors")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Each launch trains in many ways, one after the other."""
    folder = tmp_path_factory.mktemp("deepspeed")
    single_batches = [f"single_batch-{way}" for way in COMPARED]
    ours, reference = ([library, str(folder)] for library in ("lightrainer", "transformers"))
    apart = ["plain", "plain_unclipped", *ALONE]
    distributed = [
        *EXACT,
        *PASSES,
        *HALF,
        *OTHERS,
        *single_batches,
        "pretrained",
        *TO_MORE,
        "converted-2-plain",
    ]
    then_apart = [*DEALT_OUT, "bf16-2-bf16_3", "converted-2-plain"]
    then_apart += ["from_reference-its_optimizer", "refusals", "together"]
    common = {"log": folder / "log.txt", "seconds": SECONDS, "BESIDE": str(BESIDE)}
    finished_ranks(SCRIPT, *reference, *COMPARED, library="transformers and deepspeed", **common)
    for processes, scenarios in ((0, apart), (2, distributed), (0, then_apart)):
        finished_ranks(
            SCRIPT,
            *ours,
            *scenarios,
            processes=processes,
            library="lightrainer and deepspeed",
            **common,
        )
    return Results(folder)


@pytest.mark.parametrize("way", EXACT)
def test_deepspeed_two_processes_equal_a_plain_training(results, way):
    """With accumulation, a shorter last step, clipping, weight decay, tied weights: losses,
    norms, evaluations.
    """
    for rank in (0, 1):
        close(results("plain", 1), results(way, rank=rank), 1e-5)
    if way in ALONE:
        close(results("plain", 1), results(way, 1), 1e-5)
    assert len(set(results(way)["loss"])) == 6


@pytest.mark.parametrize("way", PASSES)
def test_deepspeed_adds_the_gradients_of_several_passes(results, way):
    """Also of those through the model inside of the engine, and where communication overlaps."""
    for rank in (0, 1):
        close(results("plain", 1), results(way, rank=rank), 1e-5)


def test_norms_are_those_before_clipping_also_where_nothing_is_clipped(results):
    close(results("plain_unclipped", 1), results("unclipped"), 1e-5)
    assert results("unclipped")["loss"] != pytest.approx(results("stage2")["loss"], rel=1e-5)
    assert min(results("stage2")["grad_norm"]) > 0.5  # where it clips


def test_deepspeed_model_trains_twice(results):
    """With a new engine, where the one before has left its parameters apart."""
    assert results("stage3")["again"] == pytest.approx(results("stage3", 1)["again"], rel=1e-5)
    assert results("stage3")["again"] < sum(results("stage3")["loss"]) / 6


@pytest.mark.parametrize("way", HALF)
def test_half_precision_is_near_but_not_the_same(results, way):
    close(results("plain", 1), results(way), 2e-2)
    assert results(way)["loss"] != pytest.approx(results("plain", 1)["loss"], rel=1e-5)


def test_steps_whose_gradients_overflow_are_left_out(results):
    """With a loss scale of float16 that is too large: the schedule and the weights do not
    change.
    """
    result = results("fp16")
    assert result["learning_rate"] == [0.0] * 6
    assert set(result["grad_norm"]) <= {0.0, math.inf}  # DeepSpeed 0.19.0 says 0
    first, last = (results.weights("fp16", where=f"checkpoint-{step}") for step in (2, 6))
    assert all(torch.equal(first[name], last[name]) for name in first)


@pytest.mark.parametrize("way", [*EXACT, *HALF])
def test_deepspeed_predictions_and_events_on_every_rank(results, way):
    """Only stage 3 takes parameters apart."""
    for rank in (0, 1):
        result = results(way, rank=rank)
        assert result["numel"] == (0 if way in STAGE3 else PARAMETERS)
        assert result["predicted"] == list(range(12))
        assert result["heard"] == {"steps": 6, "saves": 3}


@pytest.mark.parametrize("way", [way for way in (*EXACT, *HALF) if way != "parts"])
def test_saved_models_are_whole(results, way):
    """Those of the best checkpoint, which is not the last: names, shapes and values of one
    process.
    """
    expected, actual = results.weights("plain", 1), results.weights(way)
    near = 2e-2 if way in HALF else 2e-5
    torch.testing.assert_close(
        {name: tensor.float() for name, tensor in actual.items()}, expected, rtol=near, atol=near
    )
    best = results.weights(way, where="checkpoint-2")
    assert all(torch.equal(actual[name], best[name]) for name in actual)
    last = results.weights(way, where="checkpoint-6")
    assert not all(torch.equal(actual[name], last[name]) for name in actual)


@pytest.mark.parametrize("way", RESUMED)
def test_deepspeed_resumption_is_exact(results, way):
    """From the middle of a pass, in a model with other first weights; the best model is loaded
    at the end.
    """
    for rank in (0, 1):
        straight = results(way, rank=rank)
        for name in (*NUMBERS, "best"):
            assert straight["resumed"][name] == straight[name], name
    if way != "parts":
        left, right = results.weights(way), results.weights(f"{way}-cut-2")
        assert all(torch.equal(left[name], right[name]) for name in left)


def test_deepspeed_resumes_with_another_number_of_processes(results):
    """With the states of the optimizer, in another stage too; the best model, which others
    wrote, is loaded then.
    """
    for way, processes in (*((way, 1) for way in DEALT_OUT), *((way, 2) for way in TO_MORE)):
        before, written_by, _ = way.split("-")
        close(results(before, int(written_by)), results(way, processes), 1e-5)
        assert results(way, processes)["best"] == results(before, int(written_by))["best"] == 2
    close(results("bf16"), results("bf16-2-bf16_3", 1), 1e-2)


def test_deepspeed_converted_states_resume_without_deepspeed(results):
    """In as many processes as had written them, and in one."""
    for processes in (1, 2):
        close(results("stage3"), results("converted-2-plain", processes), 1e-5)
        assert results("converted-2-plain", processes)["strategy"] != results("stage3")["strategy"]


def test_deepspeed_process_writes_its_part_and_the_first_the_rest(results):
    folder = results.folder / "2" / "stage2"
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoint-2",
        "checkpoint-6",
        "saved",
    ]
    names = {
        path.relative_to(folder / "checkpoint-6").as_posix()
        for path in (folder / "checkpoint-6").rglob("*")
    }
    states = {f"global_step6/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (0, 1)}
    rank_states = {f"{kind}_{rank}.pth" for rank in (0, 1) for kind in ("rng_state", "data_state")}
    once = {
        "model.safetensors",
        "training_args.bin",
        "scheduler.pt",
        "trainer_state.json",
        "_manifest.json",
    }
    theirs = {
        "global_step6",
        "global_step6/mp_rank_00_model_states.pt",
        "latest",
        "zero_to_fp32.py",
    }
    assert names - {"zero_to_torch.py"} == states | rank_states | once | theirs
    assert sorted(path.name for path in (folder / "saved").iterdir()) == [
        "model.safetensors",
        "training_args.bin",
    ]


def test_weights_can_be_left_in_parts(results):
    """`stage3_gather_16bit_weights_on_model_save=False`: DeepSpeed's script puts them together."""
    saved = results.folder / "2" / "parts" / "saved"
    assert {"zero_to_fp32.py", "latest", "training_args.bin"} <= {
        path.name for path in saved.iterdir()
    }
    assert not list(saved.parent.rglob("*.safetensors"))
    expected = results.weights("stage3")
    merged = torch.load(results.folder / "together.pt", weights_only=True)
    for name, tensor in expected.items():
        torch.testing.assert_close(merged[name], tensor)
    without = ZeroStates(saved).weights  # and lightrainer, without DeepSpeed
    assert without.keys() == merged.keys()
    assert all(torch.equal(without[name], tensor) for name, tensor in merged.items())


@pytest.mark.parametrize("way", COMPARED)
def test_deepspeed_equals_the_reference(results, way):
    """Bit for bit, with optimizer and schedule of DeepSpeed's, of the Trainer's, and one of each.

    The reference logs the rate of the next step where DeepSpeed makes optimizer or schedule; here
    it is that of the step itself, as it is otherwise. `results(way)` accumulates, which the
    reference 5.3.0 does wrongly.
    """
    expected, actual = results(f"reference-{way}"), results(f"single_batch-{way}")
    for name in ("loss", "grad_norm", "eval_loss"):
        assert actual[name] == expected[name], name
    shift = 0 if way == "stage3" else 1
    assert actual["learning_rate"][shift:] == pytest.approx(expected["learning_rate"][: 15 - shift])


def test_deepspeed_one_process_resumes_two_of_the_reference(results):
    """The reference leaves the schedule in the states of DeepSpeed."""
    expected, actual = (
        results("reference-its_optimizer"),
        results("from_reference-its_optimizer", 1),
    )
    assert actual["loss"][5:] == pytest.approx(expected["loss"][5:], rel=1e-5)
    assert len(actual["loss"]) == 15


def test_models_of_transformers_come_in_parts(results):
    """Where arguments with stage 3 are there before; what follows from their hidden size is
    filled in.
    """
    for rank in (0, 1):
        result = results("pretrained", rank=rank)
        assert (result["plain enabled"], result["stage3 enabled"]) == (False, True)
        assert (result["plain numel"], result["stage3 numel"]) == (1040, 0)
        assert result["losses"]["stage3"] == pytest.approx(result["losses"]["plain"], rel=1e-5)
        assert result["stage3 flos"] == result["plain flos"] > 0
    assert results("pretrained")["stage3 saved"] == ["model.safetensors"]


REFUSED = {
    "stage": "was written with zero_optimization.stage 1 or 2, which stage 0 cannot read",
    "elsewhere": "with zero_optimization.mics_shard_size=1 it cannot be resharded",
    "fp16": "Pass bf16=True",
    "open": "deepspeed: zero_optimization.reduce_bucket_size",
    "optimizer": "optim='lomo' is not supported with deepspeed",
}


@pytest.mark.parametrize("case", REFUSED)
def test_deepspeed_run_that_cannot_be_is_refused_with_what_to_do(results, case):
    message = results("refusals", 1)[case]
    assert message.startswith("ValueError")
    assert REFUSED[case] in message
