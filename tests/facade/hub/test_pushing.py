from tiny import trainer

def test_first(hub, tmp_path):
    made = trainer(tmp_path/"out", push_to_hub=True, hub_model_id="me/model", save_strategy="steps", save_steps=2, eval_strategy="steps", eval_steps=2, hub_strategy="checkpoint")
    made.train()
    print(hub.repos["me/model"].messages())
    print(sorted(hub.repos["me/model"].files()))
    print(hub.repos["me/model"].files()["README.md"].decode())
    assert 0
