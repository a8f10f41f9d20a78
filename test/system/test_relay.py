"""The listeners of the test process itself, and which ports they and others are given."""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import time

import harness
import served
from relay import Listener, Relay


class Deaf(Listener):
    def _serve(self, client):
        client.close()

    def waits(self):
        """Whether its thread sleeps: with nothing to take, in accept."""
        stat = pathlib.Path(f"/proc/self/task/{self.accepting.native_id}/stat").read_text()
        return stat.rpartition(") ")[2].startswith("S")


def test_a_listener_that_ended_takes_no_connections_of_the_next():
    """Also where the next one has its descriptor's number, and system calls of all threads are begun again, as glibc has them when the
    process changes its user. (Seen to fail where the listener was closed under who waited in accept: a test's origin answered with
    what another test's origin had to say.)"""
    with Deaf() as ended:
        harness.wait_until(ended.waits, harness.PATIENCE, "the listener waits")
        number = ended.listener.fileno()
    with socket.create_server(("127.0.0.1", 0)) as later:
        assert later.fileno() == number or ended.listener.fileno() < 0  # some other thread may have taken it
        os.seteuid(os.geteuid())
        with socket.create_connection(later.getsockname()) as client:
            later.settimeout(10)
            mine, _ = later.accept()
            with mine:
                mine.sendall(b"mine")
                client.settimeout(10)
                assert client.recv(4) == b"mine"
    assert not ended.accepting.is_alive()


class Paused(Relay):
    """What passes questions on is not through with a connection for half a second after that has ended."""

    def __init__(self, port):
        super().__init__(port)
        self.was_open = []  # at the end of that time

    def _ask(self, client, server, state):
        super()._ask(client, server, state)
        time.sleep(0.5)
        self.was_open.append(client.fileno() >= 0 and server.fileno() >= 0)


def test_a_relay_closes_no_connection_that_somebody_reads_from():
    """The descriptor's number would be another connection's, whose bytes he would read. (Seen to fail where _serve waits for nobody.)"""
    with socket.create_server(("127.0.0.1", 0)) as server, Paused(server.getsockname()[1]) as relay:
        with socket.create_connection(("127.0.0.1", relay.port)):
            server.accept()[0].close()
        harness.wait_until(lambda: relay.was_open, what="the end of the connection")
    assert relay.was_open == [True]


def test_a_server_that_is_slow_to_take_connections_loses_none():
    """As many as a node opens at once are there when it comes to them, and nobody has to try again, which takes a second. (Seen to fail with
    the five that socketserver lets wait.)"""
    with served.Server(served.Handler) as server, contextlib.ExitStack() as stack:
        server.server.shutdown()  # takes none from now on
        for _ in range(100):
            stack.enter_context(socket.create_connection(server.server.server_address, timeout=0.9))


ANOTHER = """import harness, random
ports = iter({ports})
random.SystemRandom = lambda: type("Chosen", (), {{"randrange": lambda *_: next(ports)}})
print(harness.free_port())
"""


def test_a_port_that_was_given_is_given_to_nobody_else():
    """Neither to this process again nor to another one that runs tests, as long as nobody listens there. (Seen to fail where free_port looks
    alone whether the port can be had.)"""
    given = [harness.free_port() for _ in range(50)]
    assert len(set(given)) == 50
    done = subprocess.run([sys.executable, "-c", ANOTHER.format(ports=given)], cwd=pathlib.Path(harness.__file__).parent, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=200)
    assert "StopIteration" in done.stderr or int(done.stdout) not in given, (done.stdout, done.stderr, given)
