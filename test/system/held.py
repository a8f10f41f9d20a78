"""What a node holds, as it says itself and as the kernel sees it: for tests that look whether it lets go of everything."""

import collections
import os
import re

CLOSE_WAIT = "08"  # the other side has closed, the node has not


def _sockets(node):
    """{inode: state} of the sockets that the kernel knows; those of Unix have none."""
    found = {}
    for table, column, state in (("tcp", 9, 3), ("tcp6", 9, 3), ("unix", 6, None), ("udp", 9, None)):
        with open(f"/proc/{node.pid}/net/{table}") as lines:
            for line in list(lines)[1:]:
                fields = line.split()
                found[fields[column]] = fields[state] if state else ""
    return found


def _descriptors(node):
    targets = []
    for name in os.listdir(f"/proc/{node.pid}/fd"):
        try:
            targets.append(os.readlink(f"/proc/{node.pid}/fd/{name}"))
        except FileNotFoundError:  # closed meanwhile
            pass
    return targets


def by_requests(node):
    """What requests hold that are over, by name and how much of it; empty: nothing. Uploads in parts that are open hold a handle; the
    request that asks does not count."""
    metrics, mine = node.metrics(), {("forebay_connections_active", frozenset({("via", "http")})): 1}
    wanted = ("forebay_connections_active", "forebay_handles", "forebay_sessions", "forebay_memory_budget_bytes")
    found = {}
    for (name, labels), value in metrics.items():
        if name in wanted and dict(labels).get("kind") != "total" and value > mine.get((name, labels), 0):
            found[f"{name} {dict(labels)}"] = value
    targets = _descriptors(node)  # before the table: what is opened in between is in that then
    sockets = _sockets(node)
    inodes = [one.group(1) for one in (re.fullmatch(r"socket:\[(\d+)\]", target) for target in targets) if one]
    still = set(_descriptors(node))
    gone = [i for i in inodes if f"socket:[{i}]" in still and sockets.get(i, CLOSE_WAIT) == CLOSE_WAIT]
    if gone:
        found["connections whose client has gone"] = len(gone)
    return found


def other_descriptors(node):
    """How many there are of each kind besides sockets, files of the node's directory, and what the kernel says of
    its workers (one of each, when it was first looked at): pipes, events, memory."""
    kinds = (re.sub(r"\[\d+\]", "", target) for target in _descriptors(node))
    return collections.Counter(kind for kind in kinds if kind != "socket:" and not kind.startswith(str(node.dir)) and
                               not re.fullmatch(r"/proc/\d+/task/\d+/stat", kind))
