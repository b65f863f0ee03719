"""No file of a checkpoint runs a program: every file, through every function that reads
checkpoints.
"""

import json
import pickle
import re
import shutil
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.metadata import Metadata

from helpers.checkpoints.harmful_checkpoints import (
    DOORS,
    FILES,
    MODEL_PARTS,
    OF_OPTIMIZERS,
    OF_WEIGHTS,
    OPTIMIZER_PARTS,
    SHARD,
    STATES,
    WARNINGS,
    poison,
    put_value,
)
from helpers.trainer.tiny_trainings import tiny
from lightrainer.lightning_modules.checkpoints import load_torch, sharded_files
from lightrainer.lightning_modules.checkpoints.sharded_reading import read_table

pytestmark = [
    WARNINGS,
    pytest.mark.filterwarnings("ignore:torch.distributed is"),
    pytest.mark.filterwarnings("ignore:Detected pickle protocol"),
]

_OF_BOTH = {
    "optimizer.pt",
    "optimizer.bin",
    "scheduler.pt",
    "scaler.pt",
    "rng_state.pth",
    "data_state_0.pth",
}
_OF_BOTH |= {*OF_WEIGHTS}
_OF_TRAIN = {
    *_OF_BOTH,
    "callback_states.pt",
    "lightning_callbacks.pt",
    "outside_model.pt",
    *OF_OPTIMIZERS,
}
_OF_LIGHTNING = {*_OF_BOTH, "lightning_state.pt"}
REFUSED: dict[str, set[str]] = {
    "train(folder)": _OF_TRAIN,
    "train(True)": _OF_TRAIN,
    "train(last-checkpoint)": _OF_TRAIN,
    "best model": {*OF_WEIGHTS, "outside_model.pt"},
    "best average": {"callback_states.pt"},
    "lightning.Trainer with the plugin": _OF_LIGHTNING,
    "lightning.Trainer": _OF_LIGHTNING,
    "convert": _OF_LIGHTNING,
    "read_weights": set(OF_WEIGHTS),
    "load_weights": set(OF_WEIGHTS),
    "optimizer parts": set(OF_OPTIMIZERS),
    "load_sharded_checkpoint": {SHARD},
    "problems": set(),
}
"""Files that each door reads and has to refuse; it runs none of the others either."""
OF_DEEPSPEED = "global_step2/mp_rank_00_model_states.pt"
TABLE = f"{MODEL_PARTS}/.metadata"


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("door", DOORS)
def test_checkpoint_files_run_no_program_through_any_door(checkpoint, evil, door, file):
    poison(checkpoint, file, evil)
    if file in REFUSED[door]:
        with pytest.raises(
            ValueError, match=re.escape(file.removesuffix("/values").rpartition("/")[2])
        ):
            DOORS[door](checkpoint)
    else:
        try:
            DOORS[door](checkpoint)
        except (ValueError, KeyError):  # there is nothing else that the door could read
            assert file in (*OF_WEIGHTS, *OF_OPTIMIZERS, "adapter_model.bin", OF_DEEPSPEED)
    assert not evil.has_run


@pytest.mark.parametrize("file", [file for file in FILES if not file.endswith("values")])
def test_attacks_succeed_on_unprotected_code(checkpoint, evil, file):
    """Negative control: unpickled without care, each of these files makes the folder."""
    poison(checkpoint, file, evil)
    assert not evil.has_run
    path = checkpoint / file
    (
        pickle.loads(path.read_bytes())
        if path.name == ".metadata"
        else torch.load(path, weights_only=False)
    )
    assert evil.has_run


@pytest.mark.parametrize("form", ["zip", "legacy", "protocol 0", "protocol 2", "protocol 5"])
@pytest.mark.parametrize("file", STATES[:-1])
def test_whatever_form_the_file_has(checkpoint, evil, form, file):
    """`load_torch` reads all of them: of torch's two formats, and bare pickles."""
    content = {"payload": evil}
    if form.startswith("protocol"):
        (checkpoint / file).write_bytes(pickle.dumps(content, protocol=int(form[-1])))
    else:
        torch.save(content, checkpoint / file, _use_new_zipfile_serialization=form == "zip")
    with pytest.raises(ValueError, match=re.escape(file)):
        load_torch(checkpoint / file)
    assert not evil.has_run


# --- the tables of folders of parts


@pytest.mark.parametrize("protocol", range(6))
def test_sharded_table_that_is_only_a_program_is_not_run(checkpoint, evil, protocol):
    path = checkpoint / TABLE
    path.write_bytes(pickle.dumps(evil, protocol=protocol))
    with pytest.raises(
        ValueError,
        match=r"\.metadata refers to \w+\.mkdir, which torch never writes",
    ):
        read_table(path.parent)
    assert not evil.has_run


