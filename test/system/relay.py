"""A TCP relay before a server, which can fall silent: connections are accepted, bytes are taken, and nothing comes back."""

import selectors
import socket
import threading


class Relay:
    """relay = Relay(port of the server); relay.hush(after=BYTES) lets so many bytes of answers through on each connection and then none,
    also on those that come; relay.speak() lets all of it go on."""

    def __init__(self, port):
        self.server = ("127.0.0.1", port)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.lock = threading.Condition()
        self.quiet_after = None  # bytes; None: it speaks
        self.waiting = 0  # connections on which something is held back, or was asked and not answered
        self.ended = False
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with self.lock:
            self.ended = True
            self.lock.notify_all()
        self.listener.close()

    def hush(self, after=0):
        with self.lock:
            self.quiet_after = after

    def speak(self):
        with self.lock:
            self.quiet_after = None
            self.lock.notify_all()

    def held(self):
        """Connections that wait for an answer now, and are open at the other side."""
        with self.lock:
            return self.waiting

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with client, socket.create_connection(self.server) as server:
            threading.Thread(target=self._ask, args=(client, server), daemon=True).start()
            try:
                while data := server.recv(65536):
                    if not self._pass(client, data):
                        break
            except OSError:
                pass
            for one in (client, server):
                try:
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    @staticmethod
    def _ask(client, server):
        try:
            while data := client.recv(65536):
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def _pass(self, client, data):
        """False: the client has gone."""
        with self.lock:
            left = None if self.quiet_after is None else self.quiet_after
        if left is None:
            client.sendall(data)
            return True
        client.sendall(data[:left])
        with selectors.DefaultSelector() as gone:
            gone.register(client, selectors.EVENT_READ)
            with self.lock:
                self.waiting += 1
                try:
                    while self.quiet_after is not None and not self.ended:
                        self.lock.wait(0.05)
                        if gone.select(0) and not client.recv(1, socket.MSG_PEEK):
                            return False
                finally:
                    self.waiting -= 1
        client.sendall(data[left:])
        return True
