"""Free ports: for the demo, which prints one (python3 free_port.py), and for the system tests, which import this."""

import random
import socket


def free_port(may_have=lambda port: True):
    """A port nobody listens on now, and that the kernel gives to nobody by itself: who wants it need not be quick. may_have: says of a port
    whether the caller wants it."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as text:
        first_given = int(text.read().split()[0])
    while True:
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", random.SystemRandom().randrange(10_000, first_given) if first_given > 20_000 else 0))
                if may_have(s.getsockname()[1]):
                    return s.getsockname()[1]
            except OSError:  # taken
                pass


if __name__ == "__main__":
    print(free_port())
