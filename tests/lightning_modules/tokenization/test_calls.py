"""Several threads, worker processes, encodings, and the messages for wrong calls."""

import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.data import DataLoader

from helpers.tokenization.trained_tokenizers import backend, both_tokenizers, corpus
from lightrainer import BatchEncoding, PreTrainedTokenizerFast
from lightrainer.lightning_modules.tokenization.backend import settings_lock

TEXTS = ["another text to learn from", "words, and more words!", "日本語 text 123"] * 4


# --- threads and processes


@pytest.mark.parametrize("kind", ["WordPiece", "byte-level BPE"])
def test_threads_do_not_see_each_others_lengths(kind):
    """Padding and truncation are settings of the library's object: a call has to have them for
    itself.
    """
    mine, _ = both_tokenizers(kind)
    calls = [{}, {"padding": "max_length", "max_length": 64}, {"max_length": 5}]
    calls.append({"padding": True, "padding_side": "left"})
    texts = corpus()[:20]
    alone = [dict(mine(texts, **options)) for options in calls]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            concurrent = list(
                pool.map(lambda index: dict(mine(texts, **calls[index % 4])), range(200))
            )
    finally:
        sys.setswitchinterval(before)
    assert all(encoding == alone[index % 4] for index, encoding in enumerate(concurrent))


def test_workers_forked_in_the_middle_of_a_call_can_call_too():
    """The lock was held by a thread that the worker does not have."""
    mine, _ = both_tokenizers("WordLevel")
    held, done = threading.Event(), threading.Event()

    def hold():
        with settings_lock():
            held.set()
            done.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(30)
    try:
        with warnings.catch_warnings():
            # of forking with threads, which is what this is about
            warnings.simplefilter("ignore", DeprecationWarning)
            collate = lambda texts: mine(texts)["input_ids"]
            batches = list(
                DataLoader(TEXTS, batch_size=4, num_workers=1, collate_fn=collate, timeout=30)
            )
    finally:
        done.set()
        holder.join()
    assert batches == [mine(TEXTS[at : at + 4])["input_ids"] for at in (0, 4, 8)]


# --- encodings


def test_encodings_move():
    mine, _ = both_tokenizers("WordPiece")
    encoded = mine("a b", return_tensors="pt")
    assert encoded.to(torch.device("meta")) is encoded
    assert encoded["input_ids"].device.type == "meta"
    assert encoded.input_ids is encoded["input_ids"]


def test_encodings_without_a_text():
    bare = BatchEncoding({"input_ids": [1, 2, 3]})
    with pytest.raises(ValueError, match=r"word_ids\(\) needs the positions of tokens"):
        bare.word_ids()
    assert BatchEncoding({"a": [1, 2]}, tensor_type="pt")["a"].tolist() == [1, 2]


# --- errors and warnings


ABSENT = (
    "num_special_tokens_to_add max_len_single_sentence save_vocabulary push_to_hub "
    "train_new_from_iterator set_truncation_and_padding"
)


@pytest.mark.parametrize("name", ABSENT.split())
def test_absent_methods_of_a_tokenizer_name_what_to_install(name):
    mine, theirs = both_tokenizers("WordLevel")
    assert hasattr(theirs, name)
    with pytest.raises(AttributeError, match=rf"no attribute '{name}'.*pip install transformers"):
        getattr(mine, name)


@pytest.mark.parametrize("name", ["token_to_chars", "char_to_token", "n_sequences"])
def test_absent_methods_of_an_encoding_name_what_to_install(name):
    mine, theirs = (tokenizer("a b") for tokenizer in both_tokenizers("WordLevel"))
    assert hasattr(theirs, name)
    with pytest.raises(AttributeError, match=rf"nor a column '{name}'.*pip install transformers"):
        getattr(mine, name)


def test_tokenizer_warns_once_of_a_long_text(caplog):
    mine, _ = both_tokenizers("WordLevel", model_max_length=3)
    mine("a b c d", max_length=2, truncation=True)
    mine("a b c d", verbose=False)
    assert caplog.text == ""
    mine("a b c d")
    mine("a b c d e")
    assert caplog.text.count("more than the 3 that the model takes") == 1
    assert mine.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"]


