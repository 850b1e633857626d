"""A file server that fails as a test asks, and the folders that files are written to."""

import os
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from fedlap.data.download import OfficialFile, compute_sha256, require_sha256

CONTENT = np.random.default_rng(0).bytes(100_003)
OTHER = np.random.default_rng(1).bytes(100_003)
HTML = b"<!DOCTYPE html>\n<html><body>Please log in.</body></html>\n"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server, asked = self.server, self.headers["Range"]
        server.asked.append(asked)
        if server.status is None:
            return  # hangs up without a word
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and server.ranges else 0
        if server.status != 200 or start > len(server.content) - 1:
            self.send_error(server.status if server.status != 200 else 416)
            return
        body = server.content[start:]
        self.send_response(206 if start else 200)
        if server.length:
            self.send_header("Content-Length", str(server.length(body)))
        self.end_headers()
        cut = next(server.cuts, None)
        for place in range(0, len(body[:cut]), 10_000):
            self.wfile.write(body[:cut][place : place + 10_000])
            time.sleep(server.pause)
        if cut is not None and server.stalls:
            server.ended.wait(10)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    """Gives out `content`, of each answer at most as many bytes as the next of `cuts`; `asked` are ranges."""

    daemon_threads = False

    def __init__(self, content, cuts=(), *, ranges=True, status=200, length=len, pause=0.0, stalls=False):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.cuts, self.ranges, self.status = content, iter(cuts), ranges, status
        self.length, self.pause, self.stalls = length, pause, stalls
        self.asked, self.ended = [], threading.Event()
        self.address = f"http://127.0.0.1:{self.server_port}/file"

    def handle_error(self, *_):
        pass  # who asked has gone away


@pytest.fixture(name="serve")
def serving():
    running = []

    def start(*args, **settings):
        server = Server(*args, **settings)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        running.append((server, thread))
        return server

    yield start
    for server, thread in running:
        server.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(name="closed")
def closing():
    """An address where nobody listens, and nobody else can."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/file"


def asked_for(*addresses, content=CONTENT):
    return OfficialFile("file.bin", addresses, require_sha256(compute_sha256(content)))


def names_in(folder):
    return {path.name for path in folder.iterdir() if path.name != ".file.bin.lock"}


@pytest.fixture(name="folders")
def naming(monkeypatch, tmp_path):
    """Sets $FEDLAP_DATA to these names below a folder for this test, and gives their paths."""

    def name(*names):
        paths = [tmp_path / name for name in names]
        monkeypatch.setenv("FEDLAP_DATA", os.pathsep.join(map(str, paths)))
        return paths

    return name


def put(folder, content=CONTENT, name="set", file="file.bin"):
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / file).write_bytes(content)
