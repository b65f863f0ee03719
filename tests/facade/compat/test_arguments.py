"""What reads arguments and compares them: the answers of the reference."""

import functools
import logging
import types

import pytest
from same_values import same
from transformers import hf_argparser as their_parser
from transformers import trainer_utils, training_args

from lightrainer.facade.compat import arguments


def test_words_and_numbers():
    for word in ("yes", "NO", "on", "0", "T", "f"):
        for to_bool in (True, False):
            assert same(arguments.str_to_bool(word, to_bool), training_args.str_to_bool(word, to_bool))
    with pytest.raises(ValueError, match="perhaps"):
        arguments.str_to_bool("perhaps")
    given = {"a": "True", "b": "12", "c": "1.5", "d": {"e": "false", "f": "1.2.3"}, "g": None, "h": "-3", "i": "1e5"}
    assert same(arguments._convert_str_dict(dict(given, d=dict(given["d"]))), training_args._convert_str_dict(given))
    assert arguments.log_levels == training_args.log_levels
    assert arguments.trainer_log_levels == training_args.trainer_log_levels
    for text in ("1", "two", "3"):
        ours = arguments.make_choice_type_function([1, "two"])(text)
        assert same(ours, their_parser.make_choice_type_function([1, "two"])(text))
    for word in ("yes", "F", True):
        assert arguments.string_to_bool(word) is their_parser.string_to_bool(word)
    for function in (len, lambda: 0, lambda a, b=1: 0, functools.partial(lambda a, b, c: 0, 1, c=2)):
        assert arguments.number_of_arguments(function) == trainer_utils.number_of_arguments(function)


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
