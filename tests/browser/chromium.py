"""A browser that tests can hold: Debian's Chromium, asked over a pipe in the words of its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
KEYS = {  # name → code, number, text
    "Tab": ("Tab", 9, ""),
    "Enter": ("Enter", 13, "\r"),
    " ": ("Space", 32, " "),
    "ArrowLeft": ("ArrowLeft", 37, ""),
    "ArrowUp": ("ArrowUp", 38, ""),
    "ArrowRight": ("ArrowRight", 39, ""),
    "ArrowDown": ("ArrowDown", 40, ""),
    "Home": ("Home", 36, ""),
    "End": ("End", 35, ""),
}
DRAWN = """[...document.querySelectorAll('[data-chart]')].every(
  c => c._fullLayout && c.querySelector('svg') && c._fullLayout.width === Math.floor(c.clientWidth))"""
PATIENCE = 60  # seconds for one answer


class Chromium:
    """One process with one new profile; each page is a tab of it."""

    def __init__(self):
        self.profile = tempfile.mkdtemp(prefix="prifedsync-browser-")
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        self.process = subprocess.Popen(
            ["chromium", *FLAGS, f"--user-data-dir={self.profile}"],
            preexec_fn=lambda: _hand_over(to_browser, from_browser),
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._rest = b""
        self._number = 0
        self.events = []

    def ask(self, method, session=None, **words):
        """Send a command, and wait for its answer. Events that come before it are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": words}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE
        while True:
            found = self._next(until)
            if found.get("id") == self._number:
                assert "error" not in found, f"{method}: {found['error']}"
                return found["result"]
            self.events.append(found)

    def _next(self, until):
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            piece = os.read(self._in, 1 << 16)
            assert piece, "the browser has ended"
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def open(self, path: Path, **options):
        """A page in a tab of its own."""
        return Page(self, path, **options)

    def close(self):
        """End the process, and remove its profile."""
        self.ask("Browser.close")
        self.process.wait(20)
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self.profile, ignore_errors=True)


def _hand_over(to_browser, from_browser):
    """The browser reads from descriptor 3 and writes to 4. Both are moved out of the way first."""
    high = os.dup(to_browser), os.dup(from_browser)
    moved = [os.dup2(each, at) for each, at in zip(high, (100, 101), strict=True)]
    os.dup2(moved[0], 3)
    os.dup2(moved[1], 4)


class Page:
    """A tab. `problems`: what its console said as an error; `requests`: addresses that it asked for."""

    def __init__(self, browser, path, width=1280, height=900, dark=False, scale=1, scripts=True):
        self.browser = browser
        self.target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.ask("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.size(width, height, scale)
        self.media("dark" if dark else "light")
        self.ask("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.ask("Page.navigate", url=path.as_uri())
        self.until("document.readyState === 'complete' && location.protocol === 'file:'")
        if scripts:
            self.until(DRAWN)

    def ask(self, method, **words):
        return self.browser.ask(method, self.session, **words)

    def size(self, width, height, scale=1):
        phone = width < 600
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone)

    def media(self, scheme, medium="", motion="no-preference"):
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": motion},
        ]
        self.ask("Emulation.setEmulatedMedia", media=medium, features=features)

    def js(self, code):
        """The value of an expression; a promise is waited for."""
        found = self.ask("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, condition, seconds=20):
        """Wait until the expression is true."""
        end = time.monotonic() + seconds
        while not self.js(condition):
            assert time.monotonic() < end, f"never true: {condition}"
            time.sleep(0.02)

    def key(self, name, times=1, shift=False):
        """Press a key."""
        code, number, text = KEYS[name]
        same = {"key": name, "code": code, "windowsVirtualKeyCode": number, "modifiers": 8 if shift else 0}
        for _ in range(times):
            self.ask("Input.dispatchKeyEvent", type="keyDown", text=text, **same)
            self.ask("Input.dispatchKeyEvent", type="keyUp", **same)

    def move(self, x, y):
        """Move the mouse to a point of the window."""
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector):
        """Scroll an element into sight, and press the mouse on its middle."""
        x, y = self.middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def middle(self, selector):
        """The middle of an element in the window, after it was scrolled into sight."""
        return self.js(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); "
            "e.scrollIntoView({block: 'center', behavior: 'instant'}); const b = e.getBoundingClientRect(); "
            "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )

    def text(self, selector):
        """The text of the first element."""
        return self.js(f"document.querySelector({json.dumps(selector)}).textContent")

    def picture(self, path, whole=False):
        """A screenshot."""
        shot = self.ask("Page.captureScreenshot", captureBeyondViewport=whole, **self._area(whole))
        path.write_bytes(base64.b64decode(shot["data"]))

    def _area(self, whole):
        if not whole:
            return {}
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def pdf(self):
        """The page as it is printed."""
        made = self.ask("Page.printToPDF", preferCSSPageSize=True, printBackground=True)
        return base64.b64decode(made["data"])

    def _events(self, method):
        mine = [each for each in self.browser.events if each.get("sessionId") == self.session]
        return [each["params"] for each in mine if each["method"] == method]

    @property
    def problems(self):
        said = [each["entry"]["text"] for each in self._events("Log.entryAdded") if each["entry"]["level"] == "error"]
        thrown = [str(each["exceptionDetails"]) for each in self._events("Runtime.exceptionThrown")]
        printed = [
            str(each["args"]) for each in self._events("Runtime.consoleAPICalled") if each["type"] in ("error", "warning")
        ]
        return said + thrown + printed

    @property
    def requests(self):
        return [each["request"]["url"] for each in self._events("Network.requestWillBeSent")]

    def close(self):
        self.browser.ask("Target.closeTarget", targetId=self.target)
