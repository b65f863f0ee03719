"""The command `convert`: convert checkpoints between Lightning, the Trainer API and DeepSpeed."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence

from .number_options import whole

_EXAMPLES = """examples:
  lightrainer convert lightning_logs/version_0/checkpoints/last.ckpt out
  lightrainer convert out/checkpoint-500 again.ckpt
  lightrainer convert deepspeed/checkpoint-500 whole
"""


def convert(flags: Sequence[str]) -> int:
    """Convert one checkpoint, and print where the result lies.

    Args:
        flags: Two paths and the options, see `--help`.

    Returns:
        0, the exit status; what cannot be ends the program with 2.
    """
    parser = _parser()
    given = parser.parse_args(flags)
    from ..lightning_modules.checkpoints.conversion import convert as converted

    try:
        written = converted(
            given.source,
            given.target,
            prefix=given.prefix,
            force=given.force,
            accumulation=given.accumulation,
            batches_in_epoch=given.batches_in_epoch,
            batch_size=given.batch_size,
            dtype=given.dtype,
        )
    except (ValueError, TypeError, OSError) as error:
        parser.error(str(error))
    print(written)
    return 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="lightrainer convert",
        description="Turn a checkpoint file of lightning.Trainer into a folder checkpoint-N of the Trainer API, or "
        "such a folder into a file. A folder with the states of DeepSpeed's processes (stages 1 to 3 of ZeRO) becomes "
        "one with whole weights and a whole optimizer, without DeepSpeed. Only tensors and plain values are read.",
        epilog=_EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="IN", help="a file of Lightning, or a folder checkpoint-N")
    parser.add_argument(
        "target", metavar="OUT", help="the folder checkpoint-N, or the folder to write it into; or the file"
    )
    parser.add_argument("--force", action="store_true", help="replace what is there already")
    parser.add_argument("--prefix", default="model.", help="what the names of the model's weights begin with in a file")
    parser.add_argument(
        "--accumulation", type=whole(), default=1, help="batches of a step, for folders of the reference; 1 by default"
    )
    parser.add_argument(
        "--batches-in-epoch",
        type=whole(),
        help="for files from the middle of an epoch that do not tell how long one is",
    )
    parser.add_argument(
        "--batch-size", type=whole(), help="samples of a batch, for files that do not tell; the reference wants to know"
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="precision of the weights from states of DeepSpeed; by default that of its optimizer, float32",
    )
    return parser