@pytest.mark.parametrize("protocol", range(2, 6))
def test_sharded_table_is_read_as_by_torch(checkpoint, protocol):
    for folder in (MODEL_PARTS, OPTIMIZER_PARTS):
        path = checkpoint / folder / ".metadata"
        table = pickle.loads(path.read_bytes())
        path.write_bytes(pickle.dumps(table, protocol=protocol))
        read = read_table(checkpoint / folder)
        assert read.storage_data.keys() == table.storage_data.keys()
        for index, place in table.storage_data.items():
            assert {name: getattr(read.storage_data[index], name) for name in vars(place)} == vars(
                place
            )
        assert read.state_dict_metadata == table.state_dict_metadata


def test_sharded_table_cannot_change_a_class(checkpoint):
    """The state of an object can be given to a class: one of torch's would then be another, for
    all that follows.
    """
    path = checkpoint / TABLE
    change = b"\x80\x02ctorch.distributed.checkpoint.metadata\nMetadata\n(N}X\x06\x00\x00\x00brokenK\x01stb."
    path.write_bytes(change)
    with pytest.raises(ValueError, match=r"\.metadata is damaged"):
        read_table(path.parent)
    assert not hasattr(Metadata, "broken")


@pytest.mark.parametrize("place", ["../elsewhere.distcp", "/etc/passwd", "", "link.distcp"])
def test_sharded_table_cannot_leave_its_folder(checkpoint, place):
    path = checkpoint / TABLE
    table = pickle.loads(path.read_bytes())
    (checkpoint / "elsewhere.distcp").write_bytes(b"secret")
    (path.parent / "link.distcp").symlink_to(checkpoint / "elsewhere.distcp")
    for info in table.storage_data.values():
        info.relative_path = place
    path.write_bytes(pickle.dumps(table))
    with pytest.raises(ValueError, match="names the file"):
        read_table(path.parent)


@pytest.mark.parametrize("what", ["too few", "outside", "negative"])
def test_sharded_table_cannot_omit_a_part_of_a_tensor(checkpoint, what):
    """Else old contents of the memory would be taken for weights."""
    path = checkpoint / TABLE
    table = pickle.loads(path.read_bytes())
    chunk = table.state_dict_metadata["model.first.weight"].chunks[0]
    chunk.sizes = torch.Size([1, 8]) if what == "too few" else chunk.sizes
    chunk.offsets = {"outside": torch.Size([3, 0]), "negative": torch.Size([-1, 0])}.get(
        what, chunk.offsets
    )
    path.write_bytes(pickle.dumps(table))
    with pytest.raises(ValueError, match=r"do not cover its 48 elements|negative length"):
        read_table(path.parent)


@pytest.mark.parametrize("content", [b"", b"\x80", b"N.", b"\x80\x04]\x94h\x00a."])
def test_sharded_table_damage_is_named(checkpoint, content):
    (checkpoint / TABLE).write_bytes(content)
    with pytest.raises(ValueError, match=r"\.metadata is damaged"):
        read_table(checkpoint / MODEL_PARTS)


def test_state_replaced_by_a_value_is_refused(checkpoint):
    """A tensor of one element where a fused step takes one as large as the parameter."""
    put_value(checkpoint / OPTIMIZER_PARTS, "exp_avg", torch.zeros(1))
    model = tiny()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with pytest.raises(
        ValueError,
        match=r"exp_avg is a tensor of shape \(1,\) and float32, but this run expects a tensor",
    ):
        sharded_files.load_optimizer_parts(model, optimizer, checkpoint, all_ranks=False)


# --- not pickles


def test_tokenizer_files_run_no_program(tmp_path):
    """Neither code beside them, nor a template of chats that looks for Python."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    from lightrainer.lightning_modules.tokenization import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["auto_map"] = {"AutoTokenizer": [None, "evil.Evil"]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: ...\n")
    template = "{{ cycler.__init__.__globals__.os.mkdir('" + str(tmp_path / "ran") + "') }}"
    (tmp_path / "chat_template.jinja").write_text(template)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    with pytest.raises(Exception, match=r"unsafe|undefined"):
        tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    assert not (tmp_path / "ran").exists()


def test_genuine_checkpoint_passes_every_door(genuine, checkpoint):
    """Negative control: nothing is refused where nothing is wrong, and the matrix tries every
    file there is.
    """
    file_names = {path.relative_to(genuine).as_posix() for path in Path(genuine).rglob("*")}
    pickles = {name for name in file_names if name.endswith((".pt", ".pth", ".bin"))}
    assert pickles <= set(FILES)
    assert {
        "callback_states.pt",
        "lightning_callbacks.pt",
        "lightning_state.pt",
        "outside_model.pt",
        "scaler.pt",
    } <= pickles
    for number, door in enumerate(DOORS.values()):
        copied = checkpoint.parents[1] / str(number) / "out" / "checkpoint-2"
        shutil.copytree(checkpoint, copied)
        door(copied)
