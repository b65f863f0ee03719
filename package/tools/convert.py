"""The command `convert`: convert checkpoints between Lightning, the Trainer API and DeepSpeed."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

from collections.abc import Sequence

from .command_line import CommandParser, whole

_DESCRIPTION = """\
Turn a checkpoint file of lightning.Trainer into a folder checkpoint-N of the Trainer API, or such a
folder into a file. A folder with the states of DeepSpeed (stages 0 to 3 of ZeRO) becomes one with
whole weights and a whole optimizer, without DeepSpeed. A folder with parts of FSDP's processes
becomes one with safetensors, or the other way round with --parts, with a file of weights in memory
at a time. Only tensors and plain values are read.
"""
_EXAMPLES = """examples:
  lightrainer convert lightning_logs/version_0/checkpoints/last.ckpt out
  lightrainer convert out/checkpoint-500 again.ckpt
  lightrainer convert deepspeed/checkpoint-500 whole
  lightrainer convert fsdp/checkpoint-500 whole --max-shard-size 2GB
"""


def convert(flags: Sequence[str]) -> int:
    """Convert one checkpoint, and print the path of the result.

    Args:
        flags: Two paths and the options, see `--help`.

    Returns:
        0, the exit status; an error ends the program with 2.
    """
    parser = _parser()
    options = vars(parser.parse_args(flags))
    from ..lightning_modules.checkpoints.conversion import convert as converted

    try:
        print(converted(options.pop("source"), options.pop("target"), **options))
    except (ValueError, TypeError, OSError) as error:
        parser.error(str(error))
    return 0


def _parser() -> CommandParser:
    parser = CommandParser("convert", _DESCRIPTION, _EXAMPLES)
    add = parser.add_argument
    add("source", metavar="IN", help="a file of Lightning, or a folder checkpoint-N")
    add(
        "target",
        metavar="OUT",
        help="the folder checkpoint-N, or the folder to write it into; or the file",
    )
    add("--force", action="store_true", help="replace an existing file or folder")
    add(
        "--prefix",
        default="model.",
        help="prefix of the names of the model's weights in a file (%(default)s)",
    )
    steps = "batches of a step, for folders of the reference (%(default)s)"
    add("--accumulation", type=whole(), default=1, help=steps)
    add(
        "--batches-in-epoch",
        type=whole(),
        help="for files from the middle of an epoch that do not tell its length",
    )
    add("--batch-size", type=whole(), help="samples of a batch, for files that do not tell it")
    dtype = (
        "precision of the weights from states of DeepSpeed; by default that of its optimizer, "
        "float32"
    )
    add("--dtype", choices=("float32", "bfloat16", "float16"), help=dtype)
    add(
        "--parts",
        action="store_true",
        help="write the weights as FSDP with SHARDED_STATE_DICT does",
    )
    size = (
        "largest size of a file of weights, and of weights in memory, made of parts (%(default)s)"
    )
    add("--max-shard-size", default="5GB", metavar="SIZE", help=size)
    return parser
