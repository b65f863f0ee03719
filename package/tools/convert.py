"""The command `convert`: convert checkpoints between Lightning, the Trainer API and DeepSpeed."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

from collections.abc import Sequence

from .command_line import CommandParser, integer

_DESCRIPTION = """\
Convert a checkpoint file of lightning.Trainer into a folder checkpoint-N of the Trainer API, or
such a folder into a file. A folder with DeepSpeed states (ZeRO stages 1 to 3) becomes one with
unsharded weights and an unsharded optimizer; DeepSpeed is not needed. A folder with FSDP shards
becomes one with safetensors files. Only tensors and plain values are read.
"""
_EXAMPLES = """examples:
  lightrainer convert lightning_logs/version_0/checkpoints/last.ckpt out
  lightrainer convert out/checkpoint-500 again.ckpt
  lightrainer convert deepspeed/checkpoint-500 whole
  lightrainer convert fsdp/checkpoint-500 whole
"""


def convert(flags: Sequence[str]) -> int:
    """Convert one checkpoint, and print the path of the result.

    Args:
        flags: two paths and the options, see `--help`.

    Returns:
        the exit status 0; errors exit with status 2.
    """
    parser = _make_parser()
    options = vars(parser.parse_args(flags))
    source = options.pop("source")
    target = options.pop("target")
    from ..lightning_modules.checkpoints.conversion import convert as convert_checkpoint

    try:
        print(convert_checkpoint(source, target, **options))
    except (ValueError, TypeError, OSError) as error:
        parser.error(str(error))
    return 0


def _make_parser() -> CommandParser:
    """Return the parser of the command."""
    parser = CommandParser("convert", _DESCRIPTION, _EXAMPLES)
    add = parser.add_argument
    add("source", metavar="IN", help="a checkpoint file of Lightning, or a folder checkpoint-N")
    add(
        "target",
        metavar="OUT",
        help="the folder checkpoint-N, the folder to write it into, or the file",
    )
    add("--force", action="store_true", help="replace an existing file or folder")
    add(
        "--prefix",
        default="model.",
        help="prefix of the names of the model's weights in a file (%(default)s)",
    )
    add(
        "--accumulation",
        type=integer(),
        default=1,
        help="batches in a step, for folders from transformers (%(default)s)",
    )
    add(
        "--batches-in-epoch",
        type=integer(),
        help="batches in an epoch, for files from the middle of an epoch that do not store it",
    )
    add(
        "--batch-size",
        type=integer(),
        help="samples in a batch, for files that do not store it",
    )
    return parser
