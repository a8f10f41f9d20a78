"""A listener in the test process, and a TCP relay before a server, which can fall silent: connections are accepted, bytes are taken, and
nothing comes back."""

import select
import socket
import threading


class Listener:
    """Each connection to a free port of the loopback goes to _serve(client), in a thread of its own."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.accepting = threading.Thread(target=self._accept, daemon=True)
        self.accepting.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # Only when nobody waits in accept is the descriptor's number free for others: a system call that is begun again, as after some
        # signals, looks the number up again, and would take the connections of whoever listens under it by then.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.accepting.join()
        self.listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()


class Relay(Listener):
    """relay = Relay(port of the server); relay.hush(after=BYTES) lets so many bytes of answers through on each connection and then none,
    also on those that come; relay.speak() lets all of it go on."""

    def __init__(self, port):
        self.server = ("127.0.0.1", port)
        self.lock = threading.Condition()
        self.quiet_after = None  # bytes; None: it speaks
        self.quiet = []  # of each connection that is: [something is held back, something was asked since]
        self.ended = False
        super().__init__()
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def __exit__(self, *_):
        with self.lock:
            self.ended = True
            self.lock.notify_all()
        super().__exit__()

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
            return sum(any(one) for one in self.quiet)

    def _serve(self, client):
        with client, socket.create_connection(self.server) as server:
            state = [False, False]
            asking = threading.Thread(target=self._ask, args=(client, server, state), daemon=True)
            asking.start()
            try:
                while data := server.recv(65536):
                    if not self._pass(client, data, state):
                        break
            except OSError:
                pass
            for one in (client, server):
                try:
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
            asking.join()  # nobody reads from a number that another connection has by then

    def _ask(self, client, server, state):
        try:
            while data := client.recv(65536):
                with self.lock:
                    state[1] = True
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def _pass(self, client, data, state):
        """False: the client has gone."""
        with self.lock:
            left = None if self.quiet_after is None else self.quiet_after
            state[:] = [left is not None and len(data) > left, False]
        if left is None:
            client.sendall(data)
            return True
        client.sendall(data[:left])
        gone = select.poll()
        gone.register(client, select.POLLRDHUP)  # also behind bytes that the server does not take
        with self.lock:
            self.quiet.append(state)
            try:
                while self.quiet_after is not None and not self.ended:
                    self.lock.wait(0.05)
                    if gone.poll(0):
                        return False
            finally:
                self.quiet = [one for one in self.quiet if one is not state]
        client.sendall(data[left:])
        return True
