"""A real browser opens the report: it shows everything, complains of nothing and asks the network for nothing."""

import os
import re
import shutil
import subprocess
from html import escape

import pytest
from made_up_runs import NAME, arguments, state
from matplotlib.image import imread

from lightrainer.callbacks import RunReportCallback, TrainerControl

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
QUIET = "headless no-sandbox no-first-run hide-scrollbars virtual-time-budget=2000 enable-logging=stderr v=0"
OFF = "gpu background-networking component-update sync default-apps extensions dev-shm-usage"
OPTIONS = [f"--{name}" for name in (*QUIET.split(), *(f"disable-{name}" for name in OFF.split()))]


def look(page, folder, *options):
    """Open a page; returns the DOM after its script has run, and what the browser said."""
    profile = folder / f"profile{len(list(folder.glob('profile*')))}"
    profile.mkdir()
    command = [str(BROWSER), *OPTIONS, f"--user-data-dir={profile}", *options, page.as_uri()]
    home = {"HOME": str(folder), "PATH": os.environ["PATH"]}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=home)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    RunReportCallback(picture=False).on_train_end(arguments(folder), state(), TrainerControl())
    return folder / "report.html"


def test_the_browser_shows_every_chart_and_complains_of_nothing(report, tmp_path):
    """With a script added that moves the pointer over the first chart and reports errors."""
    probe = """<script>
      const plot = document.querySelector(".plot"), box = plot.getBoundingClientRect();
      const at = {clientX: box.left + box.width / 2, clientY: box.top + 20, bubbles: true};
      plot.dispatchEvent(new PointerEvent("pointermove", at));
      const sizes = [...document.querySelectorAll(".plot svg path.line")].map(p => p.getBoundingClientRect());
      document.body.dataset.lines = sizes.filter(s => s.width > 100).length;
      document.body.dataset.wide = document.documentElement.scrollWidth <= innerWidth;
      document.body.dataset.fetched = performance.getEntriesByType("resource").length;
    </script></body>"""
    page = tmp_path / "probed.html"
    page.write_text(report.read_text(encoding="utf-8").replace("</body>", probe), encoding="utf-8")
    dom, said = look(page, tmp_path, "--window-size=1280,1400", "--dump-dom")
    assert escape(NAME, quote=False) in dom
    for title in ("Loss", "Accuracy", "Learning rate", "Gradient norm", "Samples per second", "Memory"):
        assert f"<h2>{title}" in dom
    assert "NaN at step 20" in dom
    assert 'data-lines="' in dom
    assert int(re.search(r'data-lines="(\d+)"', dom).group(1)) >= 18
    assert 'data-wide="true"' in dom
    assert 'data-fetched="0"' in dom
    tip = re.search(r'<div class="tip" style="[^"]*display: block[^"]*">(.*?)</div><script', dom).group(1)
    assert "step 150" in tip
    assert "training" in tip
    assert "evaluation" in tip
    assert "CONSOLE" not in said, said


@pytest.mark.parametrize(("size", "dark"), [((1280, 1400), False), ((500, 1600), True)], ids=["desktop", "phone"])
def test_the_picture_of_the_page_is_not_empty(report, tmp_path, size, dark):
    shot = tmp_path / "shot.png"
    scheme = ("--blink-settings=preferredColorScheme=0",) if dark else ()
    look(report, tmp_path, f"--window-size={size[0]},{size[1]}", f"--screenshot={shot}", *scheme)
    pixels = imread(shot)[..., :3]
    assert pixels.shape[1] == size[0]
    background = pixels[2, 2]
    assert (background.mean() < 0.3) == dark
    drawn = (abs(pixels - background).max(axis=2) > 0.25).mean()
    assert 0.01 < drawn < 0.6
    strong = (pixels.max(axis=2) - pixels.min(axis=2) > 0.45).mean(axis=1)
    assert (strong > 0).mean() > 0.3  # coloured curves down the page
