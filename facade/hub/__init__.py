"""Upload to the Hugging Face Hub: the repository, the uploads of a training, and the model card.

`huggingface_hub` is imported only for uploads, downloads and cards. The methods of the Trainer are
in `facade/trainer`. Imports `arguments` and `distributed`.
"""

from .facts import CardFacts
from .model_card import ModelCard
from .pushing import Pusher, PushInProgress
from .repository import Repository

__all__ = ["CardFacts", "ModelCard", "PushInProgress", "Pusher", "Repository"]
