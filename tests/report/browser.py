"""Debian's Chromium, driven by Selenium; without it the tests that need it are skipped."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

WHERE = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
needs_browser = pytest.mark.skipif(
    not (all(WHERE.values()) and find_spec("selenium")),
    reason="no browser: apt-get install chromium chromium-driver, pip install selenium",
)


@contextmanager
def browser(width: int = 1400, height: int = 1000) -> "Iterator[Chrome]":
    """A headless browser that has no network and keeps what its console says."""
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = str(WHERE["chromium"])
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    flags += [
        "--hide-scrollbars",
        f"--window-size={width},{height}",
        "--host-resolver-rules=MAP * ~NOTFOUND",
    ]
    for flag in flags:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(WHERE["chromedriver"])))
    try:
        yield driver
    finally:
        driver.quit()
