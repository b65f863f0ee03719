"""Pages and pictures of runs, and the parts of which other pages are made."""

from .callback import LossCurveCallback, RunReportCallback
from .curves import Curve, Panel, panels
from .page import render_page
from .pictures import draw_loss_curve, draw_loss_picture

__all__ = [
    "Curve",
    "LossCurveCallback",
    "Panel",
    "RunReportCallback",
    "draw_loss_curve",
    "draw_loss_picture",
    "panels",
    "render_page",
]
