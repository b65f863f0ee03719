"""Show attributes that `forwarded` makes in the API reference, which is read from the source:
an extension of griffe.
"""

from __future__ import annotations

import ast
from typing import Any

from griffe import Attribute, Docstring, ExprCall, Extension


class ForwardedDocs(Extension):
    """Give these attributes the description that is the second argument of `forwarded`."""

    def on_attribute_instance(self, *, attr: Attribute, **_: Any) -> None:
        """Read the description, unless the attribute has a docstring in the source."""
        call = attr.value
        if attr.docstring or not isinstance(call, ExprCall):
            return
        if str(call.function) == "forwarded" and len(call.arguments) > 1:
            description = ast.literal_eval(str(call.arguments[1]))
            attr.docstring = Docstring(description, parent=attr)
