"""Flame graphs: which functions of which programs had the processors while our side of a measurement was taken.

perf samples the whole machine, for a mount's time is also the reader's, the kernel's, the proxy's and the origin's, and keeps the stacks of
those moments in which ours is measured. Processor time by its clock, since virtual machines seldom have counters of cycles; user stacks by
what the compiler says of frames, which programs of distributions have. Samples cost some per cent, so that figures are never of such a run.
"""

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import zlib
from xml.sax.saxutils import escape

SAMPLES_PER_S = 499  # off the beat of timers
STACK_BYTES = 8192
IDLE = "swapper"
LEAST_SHARE = 0.01  # of the machine's time: what is narrower has no box
WIDTH, LINE, LETTER = 1200, 17, 6.6  # pixels
SECONDS = 600  # for perf to say what it has


class NoPerf(RuntimeError):
    """Why there can be no samples here."""


class Frame:
    """A function below those that called it: how many samples it was in, and what it called then."""

    def __init__(self):
        self.count, self.called = 0, {}

    def add(self, names):
        self.count += 1
        for name in names:
            self = self.called.setdefault(name, Frame())
            self.count += 1


def stacks(lines):
    """The stacks of `perf script -F comm,ip,sym`, outermost first, the program before them. A frame without a name is left out."""
    program, frames = None, []
    for line in itertools.chain(lines, [""]):
        line = line.rstrip()
        if program is None:
            program = line.strip() or None
        elif line:
            name = line.split(None, 1)[-1]
            frames += [] if name == "[unknown]" else [name]
        else:
            yield ["idle"] if program.startswith(IDLE) else [program, *reversed(frames)]
            program, frames = None, []


def folded(lines):
    root = Frame()
    for stack in stacks(lines):
        root.add(stack)
    return root


def programs(root):
    """{program: its share}, the largest first, those that have a box."""
    shares = {name: frame.count / root.count for name, frame in root.called.items()} if root.count else {}
    return {name: share for name, share in sorted(shares.items(), key=lambda one: -one[1]) if share >= LEAST_SHARE}


def boxes(root):
    """(depth, first sample, samples, name) of each frame that is wide enough, programs by their shares, functions by name."""
    def below(frame, depth, at, order):
        for name, child in sorted(frame.called.items(), key=order):
            if child.count >= LEAST_SHARE * root.count:
                yield depth, at, child.count, name
                yield from below(child, depth + 1, at, lambda one: one[0])
            at += child.count
    yield from below(root, 0, 0, lambda one: -one[1].count)


def colour(name):
    h = zlib.crc32(name.encode())
    return f"rgb({205 + h % 50},{90 + (h >> 8) % 120},{(h >> 16) % 70})"


def svg(root, title):
    """The picture. Each box is as wide as the share of samples that the function was in, and stands on the function that called it; a look at it
    with the mouse tells name and share."""
    drawn = list(boxes(root))
    height = LINE * (max((depth for depth, *_ in drawn), default=0) + 3)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="monospace" font-size="11">',
             f'<rect width="{WIDTH}" height="{height}" fill="#fffaf0"/>',
             f'<text x="4" y="13" font-size="12">{escape(title)}: {root.count} samples</text>']
    for depth, at, count, name in drawn:
        x, width, y = at / root.count * WIDTH, count / root.count * WIDTH, height - LINE * (depth + 1)
        letters = int((width - 4) / LETTER)
        text = "" if letters < 3 else name if len(name) <= letters else name[:letters - 2] + ".."
        parts.append(f'<g><title>{escape(name)}: {100 * count / root.count:.1f} %</title>'
                     f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{LINE - 1}" fill="{colour(name)}"/>'
                     + (f'<text x="{x + 2:.1f}" y="{y + 12}">{escape(text)}</text>' if text else "") + "</g>")
    return "\n".join(parts) + "\n</svg>\n"


class Recording:
    """perf, which samples until close(). It learns of programs that run already when it starts, and of later ones while it samples: one that
    waits in between knows neither names nor functions of what began meanwhile."""

    def __init__(self, data):
        self.data = data
        control, self.control = os.pipe()
        self.answers, answers = os.pipe()
        argv = ["perf", "record", "-q", "-a", "-e", "cpu-clock", "-F", str(SAMPLES_PER_S), "--call-graph", f"dwarf,{STACK_BYTES}", "-D", "-1",
                "--control", f"fd:{control},{answers}", "-o", data]
        try:
            self.process = subprocess.Popen(argv, pass_fds=(control, answers), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                            stderr=subprocess.PIPE, text=True)
        finally:
            os.close(control)
            os.close(answers)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self):
        """Returns when it samples."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.control, b"enable\n")
            if os.read(self.answers, 64):
                return
        raise NoPerf("perf record: " + (self.process.communicate(timeout=SECONDS)[1].strip() or "it ended").splitlines()[0])

    def close(self):
        """perf has ended, its file is whole."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.communicate(timeout=SECONDS)
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self.control)
            os.close(self.answers)

    def lines(self):
        """What was sampled, as text of perf's; the file is gone then."""
        done = subprocess.run(["perf", "script", "-i", self.data, "--no-inline", "-F", "comm,ip,sym"], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", timeout=SECONDS)
        if done.returncode != 0:
            raise NoPerf("perf script: " + (done.stderr.strip() or "failed").splitlines()[0])
        self.data.unlink()
        return done.stdout.splitlines()


def text(found):
    """For the terminal."""
    return "".join(f"  {one['title']}: {shares(one)}\n" for one in found["graphs"])


def shares(graph):
    """Whose the processors' time was."""
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in graph["programs"].items())


def titled(said, side, ours):
    """What a graph is called: what the run said before, without the number of rounds and the systems beside, and which of our sides it is."""
    text = re.sub(r", \d+ (pairs|rounds|times)( of \d+( systems)?)?(;.*)?", "", said)
    text = re.sub(f": {ours}(, .*)?$", "", text)
    return text if side == ours else f"{text}; {side}"


class Flames:
    """Of one run: sampling() around each sample of ours, written() at the end of each measurement."""

    def __init__(self, lab):
        if not shutil.which("perf"):
            raise NoPerf("perf is not installed (Debian: linux-perf)")
        self.lab, self.recordings = lab, {}

    @contextlib.contextmanager
    def sampling(self, title):
        one = Recording(self.lab.path("perf.data"))
        self.recordings.setdefault(title, []).append(one)
        try:
            yield
        finally:
            one.close()

    def drop(self):
        """What was not written, of a measurement that failed."""
        self.recordings = {}

    def written(self, directory, name, described):
        """Writes NAME-1.svg and so on, and NAME.json, which tells of them; those of before are gone. Gives what is in that."""
        directory.mkdir(parents=True, exist_ok=True)
        for old in directory.glob(f"{name}-*.svg"):
            old.unlink()
        graphs = []
        for i, (title, taken) in enumerate(self.recordings.items(), 1):
            root = folded(line for one in taken for line in [*one.lines(), ""])
            if root.count == 0:
                continue
            (directory / f"{name}-{i}.svg").write_text(svg(root, title))
            graphs.append({"title": title, "file": f"{name}-{i}.svg", "samples": root.count, "programs": programs(root)})
        self.recordings = {}
        found = {**described, "graphs": graphs}
        (directory / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
        return found
