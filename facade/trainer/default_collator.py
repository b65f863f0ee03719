"""Which collator is used when none is given."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ...lightning_modules.data.collators import DataCollatorWithPadding, default_data_collator


def default_collator(processing_class: Any) -> Callable[[list[Any]], Any]:
    """Pad with the processing class where it is a tokenizer or a feature extractor; otherwise stack what there is."""
    return DataCollatorWithPadding(processing_class) if _pads(processing_class) else default_data_collator


def _pads(processing_class: Any) -> bool:
    if not callable(getattr(processing_class, "pad", None)):
        return False
    # Processors of `transformers` combine several modalities; the reference does not pad with them.
    processors = sys.modules.get("transformers.processing_utils")
    return processors is None or not isinstance(processing_class, processors.ProcessorMixin)
