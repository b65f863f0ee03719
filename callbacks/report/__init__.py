"""A page about a training run: curves over the steps, and what there is to say in numbers."""

from .callback import RunReportCallback
from .curves import Curve, Panel, panels
from .page import render_page

__all__ = ["Curve", "Panel", "RunReportCallback", "panels", "render_page"]
