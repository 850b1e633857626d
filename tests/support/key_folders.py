"""Keys of a small federation, servers and peers that answer in a thread, and waits with a limit."""

import shutil
import threading
import time
from datetime import UTC, datetime, timedelta

from cryptography.x509 import load_pem_x509_certificate

from fedlap.deploy.certificates import (
    create_request,
    decode_request,
    encode_certificate,
    sign_request,
)
from fedlap.deploy.keys import (
    Keys,
    create_authority,
    create_server_keys,
    install_certificate,
    link_register,
    load_private_key,
    request_certificate,
    sign_certificate,
    write_private_file,
)
from fedlap.deploy.peers.zenoh_peer import ZenohPeer
from fedlap.deploy.transport import PermanentError, UnreachableError
from fedlap.deploy.zenoh_client import ZenohClient
from fedlap.deploy.zenoh_server import ZenohServer

HOSTS = ("localhost", "127.0.0.1")
DAY, YEAR = timedelta(days=1), timedelta(days=365)
MOST_BYTES = 1_000_000
WAIT = 60.0  # seconds of any wait, on a machine with other work


def wait_until(condition, what, limit=WAIT):
    """Poll a condition and return its value as soon as it holds."""
    end = time.monotonic() + limit
    while not (value := condition()):
        assert time.monotonic() < end, f"after {limit} s still not: {what}"
        time.sleep(0.02)
    return value


def copy_authority(keys, other):
    """Make keys trust the authority of others."""
    shutil.copy(other.authority, keys.authority)


def sign_by_itself(keys):
    """Replace a certificate by one that its own key has signed."""
    name, hosts = keys.name, keys.facts.hosts
    request, _, _ = decode_request(create_request(load_private_key(keys.folder), name, hosts))
    subject = load_pem_x509_certificate(keys.certificate.read_bytes())
    signed = sign_request(request, 1, subject, load_private_key(keys.folder), DAY)
    write_private_file(keys.certificate, encode_certificate(signed))


class KeyFolders:
    """An authority in a folder, and the folders of its server, clients and peers."""

    def __init__(self, folder, name="authority"):
        self.folder, self.authority = folder, folder / name
        create_authority(self.authority, name, timedelta(days=3650))

    def sign_server(self, lifetime=YEAR, start=None, hosts=HOSTS, name="server"):
        """Create or renew the server's keys and return them."""
        create_server_keys(self.folder / name, self.authority, hosts, lifetime, start)
        return Keys.load_server(self.folder / name)

    def sign_client(self, name, lifetime=YEAR, start=None):
        """Create or renew the keys of a client and return them."""
        return Keys.load_client(self._sign(name, (), lifetime, start))

    def sign_peer(self, name, lifetime=YEAR, start=None, hosts=HOSTS, register=True):
        """Create or renew the keys of a peer and return them; without hosts it only dials."""
        folder = self._sign(name, hosts, lifetime, start)
        if register:
            link_register(folder, self.authority)
        return Keys.load_peer(folder)

    def _sign(self, name, hosts, lifetime, start):
        folder = self.folder / f"{'peer' if hosts else 'client'}-{name.encode().hex()}"
        signed, _ = sign_certificate(
            self.authority, request_certificate(folder, name, hosts), lifetime, start=start
        )
        install_certificate(folder, signed)
        return folder


class Renewal:
    """Certificates that are renewed in a thread, long before each of them expires.

    renew: signs the next certificates, and returns keys. lifetime: of each certificate. A loaded machine can
    delay a renewal by two thirds of it.
    """

    def __init__(self, renew, lifetime):
        self._renew, self._pause = renew, lifetime.total_seconds() / 3
        self.signed, self._ended, self._errors = [], threading.Event(), []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self.signed.append(self._renew())
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()
        assert not self._errors, self._errors

    def has_expired(self, count):
        """Return whether the first `count` generations of certificates have expired."""
        assert not self._errors, self._errors
        now = datetime.now(UTC)
        expired = [keys for keys in self.signed if all(key.facts.not_after < now for key in keys)]
        return len(expired) >= count

    def _run(self):
        try:
            while not self._ended.wait(self._pause):
                self.signed.append(self._renew())
        except Exception as error:
            self._errors.append(repr(error))


class Echo:
    """Answers every request of a transport with the name and the message, and refreshes its keys.

    A message b"wait" is answered when `release` is set, b"long" with as many bytes as the limit allows.
    """

    def __init__(self, transport, most_bytes):
        self.transport, self._most_bytes = transport, most_bytes
        self.release = threading.Event()
        self.received, self.refused, self.remarks, self.errors = [], [], [], []
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

    def close(self):
        """Stop to answer, and close the transport."""
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
                if request.is_too_long:
                    self.refused.append(request.name)
                    request.answer(b"too long")
                    continue
                self.received.append((request.name, request.content))
                if request.content == b"wait":
                    self._waiting.append(request)
                elif request.content == b"long":
                    request.answer(bytes(self._most_bytes))
                else:
                    request.answer(f"{request.name}: ".encode() + request.content)
        except Exception as error:
            self.errors.append(repr(error))


class EchoServer(Echo):
    """A server that answers every request."""

    def __init__(self, keys, names, listen="127.0.0.1:0", most_bytes=MOST_BYTES, lease=10.0):
        super().__init__(ZenohServer(listen, keys, names, most_bytes, lease=lease), most_bytes)

    def allow(self, names):
        """Change the accepted names."""
        self.transport.allow(names)


class EchoPeer(Echo):
    """A peer that answers every question of its neighbours, and asks them."""

    def __init__(self, name, keys, neighbours, listen="127.0.0.1:0", most_bytes=MOST_BYTES, lease=10.0):
        self.name, self.keys = name, keys
        super().__init__(ZenohPeer(name, listen, keys, neighbours, most_bytes, lease=lease), most_bytes)

    @property
    def address(self):
        """The address at which neighbours dial this peer."""
        return f"127.0.0.1:{self.port}"

    def ask(self, neighbour, content=b"a", timeout=WAIT):
        """Return a neighbour's answer."""
        return self.transport.ask(neighbour, content, timeout)

    def try_to_ask(self, neighbour, content=b"a", timeout=1.0):
        """Return a neighbour's answer, or None if there is none now.

        A link that is a moment old can look like a refusal on a busy machine.
        """
        try:
            return self.ask(neighbour, content, timeout)
        except (UnreachableError, PermanentError):
            return None

    def ask_in_thread(self, neighbour, content=b"wait", timeout=60.0):
        """Ask in a thread; return it and a list that gets the answer or the error."""
        outcomes = []

        def ask():
            try:
                outcomes.append(self.ask(neighbour, content, timeout))
            except (UnreachableError, PermanentError) as error:
                outcomes.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        return thread, outcomes


def connect(server, name, keys, port=None, most_bytes=MOST_BYTES, lease=10.0):
    """Return a client of a server, or of a relay's port."""
    return ZenohClient(f"127.0.0.1:{port or server.port}", name, keys, most_bytes, lease=lease)


def try_to_ask(client, content=b"a", timeout=10.0):
    """Return the answer, or None if there is none now. The pause before a client dials is 5 s at most."""
    try:
        return client.ask(content, timeout)
    except UnreachableError:
        return None


def wait_for_lasting_error(ask, limit=WAIT):
    """Ask until a question fails by PermanentError, and return that; links may break meanwhile."""

    def find_error():
        try:
            ask()
        except UnreachableError:
            return None
        except PermanentError as error:
            return error

    return wait_until(find_error, "a lasting error", limit)
