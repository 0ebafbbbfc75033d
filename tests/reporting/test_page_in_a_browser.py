"""The report page in a real browser: nothing is wider than the window, on a phone, on a desk, light and dark.

Any Chromium on the PATH serves (Debian: `apt-get install chromium`).
"""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from finished_runs import FinishedRun

CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
# The page itself may run no script, so a page around it measures it.
MEASURE = """<!doctype html><iframe src="report.html" style="border:0;width:{width}px;height:900px"></iframe><script>
onload = () => {{
  const page = document.querySelector("iframe").contentDocument;
  const wide = [...page.querySelectorAll("main *")].filter(
    each => each.getBoundingClientRect().right > {width} && !each.closest(".scroll, .across, details:not([open])")
  );
  document.body.textContent = JSON.stringify({{
    width: page.documentElement.scrollWidth,
    wide: wide.map(each => each.tagName + "." + each.className),
    charts: [...page.querySelectorAll(".frame > svg")].map(each => each.getBoundingClientRect().width > 100),
    background: page.defaultView.getComputedStyle(page.body).backgroundColor,
  }});
}}
</script>"""


@pytest.mark.full
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH")
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize(("scheme", "background"), [("light", "rgb(255, 255, 255)"), ("dark", "rgb(17, 22, 27)")])
def test_the_page_fits_every_window(run: FinishedRun, width: int, scheme: str, background: str) -> None:
    folder = run.plan.report_folder.absolute()
    run.report()
    (folder / "measure.html").write_text(MEASURE.format(width=width))
    found = measure(folder / "measure.html", scheme)
    assert found["width"] <= width  # less by the bar that scrolls it
    assert found["wide"] == []
    assert found["charts"] == [True, True]
    assert found["background"] == background


def measure(page: Path, scheme: str) -> dict[str, Any]:
    """Return what a page wrote into its body."""
    assert CHROMIUM is not None
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--virtual-time-budget=5000"]
    theme = ["--blink-settings=preferredColorScheme=" + ("0" if scheme == "dark" else "1")]
    command = [CHROMIUM, *options, *theme, f"--user-data-dir={page.parent / 'profile'}", "--dump-dom", page.as_uri()]
    text = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r"<body>(\{.*\})</body>", text, re.DOTALL)
    assert found, text[-500:]
    read: dict[str, Any] = json.loads(found[1])
    return read
