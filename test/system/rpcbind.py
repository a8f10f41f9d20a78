"""Stands in for the port mapper of a machine, for one NFS server: answers yes to every registration, and then is that server.

    python rpcbind.py PROGRAM ARGUMENTS...

Listens on /run/rpcbind.sock in a child process and executes the program in this one, so that signals reach it. Run it where /run
is not the machine's (unshare -m). Ends with the program.
"""

import ctypes
import os
import signal
import socket
import struct
import sys
import threading

PR_SET_PDEATHSIG = 1


def take(connection, n):
    data = b""
    while len(data) < n:
        piece = connection.recv(n - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def answer(connection):
    """Calls of ONC RPC version 2, one fragment each: an accepted, successful reply that holds TRUE."""
    try:
        while True:
            call = take(connection, struct.unpack(">I", take(connection, 4))[0] & 0x7FFFFFFF)
            transaction, procedure = struct.unpack(">I16xI", call[:24])
            reply = struct.pack(">6I", transaction, 1, 0, 0, 0, 0) + (struct.pack(">I", 1) if procedure else b"")
            connection.sendall(struct.pack(">I", 0x80000000 | len(reply)) + reply)
    except (EOFError, OSError):
        connection.close()


def main():
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("/run/rpcbind.sock")
    listener.listen()
    os.chmod("/run/rpcbind.sock", 0o666)
    parent = os.getpid()
    if os.fork() != 0:
        listener.close()
        os.execv(sys.argv[1], sys.argv[1:])
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    while os.getppid() == parent:
        connection, _ = listener.accept()
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


main()
