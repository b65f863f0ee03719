"""Upload to the Hugging Face Hub: the repository, what is uploaded when, the model card.

`huggingface_hub` is only imported for uploads, downloads and cards. Not here: the methods of the
Trainer (`facade/trainer`). Imports arguments and distributed.
"""

from .facts import CardFacts
from .model_card import ModelCard
from .pushing import Pusher, PushInProgress
from .repository import Repository

__all__ = ["CardFacts", "ModelCard", "PushInProgress", "Pusher", "Repository"]
