"""The listeners of the test process itself."""

import os
import pathlib
import socket

import harness
from relay import Listener


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
