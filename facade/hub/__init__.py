"""Upload to the Hugging Face Hub: the repository, what is uploaded when, the model card.

`huggingface_hub` is imported when something is uploaded, downloaded or written on a card, and not before. Not here: the
methods that people call (`facade/trainer/saving.py`). Imports protocols, arguments and distributed.
"""

from .facts import CardFacts
from .model_card import ModelCard
from .pushing import Pusher, PushInProgress
from .repository import Repository

__all__ = ["CardFacts", "ModelCard", "PushInProgress", "Pusher", "Repository"]
