"""Keys of a small federation, a server that answers in a thread, and waits with a limit."""

import threading
import time
from datetime import timedelta

from fedlap.deploy.keys import (
    ClientKeys,
    ServerKeys,
    create_authority,
    create_server_keys,
    install_certificate,
    request_certificate,
    sign_certificate,
)
from fedlap.deploy.transport import UnreachableError
from fedlap.deploy.zenoh_client import ZenohClient
from fedlap.deploy.zenoh_server import ZenohServer

HOSTS = ("localhost", "127.0.0.1")
YEAR = timedelta(days=365)
MOST_BYTES = 1_000_000


def wait_until(condition, limit, what):
    """Poll a condition and return its value as soon as it holds."""
    end = time.monotonic() + limit
    while not (value := condition()):
        assert time.monotonic() < end, f"after {limit} s still not: {what}"
        time.sleep(0.02)
    return value


class KeyFolders:
    """An authority in a folder, and the folders of its server and clients."""

    def __init__(self, folder, name="authority"):
        self.folder, self.authority = folder, folder / name
        create_authority(self.authority, name, timedelta(days=3650))

    def sign_server(self, lifetime=YEAR, start=None, hosts=HOSTS, name="server"):
        """Create or renew the server's keys and return them."""
        create_server_keys(self.folder / name, self.authority, hosts, lifetime, start)
        return ServerKeys.load(self.folder / name)

    def sign_client(self, name, lifetime=YEAR, start=None):
        """Create or renew the keys of a client and return them."""
        folder = self.folder / name.encode().hex()
        request = request_certificate(folder, name)
        signed, _ = sign_certificate(self.authority, request, lifetime, start=start)
        install_certificate(folder, signed)
        return ClientKeys.load(folder)


class EchoServer:
    """A server that answers every request with the client's name and the message, and refreshes its keys.

    A message b"wait" is answered when `release` is set, b"long" with one byte less than the limit.
    """

    def __init__(self, keys, names, listen="127.0.0.1:0", most_bytes=MOST_BYTES, lease=10.0):
        self.transport = ZenohServer(listen, keys, names, most_bytes, lease=lease)
        self.release = threading.Event()
        self.received, self.remarks, self.errors = [], [], []
        self._waiting, self._ended = [], threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def port(self):
        """The port of the transport."""
        return self.transport.port

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def allow(self, names):
        """Change the accepted names."""
        self.transport.allow(names)

    def close(self):
        """Stop to serve."""
        if not self._ended.is_set():
            self._ended.set()
            self._thread.join()
            self.transport.close()
        assert not self.errors, self.errors

    def _serve(self):
        refreshed = 0.0
        try:
            while not self._ended.is_set():
                if time.monotonic() - refreshed > 0.1:
                    self.remarks += self.transport.refresh()
                    refreshed = time.monotonic()
                if self.release.is_set():
                    for request in self._waiting:
                        request.answer(b"released")
                    self._waiting.clear()
                request = self.transport.receive(0.05)
                if request is None:
                    continue
                self.received.append((request.name, request.content))
                if request.content == b"wait":
                    self._waiting.append(request)
                elif request.content == b"long":
                    request.answer(bytes(self.transport.most_bytes))
                else:
                    request.answer(f"{request.name}: ".encode() + request.content)
        except Exception as error:
            self.errors.append(repr(error))


def connect(server, name, keys, port=None, most_bytes=MOST_BYTES, lease=10.0):
    """Return a client of a server, or of a relay's port."""
    return ZenohClient(f"127.0.0.1:{port or server.port}", name, keys, most_bytes, lease=lease)


def try_to_ask(client, content=b"a"):
    """Return the answer, or None if there is none now."""
    try:
        return client.ask(content, 1.0)
    except UnreachableError:
        return None
