"""A headless Chromium for the tests of the pages: Debian's, with a profile of its own, nothing fetched from outside."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
SCREENS = Path(os.environ.get("ANNCESTRY_SCREENS") or ROOT / ".ci" / "screens")
"""Where screenshots are kept."""

WAIT_S = 240
"""How long anything may take on a busy machine; nothing is claimed from how long it took."""

_MEANT = 'Dropping \\"fit-y\\" because spec has discrete height'
"""Vega-Lite's remark on charts that fit their place in width and are as high as their rows: so they are meant."""

DESKTOP, PHONE = (1280, 1000), (390, 844)
"""Width and height in CSS pixels."""

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class Browser:
    """One window, and what the tests ask of it."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def look(self, size: tuple[int, int] = DESKTOP, *, dark: bool = False, media: str = "screen") -> None:
        """The window's size in CSS pixels, the reader's colour scheme, and for screen or paper."""
        width, height = size
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})

    def open(self, page: Path, address: str = "") -> None:
        """Open a page from its file, with `address` (?query#hash) behind it, and wait until its charts are drawn."""
        self.console()
        self.driver.get("about:blank")
        self.driver.get(page.resolve().as_uri() + address)
        self.drawn()

    def drawn(self) -> None:
        """Wait until the page says that it has drawn all its charts."""
        self.until(lambda: self.js("return document.documentElement.dataset.drawn === 'all'"), "all charts drawn")

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait for something to come true."""
        return WebDriverWait(self.driver, WAIT_S, 0.05).until(lambda _: condition(), f"not within {WAIT_S} s: {what}")

    def js(self, code: str, *arguments: Any) -> Any:
        """What a script returns."""
        return self.driver.execute_script(code, *arguments)

    def all(self, selector: str) -> list[WebElement]:
        """The elements of a CSS selector that are shown."""
        return [element for element in self.driver.find_elements(By.CSS_SELECTOR, selector) if element.is_displayed()]

    def one(self, selector: str) -> WebElement:
        """The only element of a CSS selector."""
        (found,) = self.driver.find_elements(By.CSS_SELECTOR, selector)
        return found

    def click(self, element: WebElement) -> None:
        """Click on an element where the reader would, once it has been scrolled to."""
        self.js("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
        element.click()

    def console(self) -> list[str]:
        """Warnings and errors of the console since the last call: scripts that failed, what the policy refused."""
        said = [f"{entry['level']}: {entry['message']}" for entry in self.driver.get_log("browser")]
        return [message for message in said if _MEANT not in message]

    def screenshot(self, name: str, height: int | None = None) -> Path:
        """Keep what the window shows (or the page's first `height` pixels) as NAME.png; returns the file."""
        SCREENS.mkdir(parents=True, exist_ok=True)
        file = SCREENS / f"{name}.png"
        asked: dict[str, Any] = {"format": "png"}
        if height is not None:
            width = self.js("return innerWidth")
            whole = self.js("return document.documentElement.scrollHeight")
            asked["captureBeyondViewport"] = True
            asked["clip"] = {"x": 0, "y": 0, "width": width, "height": min(height, whole), "scale": 1}
        file.write_bytes(base64.b64decode(self.driver.execute_cdp_cmd("Page.captureScreenshot", asked)["data"]))
        return file


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A running Chromium with an empty profile in the folder `profile`; ended afterwards, with its children."""
    missing = [str(path) for path in (CHROMIUM, DRIVER) if not path.exists()]
    assert not missing, f"{' and '.join(missing)} missing: run make browser"
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "WARNING"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    try:
        driver.set_page_load_timeout(2 * WAIT_S)
        driver.set_script_timeout(WAIT_S)
        yield Browser(driver)
    finally:
        driver.quit()
