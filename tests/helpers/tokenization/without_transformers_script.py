"""Run by a test: everything a script does with a tokenizer, where transformers cannot be
imported.
"""

import sys


class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("transformers", "accelerate"):
            raise ModuleNotFoundError(f"{name} is not here", name=name)
        return None


sys.meta_path.insert(0, Nowhere())

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch.utils.data import DataLoader

from lightrainer import (
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
)

backend = Tokenizer(models.BPE(unk_token="<unk>"))
backend.pre_tokenizer = pre_tokenizers.Whitespace()
texts = ["a few words", "and a few more of them", "the last ones"]
backend.train_from_iterator(
    texts, trainers.BpeTrainer(special_tokens=["<pad>", "<unk>", "<mask>"], show_progress=False)
)
made = PreTrainedTokenizerFast(
    tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>", mask_token="<mask>"
)
made.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
made.save_pretrained("folder")
made = AutoTokenizer.from_pretrained("folder")
assert made.decode(made("a few")["input_ids"]).split() == ["a", "few"] or made.decode(
    made("a few")["input_ids"]
)
samples = [{**made(text), "label": index} for index, text in enumerate(texts)]
loader = DataLoader(samples, batch_size=3, collate_fn=DataCollatorWithPadding(made), num_workers=1)
(batch,) = list(loader)
assert batch["labels"].tolist() == [0, 1, 2]
assert batch.to("cpu")["input_ids"].shape == batch["attention_mask"].shape
masked = DataCollatorForLanguageModeling(made, seed=1, mlm_probability=0.5)(
    [made(text) for text in texts]
)
assert (masked["input_ids"] == made.mask_token_id).any()
assert isinstance(masked["labels"], torch.Tensor)
assert (
    made.apply_chat_template([{"role": "user", "content": "a few words"}], tokenize=False)
    == "user: a few words\n"
)
assert "transformers" not in sys.modules
print("works")
