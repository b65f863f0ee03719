"""Real text that every machine with Python has: the sources of the standard library, as blocks
of tokens.
"""

from __future__ import annotations

import random
import sysconfig
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_FILE = "<|endoffile|>"

# Not the standard library proper, or tables rather than code.
SKIPPED_FOLDERS = frozenset(
    {
        "__pycache__",
        "dist-packages",
        "encodings",
        "ensurepip",
        "idlelib",
        "lib2to3",
        "pydoc_data",
        "site-packages",
        "test",
        "tests",
        "turtledemo",
    }
)


def python_sources(max_bytes: int, root: Path | None = None) -> list[Path]:
    """List Python files of the standard library, the same ones in the same order on every call.

    Args:
        max_bytes: stop before the files hold more than this many bytes together.
        root: the folder to look in; this interpreter's standard library by default.

    Raises:
        FileNotFoundError: the folder holds fewer than two such files (a Python that is packed into
            a zip file).
    """
    root = root or Path(sysconfig.get_paths()["stdlib"])
    files = [
        path
        for path in sorted(root.rglob("*.py"))
        if SKIPPED_FOLDERS.isdisjoint(path.relative_to(root).parts)
    ]
    # In a fixed random order, so that a small part of the library is about as varied as the whole.
    random.Random(0).shuffle(files)
    chosen, size = [], 0
    for path in files:
        size += path.stat().st_size
        if size > max_bytes:
            break
        chosen.append(path)
    if len(chosen) < 2:
        raise FileNotFoundError(
            f"Found {len(files)} Python files under {root}, of which {len(chosen)} fit into "
            f"{max_bytes} bytes, but at least two are needed: use a Python whose standard library "
            "is a plain folder, or read more of it."
        )
    return chosen


def split_by_file(files: Sequence[Path], every: int = 10) -> tuple[list[Path], list[Path]]:
    """Put every `every`-th file aside for validation: no file is in both, so no line of it was
    seen in training.
    """
    return [path for i, path in enumerate(files) if i % every], list(files[::every])


def build_tokenizer(files: Iterable[Path], vocab_size: int) -> Tokenizer:
    """Learn a byte-level BPE vocabulary of `vocab_size` tokens from the text of `files`; it can
    spell any text.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_FILE],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((_read(path) for path in files), trainer)
    return tokenizer


def to_blocks(files: Iterable[Path], tokenizer: Tokenizer, block_size: int) -> Dataset:
    """Join the tokens of all files, cut them into blocks and drop the last, shorter one.

    Returns:
        One row per block, with the columns `input_ids` and `labels`: the same `block_size` token
        numbers, since the model itself predicts each token from those before it.
    """
    texts = [_read(path) + END_OF_FILE for path in files]
    tokens = list(chain.from_iterable(encoding.ids for encoding in tokenizer.encode_batch(texts)))
    blocks = [
        tokens[i : i + block_size] for i in range(0, len(tokens) - block_size + 1, block_size)
    ]
    return Dataset.from_dict({"input_ids": blocks, "labels": blocks})


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
