"""A node that is killed and started again while the test has files of its mounts open.

What the test started itself would, before it begins, close what it inherited of them: each such close asks the mount, which may wait for
the very node that is about to be started, and of a bucket with an origin it publishes what is open. So this node is the child of another
process, which has nothing open.

    with restarted.Node(directory) as node:     # otherwise as harness.Node
        node.kill()
        node.start()
"""

import json
import pathlib
import subprocess
import sys
import threading

import harness


class Node(harness.Node):
    def __init__(self, directory, route="local", **options):
        super().__init__(directory, route=route, start=False, **options)
        self.lock, self.far_pid = threading.Lock(), None
        told = {"directory": str(self.dir), "route": route, "env": self.env, "binary": str(self.binary), "options": options}
        self.parent = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", sys.executable, __file__, json.dumps(told)],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.start()

    def _tell(self, what):
        with self.lock:
            self.parent.stdin.write(what + "\n")
            said = json.loads(self.parent.stdout.readline() or '{"error": "the process that starts it has ended"}')
        if "error" in said:
            raise RuntimeError(f"{what} of the node: {said['error']}")
        self.far_pid = said["pid"]
        self.endpoint, self.wire_address, self.socket_path = said["places"]
        return said["status"]

    @property
    def pid(self):
        return self.far_pid

    def running(self):
        return self.far_pid is not None and pathlib.Path(f"/proc/{self.far_pid}").exists()

    def start(self):
        self._tell("start")

    def kill(self):
        self._tell("kill")

    def terminate(self):
        return self._tell("terminate") if self.parent.poll() is None else None

    def __exit__(self, *_):
        try:
            self.stop()
        finally:
            self.parent.stdin.close()
            self.parent.wait(harness.STOP_SECONDS)
            self.parent.stdout.close()


def main():
    told = json.loads(sys.argv[1])
    node = harness.Node(told["directory"], told["route"], told["binary"], told["env"], start=False, **told["options"])
    try:
        for line in sys.stdin:
            try:
                status = getattr(node, line.strip())()
                places = [node.endpoint, node.wire_address, node.socket_path]
                said = {"status": status, "pid": node.process and node.pid, "places": places}
            except Exception as error:  # told to who asked
                said = {"error": repr(error)}
            print(json.dumps(said), flush=True)
    finally:
        node.kill()


if __name__ == "__main__":
    main()