def test_tokenizer_warns_of_an_unknown_argument(caplog):
    mine, _ = both_tokenizers("WordLevel")
    mine("a", trunkation=True)
    assert (
        "`trunkation`, which it does not know: it has no effect. Did you mean 'truncation'?"
        in caplog.text
    )


@pytest.mark.parametrize(
    ("given", "asked", "error", "message"),
    [
        ((None,), {}, ValueError, "There is nothing to tokenize"),
        ((["a", None],), {}, TypeError, r"\['a', None\] cannot be tokenized"),
        (
            ("a",),
            {"max_target_length": 3},
            NotImplementedError,
            r"max_target_length=\.\.\..*install",
        ),
        ((["a"], "b"), {}, TypeError, "`text_pair` is one text, but `text` a list"),
        ((["a"], ["b", "c"]), {}, ValueError, "longer than"),
        (
            ("a",),
            {"padding": "long"},
            ValueError,
            "'long' is not a valid PaddingStrategy.*'longest'",
        ),
        (
            (["a", "b c"],),
            {"return_tensors": "pt"},
            ValueError,
            "rows of 1, 2 values. Pass `padding=True`",
        ),
        (
            (["a", "b c"],),
            {"return_tensors": "np"},
            ValueError,
            "rows of 1, 2 values. Pass `padding=True`",
        ),
        (
            ("a",),
            {"padding": True, "truncation": True, "max_length": 5, "pad_to_multiple_of": 4},
            ValueError,
            "(4)",
        ),
    ],
)
def test_wrong_calls_are_explained(given, asked, error, message):
    mine, _ = both_tokenizers("WordLevel")
    with pytest.raises(error, match=message):
        mine(*given, **asked)


def test_tokenizer_without_pad_token():
    mine = PreTrainedTokenizerFast(tokenizer_object=backend("WordLevel"))
    for call in (lambda: mine(["a"], padding=True), lambda: mine.pad([{"input_ids": [1]}])):
        with pytest.raises(ValueError, match="needs a pad token"):
            call()
    mine.pad_token_id = 4
    assert mine(["a", "a b"], padding=True)["input_ids"][0][-1] == 4


def test_wrong_paddings_are_explained():
    mine, _ = both_tokenizers("WordLevel")
    for samples, options, message in (
        ({"ids": [1]}, {}, "column 'input_ids' to pad is missing; the columns are ids"),
        ({"input_ids": [[1], [2]], "x": [[1]]}, {}, "'x' has 1 rows, but 'input_ids' has 2"),
        ([{"input_ids": ["a"]}], {}, "holds 'a', a str"),
    ):
        with pytest.raises(ValueError, match=message):
            mine.pad(samples, **options)


def test_wrong_tokens_and_settings_are_explained():
    mine, _ = both_tokenizers("WordLevel")
    with pytest.raises(
        ValueError, match=r"'pad_tokens' is not a special token. Did you mean 'pad_token'"
    ):
        mine.add_special_tokens({"pad_tokens": "x"})
    for options, error, message in (
        ({"pad_token": 3}, TypeError, "`pad_token` is 3, a int"),
        ({"padding_side": "top"}, ValueError, "`padding_side` is 'top'"),
        ({"extra_special_tokens": 3}, ValueError, "`extra_special_tokens` is 3"),
        ({"tokenizer_object": None}, ValueError, "`tokenizer_object` is None"),
    ):
        with pytest.raises(error, match=message):
            PreTrainedTokenizerFast(**{"tokenizer_object": backend("WordLevel"), **options})


def test_tokenizer_subclass_with_own_input_names():
    class Mine(PreTrainedTokenizerFast):
        model_input_names = ["ids", "attention_mask"]
        padding_side = "left"

    tokenizer = Mine(tokenizer_object=backend("WordLevel"), pad_token="[PAD]")
    assert tokenizer.pad([{"ids": [1]}, {"ids": [1, 2]}])["ids"] == [[0, 1], [1, 2]]
