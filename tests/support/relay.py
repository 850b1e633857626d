"""A TCP relay between a client and a server, scripted by bytes and connections, not by time.

with Relay(server.port) as relay:
    client = ZenohClient(f"127.0.0.1:{relay.port}", …)
    relay.cut_after("up", 1000)      # reset connections after 1,000 more bytes from the client
    relay.truncate_after("down", 0)  # end connections in order, and lose the rest
    relay.stall()                    # forward nothing until `release`
    relay.hold("down", 3)            # always keep the last three chunks back until `release`
    relay.refuse()                   # close new connections at once until `release`
"""

import select
import socket
import struct
import threading
from collections import deque
from contextlib import suppress

CHUNK = 16384  # bytes
TICK = 0.02  # seconds between looks at the script while nothing arrives
DIRECTIONS = ("up", "down")  # from the client to the server, and back


class Relay:
    """A listening port that forwards every connection to a port of this machine."""

    def __init__(self, target_port, host="127.0.0.1"):
        self._target = (host, target_port)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._limits = dict.fromkeys(DIRECTIONS)  # bytes to forward before the connection ends, or None
        self._resets = True
        self._stalled, self._refusing = set(), False
        self._held = dict.fromkeys(DIRECTIONS, 0)
        self._directions = {}  # pairs of sockets, and the directions that are forwarded
        self.forwarded = dict.fromkeys(DIRECTIONS, 0)
        self.accepted, self.refused, self.ended = 0, 0, 0
        self._listener = socket.create_server((host, 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def cut_after(self, direction, count):
        """Reset the connection after `count` more bytes in a direction; later connections are whole."""
        self._end_after(direction, count, resets=True)

    def truncate_after(self, direction, count):
        """End the connection in order after `count` more bytes in a direction; the rest is lost."""
        self._end_after(direction, count, resets=False)

    def stall(self, *directions):
        """Forward nothing in these directions, or in both; connections stay open."""
        with self._lock:
            self._stalled.update(directions or DIRECTIONS)

    def hold(self, direction, chunks):
        """Keep the last `chunks` chunks of a direction back."""
        with self._lock:
            self._held[direction] = chunks

    def refuse(self):
        """Close new connections at once."""
        with self._lock:
            self._refusing = True

    def release(self):
        """Forward everything again, held chunks included."""
        with self._lock:
            self._limits = dict.fromkeys(DIRECTIONS)
            self._held = dict.fromkeys(DIRECTIONS, 0)
            self._stalled, self._refusing = set(), False

    def close(self):
        """End every connection and stop to listen."""
        self._ended.set()
        self._listener.close()
        with self._lock:
            pairs = list(self._directions)
        for pair in pairs:
            self._end(pair, resets=True)

    def _end_after(self, direction, count, resets):
        with self._lock:
            self._limits[direction], self._resets = count, resets

    def _accept(self):
        while not self._ended.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:  # the relay is closed
                return
            with self._lock:
                refusing = self._refusing
            if refusing:
                self.refused += 1
                self._end((client,), resets=True)
                continue
            try:
                server = socket.create_connection(self._target)
            except OSError:  # the server is down: the client sees its connection end
                self._end((client,), resets=True)
                continue
            self.accepted += 1
            pair = (client, server)
            with self._lock:
                self._directions[pair] = len(DIRECTIONS)
            for direction, source, sink in (("up", client, server), ("down", server, client)):
                threading.Thread(
                    target=self._forward, args=(direction, source, sink, pair), daemon=True
                ).start()

    def _forward(self, direction, source, sink, pair):
        """Forward chunks of one direction until either side ends or the script does."""
        waiting = deque()
        is_open = True
        try:
            while is_open or waiting:
                with self._lock:
                    stalled = direction in self._stalled
                    held = self._held[direction] if is_open else 0
                while not stalled and len(waiting) > held:
                    if self._send(direction, sink, waiting.popleft()):
                        return self._end(pair, self._resets)
                # A stalled relay reads nothing either, so that the sender's window fills as on a dead path.
                if is_open and not stalled and select.select([source], [], [], TICK)[0]:
                    chunk = source.recv(CHUNK)
                    is_open = bool(chunk)
                    waiting.extend([chunk] if chunk else [])
                elif stalled and self._ended.wait(TICK):
                    return self._end(pair, resets=True)
            sink.shutdown(socket.SHUT_WR)
        except (OSError, ValueError):  # a socket of the pair is closed
            self._end(pair, resets=True)
        finally:
            self._finish(pair)
        return None

    def _send(self, direction, sink, chunk):
        """Send a chunk, or a part of it; return whether the script ends the connection here."""
        with self._lock:
            limit = self._limits[direction]
            part = chunk if limit is None else chunk[:limit]
            is_last = limit is not None and len(chunk) >= limit
            self._limits[direction] = None if is_last or limit is None else limit - len(part)
            self.forwarded[direction] += len(part)
        sink.sendall(part)
        if is_last:
            self.ended += 1
        return is_last

    def _finish(self, pair):
        """Close both ends of a connection after the second of its directions has ended."""
        with self._lock:
            self._directions[pair] -= 1
            is_done = not self._directions[pair]
        if is_done:
            self._end(pair, resets=False)

    @staticmethod
    def _end(pair, resets):
        for end in pair:
            with suppress(OSError):  # it has ended already
                if resets:  # closing sends RST, and bytes that were not sent are lost
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                else:
                    end.shutdown(socket.SHUT_RDWR)
            end.close()
