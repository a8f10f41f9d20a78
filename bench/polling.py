"""Measurements whose answers are short, once more where idle processors of a virtual machine look for work for a moment before they give
themselves back to the hypervisor: as Linux comes, and as not every machine is set up."""

import contextlib
import functools
import os

import lab as lab_module
import versus
from lab import say

AS_LINUX_COMES = 200_000  # drivers/cpuidle/governors/haltpoll.c
TITLE = "Idle processors polling: "


@contextlib.contextmanager
def polling():
    """Idle processors poll as long as Linux lets them by itself; as before afterwards. The setting is the machine's, and every side has it."""
    path = lab_module.HALT_POLL
    if not path.exists():
        raise versus.NotRun("this machine's idle processors have no haltpoll (a machine of its own, or another governor)")
    before = path.read_text()
    if int(before) >= AS_LINUX_COMES:
        raise versus.NotRun(f"this machine's idle processors poll for {int(before):,} ns already")
    if not os.access(path, os.W_OK):
        raise versus.NotRun(f"{path} may not be written")
    say(f"idle processors poll for {AS_LINUX_COMES:,} ns, {int(before):,} before")
    path.write_text(str(AS_LINUX_COMES))
    try:
        yield
    finally:
        path.write_text(before)


def once_more(measure):
    """The measurement under `polling`, its rows told apart by their titles."""
    @functools.wraps(measure)
    def polled(lab):
        with polling():
            return [{**row, "title": TITLE + row["title"]} for row in measure(lab)]
    polled.__doc__ = (f"{measure.__doc__.rstrip()}\n\n    Here while idle processors poll for up to {AS_LINUX_COMES // 1000} microseconds before they halt "
                      "(haltpoll.guest_halt_poll_ns, what Linux sets by itself in a virtual machine), on all sides alike; without that, waking a processor takes "
                      "the hypervisor.")
    return polled


MEASURES = {"small_polling": once_more(versus.small)}
