"""A reverse proxy with TLS that passes one path prefix and answers 403 to everything else."""

import http.client
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOP = {"connection", "transfer-encoding", "keep-alive", "content-length"}  # headers of one connection


class PathProxy:
    """A proxy on loopback before a server on loopback; `folder` has server.pem, server.key and ca.pem."""

    def __init__(self, port, folder, prefix):
        self.refused = []
        trust = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        refused = self.refused

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                if not self.path.startswith(prefix):
                    refused.append(self.path)
                    return self.answer(403, [], b"")
                passed = {key: value for key, value in self.headers.items() if key.lower() not in HOP}
                connection = http.client.HTTPSConnection("127.0.0.1", port, context=trust, timeout=60)
                try:
                    connection.request("POST", self.path, body, passed)
                    reply = connection.getresponse()
                    return self.answer(reply.status, reply.getheaders(), reply.read())
                except OSError:  # The server is down.
                    return self.answer(502, [], b"")
                finally:
                    connection.close()

            do_GET = do_POST  # noqa: N815

            def answer(self, status, headers, body):
                self.send_response(status)
                for key, value in headers:
                    if key.lower() not in HOP:
                        self.send_header(key, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                """Write nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.pem", folder / "server.key")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_port
        self.trust = trust

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def ask(self, path):
        """Return the status of a request to a path through the proxy."""
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=self.trust, timeout=10)
        connection.request("POST", path, b"")
        status = connection.getresponse().status
        connection.close()
        return status
