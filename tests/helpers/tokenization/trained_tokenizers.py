"""Tokenizers of all models of the library, trained on a generated corpus, and random texts."""

import random
from functools import cache

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ALPHABETS = [
    "abcdefghij",
    "ABC XYZ",
    "0123456789",
    ".,!?'\"-()",
    "äöüßéñ",
    "日本語中文字",
    "мирдень",
    "🙂🚀👩‍👧",
]
ALPHABETS.append("e\u0301ﬁ\u200d\t\n  ")


def word(draw):
    return "".join(draw.choices(draw.choice(ALPHABETS), k=draw.randint(1, 8)))


def text(draw, longest=12):
    """Words of many scripts, with special and added tokens among them now and then; sometimes
    nothing at all.
    """
    some = [
        draw.choice(["[MASK]", "<new>", "[SEP]"]) if draw.random() < 0.05 else word(draw)
        for _ in range(draw.randint(0, longest))
    ]
    return draw.choice([" ", "  ", "", " "]).join(some)


def corpus():
    draw = random.Random(0)
    return [text(draw, 20) for _ in range(200)] + ["don't stop , he said . we 've it n't"] * 3


def _byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        corpus(),
        trainers.BpeTrainer(
            vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
        ),
    )
    return tokenizer


def _roberta():
    tokenizer = _byte_level()
    tokenizer.post_processor = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def _word_piece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(
        corpus(),
        trainers.WordPieceTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tokenizer


def _unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=SPECIAL, unk_token="[UNK]", show_progress=False
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def _word_level():
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(
        corpus(),
        trainers.WordLevelTrainer(vocab_size=200, special_tokens=SPECIAL, show_progress=False),
    )
    return tokenizer


KINDS = {
    "byte-level BPE": _byte_level,
    "RoBERTa": _roberta,
    "WordPiece": _word_piece,
    "Unigram": _unigram,
    "WordLevel": _word_level,
}
NAMED = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}


@cache
def tokenizer_json(kind):
    """The tokenizer.json, as text: each test makes its own tokenizer from it."""
    tokenizer = KINDS[kind]()
    tokenizer.add_tokens([AddedToken("<new>", lstrip=True)])
    return tokenizer.to_str()


def backend(kind):
    return Tokenizer.from_str(tokenizer_json(kind))


def both_tokenizers(kind, **options):
    """Our tokenizer and the reference's, of the same file."""
    from transformers import PreTrainedTokenizerFast as Reference

    from lightrainer import PreTrainedTokenizerFast

    options = {**NAMED, **options}
    return tuple(
        cls(tokenizer_object=backend(kind), **options)
        for cls in (PreTrainedTokenizerFast, Reference)
    )
