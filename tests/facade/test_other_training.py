"""A checkpoint of another model, optimizer or schedule is refused before a step, and both sides are named."""

import pytest
import torch
from tiny import At, same, tiny, told, trainer, weights

SAVING = {"save_strategy": "steps", "save_steps": 2}


def renamed():
    """The same layers, the last of which is called otherwise."""
    model = tiny()
    model.head = model.second
    del model.second
    model.logits = lambda x: model.head(model.dropout(model.norm(torch.tanh(model.first(x)))))
    return model


def test_a_checkpoint_that_lacks_weights_of_the_model_is_refused(tmp_path):
    """Before anything is touched; the model can say that they are to begin anew."""
    trainer(tmp_path, **SAVING).train()
    made = trainer(tmp_path, model=renamed(), **SAVING)
    before = weights(made.model)
    with pytest.raises(ValueError, match=r"checkpoint-2 has no values for 2 of 6.*head\.weight.*second\.weight"):
        made.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert same(weights(made.model), before)
    made.model._keys_to_ignore_on_load_missing = [r"^head\."]
    made.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert made.state.global_step == 4


def test_so_is_a_best_checkpoint(tmp_path):
    """It was written by this run, so that something renamed the weights on the way."""
    best = {"save_strategy": "epoch", "eval_strategy": "epoch", "load_best_model_at_end": True}

    def rename(made, *_):
        made.model.head, made.model.second = made.model.second, torch.nn.Identity()

    made = told(trainer(tmp_path, callbacks=[At("on_save", rename)], **best))
    with pytest.raises(ValueError, match=r"checkpoint-4 has no values for 2 of 6.*head\.weight"):
        made.train()
