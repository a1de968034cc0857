"""A headless Chromium, spoken to over two pipes in its DevTools protocol: pages are opened, pointed at, printed."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from contextlib import suppress

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
WORDS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    *("--hide-scrollbars", "--remote-debugging-pipe"),
)
PATIENCE = 60  # seconds


def program():
    """Its path; None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page. `complaints` is what its console was told of errors and warnings, and what was thrown."""

    def __init__(self, profile):
        (its_ears, self._mouth), (self._ears, its_mouth) = os.pipe(), os.pipe()
        command = ["bash", "-c", f'exec "$@" 3<&{its_ears} 4>&{its_mouth}', "bash"]
        self._process = subprocess.Popen(
            [*command, program(), *WORDS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(its_ears, its_mouth),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(its_ears)
        os.close(its_mouth)
        self.complaints, self._events, self._heard, self._number, self._session = [], [], b"", 0, {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with suppress(OSError, EOFError):
            self._session = {}
            self.call("Browser.close")
        self._process.wait(timeout=PATIENCE)
        os.close(self._mouth)
        os.close(self._ears)

    def call(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters, **self._session}
        os.write(self._mouth, json.dumps(message).encode() + b"\0")
        answer = self._wait_for(lambda heard: heard.get("id") == self._number)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def open(self, path, width=1200, height=900, phone=False):
        scale = {"deviceScaleFactor": 2 if phone else 1, "mobile": phone}
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, **scale)
        self._events.clear()
        self.call("Page.navigate", url=f"file://{path}")
        if not any(event.get("method") == "Page.loadEventFired" for event in self._events):
            self._wait_for(lambda heard: heard.get("method") == "Page.loadEventFired")

    def value(self, expression):
        """Of an expression in JavaScript."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def point(self, selector, across=0.5, down=0.5, press=False):
        """Move the pointer over an element, and press it if asked to."""
        self.value(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        box = self.value(f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().toJSON()")
        at = {"x": box["x"] + across * box["width"], "y": box["y"] + down * box["height"]}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **at)
        for kind in ("mousePressed", "mouseReleased") if press else ():
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)

    def picture(self, path, whole=True):
        content = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(content))

    def printed(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"]))

    def _wait_for(self, holds):
        end = time.monotonic() + PATIENCE
        while True:
            message, mark, rest = self._heard.partition(b"\0")
            if mark:
                self._heard = rest
                heard = json.loads(message)
                self._note(heard)
                if holds(heard):
                    return heard
                continue
            assert select.select([self._ears], [], [], max(0, end - time.monotonic()))[0], "the browser does not answer"
            more = os.read(self._ears, 2**20)
            if not more:
                raise EOFError("the browser has ended")
            self._heard += more

    def _note(self, heard):
        method, told = heard.get("method"), heard.get("params", {})
        self._events.append(heard)
        if method == "Runtime.exceptionThrown":
            self.complaints.append(told["exceptionDetails"]["text"])
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(told["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(told["args"]))
