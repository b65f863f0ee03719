"""Uploading to the Hugging Face Hub."""

from dataclasses import dataclass, field

from .enums import HubStrategy


@dataclass(init=False, repr=False, eq=False)
class HubArguments:
    """The fields of `transformers.TrainingArguments` about the Hub."""

    push_to_hub: bool = field(
        default=False,
        metadata={
            "help": "Upload the model to the Hub whenever it is saved.",
            "becomes": "uploads beside the training, and after `save_model`",
        },
    )
    # Not in repr: the one that dataclasses write for a subclass would show it.
    hub_token: str | None = field(
        default=None,
        repr=False,
        metadata={
            "help": "Token for uploading; unset takes the one this machine knows.",
            "becomes": "the token of the upload",
        },
    )
    hub_private_repo: bool | None = field(
        default=None,
        metadata={
            "help": "Make a new repository private; unset does what the owner's account says.",
            "becomes": "`private` of a new repository",
        },
    )
    hub_model_id: str | None = field(
        default=None,
        metadata={
            "help": "Repository to upload to; unset takes the name of output_dir.",
            "becomes": "the repository's name",
        },
    )
    hub_strategy: HubStrategy | str = field(
        default="every_save",
        metadata={
            "help": "What to upload and when: 'end', 'every_save', 'checkpoint' or 'all_checkpoints'.",
            "becomes": "what is uploaded, and when",
        },
    )
    hub_always_push: bool = field(
        default=False,
        metadata={
            "help": "Upload again although the upload before is still under way.",
            "becomes": "no upload is left out, they wait for each other",
        },
    )
    hub_revision: str | None = field(
        default=None,
        metadata={
            "help": "Branch of the repository to upload to; made if it is not there.",
            "becomes": "the branch that is uploaded to, and downloaded from",
        },
    )
