"""A page about a training run: curves over the steps, and what there is to say in numbers."""

from .callback import RunReportCallback
from .curves import Curve, Panel, panels
from .loss_picture import draw_loss_picture
from .page import render_page

__all__ = ["Curve", "Panel", "RunReportCallback", "draw_loss_picture", "panels", "render_page"]
