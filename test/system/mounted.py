"""A mount as a child process, for the system tests.

    with Mount(directory, node, "bucket/prefix", read_only=True) as mount:
        (mount.path / "name").read_bytes()

Runs `forebay mount --foreground`; leaving the block unmounts, and demands status 0 and no sanitizer's report. Whatever
happens, nothing stays mounted.
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess

import harness


def is_mounted(path):
    with open("/proc/self/mountinfo") as mounts:
        return any(line.split()[4] == str(path) for line in mounts)


class Mount(harness.Program):
    def __init__(self, directory, node, bucket, start=True, binary=None, **options):
        super().__init__(directory, "mount")
        self.binary = binary
        self.node = node
        self.bucket = bucket
        self.path = self.dir / "mnt"
        self.path.mkdir(exist_ok=True)
        self.options = options
        if start:
            self.start()

    def argv(self):
        where = [] if {"endpoint", "socket"} & self.options.keys() else ["--socket", self.node.socket_path]
        argv = [self.binary or self.node.binary, "mount", *where, "--foreground"]
        for name, value in self.options.items():
            flag = "--" + name.replace("_", "-")
            argv += [flag] if value is True else [flag, value]
        return argv + [self.bucket, self.path]

    def start(self):
        before = len(self.log())
        self.spawn(self.argv(), env=self.node.env)
        harness.wait_until(lambda: "passthrough" in self.log()[before:] or not self.running(), harness.READY_SECONDS, "mounted")
        assert self.running(), f"the mount ended:\n{self.log_tail()}"

    def serving(self):
        """The process that serves, the last child of the one that was started. None while another one takes over, and once
        all have ended."""
        try:
            pids = pathlib.Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        except OSError:
            return None
        return int(pids[-1]) if pids else None

    @contextlib.contextmanager
    def stopped(self):
        """Within it the process that serves does nothing: each of its threads has stopped."""
        pid = self.serving()
        os.kill(pid, signal.SIGSTOP)
        try:
            harness.wait_until(lambda: harness.has_stopped(pid), what="the process stopped", step=0.01)
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def wait_until_told(self, s3, bucket):
        """Until the node tells it what is changed in the bucket, of which it may hear a moment after it is ready. It begins with having the
        kernel ask again for every name: that is over then."""
        path = self.path / harness.random_name("told")
        for _ in range(2):  # what comes first is passed on before that
            assert not path.exists()
            s3.put_object(Bucket=bucket, Key=path.name, Body=b"")
            harness.wait_until(path.exists, what="the mount is told")
            s3.delete_object(Bucket=bucket, Key=path.name)
            harness.wait_until(lambda: not path.exists(), what="the mount is told of the removal")

    def open_files(self):
        """How many it has open, as it says itself: the kernel closes some only a moment after their close has returned."""
        done = subprocess.run([str(self.binary or self.node.binary), "mount", "--stats", "--json", str(self.path)], stdout=subprocess.PIPE,
                              env={**os.environ, **self.node.env}, check=True, timeout=300)
        return json.loads(done.stdout)["open_files"]

    def uses_passthrough(self):
        return "passthrough is used" in self.log()

    def stop(self):
        """Unmounts as a person would, who tries again while it is busy: what a program had open that has just ended may be for a moment
        longer. Gives the exit status of the mount's process."""
        if self.process is None:
            return None
        try:
            harness.wait_until(lambda: subprocess.run(["fusermount3", "-u", str(self.path)], stderr=subprocess.DEVNULL,
                                                      check=False).returncode == 0 or not self.running(), 60, "unmounted")
            status = self._finish()
        finally:
            if is_mounted(self.path):
                subprocess.run(["umount", "-l", str(self.path)], check=False)
            self.kill()
        report = harness.SANITIZER_REPORT.search(self.log())
        assert not report, f"the mount's log holds a report:\n{self.log()[max(0, report.start() - 200):][:8000]}"
        assert status == 0, f"the mount ended with status {status}:\n{self.log_tail()}"
        return status

    def clean_up(self):
        """After a kill -9 of the mount's process: takes the dead mount away."""
        self.kill()
        if is_mounted(self.path):
            subprocess.run(["umount", "-l", str(self.path)], check=False)
