"""The page of a run or a table, served to this machine alone, and renewed as events arrive.

The server reads the folders it was given when it is asked, and holds nothing of them open: a run can be killed, go on
or be deleted meanwhile. There are two addresses, `/` and `/news`, and no way to name a file.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from reverie.errors import UserError
from reverie.report.blocks import Page
from reverie.report.html import page_body, whole_page
from reverie.report.page import check_paths, make_page
from reverie.report.run_reader import RunView
from reverie.runs.shared import UpperBounds

HOST = "127.0.0.1"
_NAMES = ("127.0.0.1", "localhost")  # by which a browser on this machine asks; any other name was made to point here
Signature = tuple[tuple[str, int, int], ...]


class Watched:
    """What there is to see at the moment. A run is read again only when one of its files has changed."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = list(paths)
        self._known: dict[Path, tuple[Signature, RunView]] = {}
        self._lock = threading.Lock()

    def look(self) -> Page:
        with self._lock:
            try:
                return make_page(self.paths, self._read)
            except FileNotFoundError:  # deleted while it was looked at
                return make_page(self.paths, self._read)

    def _read(self, path: Path) -> RunView:
        signature = _signature(path)
        known = self._known.get(path)
        if known is None or known[0] != signature:
            known = self._known[path] = (signature, RunView.of(path))
        return known[1]


def _signature(path: Path) -> Signature:
    """Changes when any file that the page is made of does, or an upper bound is trained beside it."""
    files = [path] if path.is_file() else [*path.glob("*"), *path.glob("tasks/*/*"), UpperBounds(path).cache.folder]
    found = []
    for file in sorted(files):
        try:
            facts = file.stat()
        except FileNotFoundError:
            continue
        if file.name != "checkpoint":
            found.append((str(file), facts.st_mtime_ns, facts.st_size))
    return tuple(found)


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer
    timeout = 30  # seconds that a silent connection is kept

    def do_GET(self) -> None:
        address, _, query = self.path.partition("?")
        if (self.headers.get("Host") or "").partition(":")[0] not in _NAMES:
            self._respond(403, "text/plain", "Only this machine is answered.")
        elif address == "/":
            self._respond(200, "text/html", whole_page(self.server.watched.look(), watching=True))
        elif address == "/news":
            self._tell(parse_qs(query).get("seen", [""])[0])
        else:
            self._respond(404, "text/plain", "There is nothing else here.")

    def _tell(self, seen: str) -> None:
        news = page_body(self.server.watched.look())
        if seen == news["version"]:
            self._respond(204, "text/plain", "")
        else:
            self._respond(200, "application/json", json.dumps(news))

    def _respond(self, code: int, kind: str, content: str) -> None:
        data = content.encode("utf-8", "backslashreplace")
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if code != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if code != 204:
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """A terminal is no place for a line every other second."""


class ReportServer(ThreadingHTTPServer):
    """Serves the page of runs and tables until it is closed: `with ReportServer(paths, 8765) as server: …`."""

    daemon_threads = True

    def __init__(self, paths: Sequence[Path], port: int) -> None:
        self.watched = Watched(paths)
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError):
            raise UserError(f"Port {port} cannot be used. Choose another `port`; 0 takes any that is free.") from None

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that was closed in the middle of an answer is nothing to complain of."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


def watch(
    runs: Sequence[Path | str] | Path | str,
    port: int = 8765,
    *,
    ready: Callable[[str], None] = lambda address: print(f"{address} (Ctrl-C ends it)"),  # noqa: T201
) -> None:
    """Serve the page of runs or tables to this machine, renewed while they go on, until Ctrl-C.

    `port` 0 takes any that is free; `ready` is told the address. The runs do not notice. Raises UserError where there
    is no run, or the port is taken.
    """
    paths = [Path(path) for path in ([runs] if isinstance(runs, str | Path) else runs)]
    check_paths(paths)
    with ReportServer(paths, port) as server:
        ready(server.address)
        with suppress(KeyboardInterrupt):
            server.serve_forever()
