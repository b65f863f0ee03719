"""A Trainer that Ray sends to another process: what is left behind is made again there, without Ray being installed."""

import pickle

from small_searches import searcher
from tiny import tiny

from lightrainer import TrainerCallback
from lightrainer.callbacks import JITCheckpointCallback
from lightrainer.facade.trainer import portable


def model():
    return tiny()


class Kept(TrainerCallback):
    """A callback of the user."""


def test_a_trainer_that_has_trained_goes_to_another_process(tmp_path):
    made = searcher(tmp_path, model_init=model, callbacks=[Kept()], enable_jit_checkpoint=True)
    made.train()
    again, _ = portable.revive(pickle.loads(pickle.dumps(portable.portable(made))))
    assert made.model is not None
    assert made.callback_handler.model is made.model
    assert again is not made
    assert [type(one) for one in again.callback_handler.callbacks] == [
        type(one) for one in made.callback_handler.callbacks if not isinstance(one, JITCheckpointCallback)
    ]
    again.train()
    for ours, theirs in zip(again.model.parameters(), made.model.parameters(), strict=True):
        assert ours.equal(theirs)
