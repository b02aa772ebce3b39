"""A local web server with a configurable answer for every path."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Answer requests as configured for their path, and record them."""

    server: Server

    def do_GET(self) -> None:
        self.server.prop.append((self.path, self.headers.get("Range")))
        self.server.answers.get(self.path, status(404))(self)

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def send(self, content: bytes, *, code: int = 200, length: int | None = None) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(content) if length is None else length))
        self.end_headers()
        self.wfile.write(content)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    # Closing must not wait for an answer that hangs on purpose.
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, Answer] = {}
        self.prop: list[tuple[str, str | None]] = []
        self.address = f"http://127.0.0.1:{self.server_port}/"

    def wait_for(self, requests: int) -> None:
        """Return once so many requests have come."""
        deadline = time.monotonic() + 30
        while len(self.prop) < requests:
            assert time.monotonic() < deadline, f"only {self.prop} came"
            time.sleep(0.01)


@contextmanager
def serving() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.shutdown()


def whole(content: bytes) -> Answer:
    """The file."""
    return lambda handler: handler.send(content)


def status(code: int) -> Answer:
    """Only a status."""
    return lambda handler: handler.send(b"sorry", code=code)


def unannounced(content: bytes) -> Answer:
    """The file without its length, up to the end of the connection."""

    def answer(handler: Handler) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(content)

    return answer


def breaking(content: bytes, *, after: int, ranges: bool = True) -> Answer:
    """At most `after` bytes an answer, although more are announced; parts are served if `ranges`."""

    def answer(handler: Handler) -> None:
        prop = handler.headers.get("Range")
        start = int(prop.removeprefix("bytes=").removesuffix("-")) if prop and ranges else 0
        rest = content[start:]
        handler.send(rest[:after], code=206 if start else 200, length=len(rest))

    return answer


def in_turn(*answers: Answer) -> Answer:
    """One answer after the other, the last one for ever."""
    left = list(answers)
    return lambda handler: (left.pop(0) if len(left) > 1 else left[0])(handler)


def hanging(content: bytes, *, after: int, until: threading.Event) -> Answer:
    """The first bytes, and then nothing until the event."""

    def answer(handler: Handler) -> None:
        handler.send(content[:after], length=len(content))
        handler.wfile.flush()
        until.wait(60)

    return answer
