"""A real Chromium without a window, driven through its DevTools pipe with the standard library alone."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 60  # seconds
EXECUTE = "import os, sys; [os.dup2(int(sys.argv[n - 2]), n) for n in (3, 4)]; os.execv(sys.argv[3], sys.argv[3:])"


def find_browser() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One process. Messages go through file descriptors 3 and 4, with a zero byte behind each."""

    def __init__(self, program: str, profile: Path) -> None:
        reads, self._to = os.pipe()
        self._from, writes = os.pipe()
        theirs = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (reads, writes)]  # well above 3 and 4
        words = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        words += ["--no-first-run", "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", EXECUTE, *map(str, theirs), *words],
            pass_fds=theirs,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (reads, writes, *theirs):
            os.close(end)
        self._sent = 0
        self._unread = b""
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": parameters}
        os.write(self._to, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            answer = self._next(until)
            if answer.get("id") == self._sent:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self.events.append(answer)
        raise TimeoutError(method)

    def _next(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._from], [], [], max(0.0, until - time.monotonic()))
            content = os.read(self._from, 1 << 20) if ready else b""
            if not content:
                raise TimeoutError("the browser does not answer")
            self._unread += content
        message, _, self._unread = self._unread.partition(b"\0")
        return json.loads(message)

    def open(self, url: str, width: int = 1200, height: int = 900, dark: bool = False) -> Page:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Page(self, session, url, width, height, dark)

    def close(self) -> None:
        os.close(self._to)  # which it takes for goodbye
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._from)


class Page:
    def __init__(self, browser: Browser, session: str, url: str, width: int, height: int, dark: bool) -> None:
        self.browser, self.session = browser, session
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **parameters)

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression; of a promise, what it comes to."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str, seconds: float = 20) -> None:
        until = time.monotonic() + seconds
        while not self.ask(condition):
            assert time.monotonic() < until, f"never true: {condition}"
            time.sleep(0.05)

    def move(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def middle(self, element: str) -> tuple[float, float]:
        """Where an element, given as an expression, has its middle after it was scrolled into view."""
        box = f"((e) => {{ e.scrollIntoView({{block: 'center'}}); return e.getBoundingClientRect(); }})({element})"
        x, y = self.ask(f"((b) => [b.left + b.width / 2, b.top + b.height / 2])({box})")
        return x, y

    def screenshot(self, whole: bool = False) -> bytes:
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"])

    def printed(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    def _events(self, *methods: str) -> list[dict[str, Any]]:
        self.ask("0")  # whatever was said before this answer has arrived
        its = [event for event in self.browser.events if event.get("sessionId") == self.session]
        return [event["params"] for event in its if event["method"] in methods]

    def complaints(self) -> list[Any]:
        """Errors and warnings on the console, exceptions that nobody caught, whatever the browser refused to do."""
        said = self._events("Runtime.consoleAPICalled")
        return [
            *(event for event in said if event["type"] in ("error", "warning", "assert")),
            *self._events("Runtime.exceptionThrown", "Log.entryAdded"),
        ]

    def requests(self) -> list[str]:
        """Every address that was asked for, the page's own first."""
        return [event["request"]["url"] for event in self._events("Network.requestWillBeSent")]
