"""docs/forebay.1 and --help: sound, and complete. That options and properties are worded as the code has them is checked
by scripts/man-doc."""

import json
import re
import subprocess

import harness

MANUAL = harness.ROOT / "docs/forebay.1"


def items(page, macro):
    """The words that the items of the page's lists show by this macro."""
    words = set()
    for line in re.findall(r"^\.It (.*)", page, re.M):
        for shown in re.findall(rf"\b{macro} ([^A-Z]*)", line + " "):
            words |= set(shown.replace("\\-", "-").replace(",", " ").split())
    return words


def helped(*command):
    return subprocess.run([harness.forebay_bin(), *command, "--help"], capture_output=True, text=True, timeout=200, check=True).stdout


def test_the_manual_is_sound():
    """mandoc finds no error and nothing that it warns of."""
    done = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", MANUAL], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_manual_has_every_command_and_option():
    """What `forebay --help` lists has an item, and so has each flag of serve."""
    page = MANUAL.read_text()
    commands = re.findall(r"^  ([a-z]+)  ", helped(), re.M)
    assert len(commands) > 20 and set(commands) <= items(page, "Cm"), set(commands) - items(page, "Cm")
    flags = re.findall(r"^ +--([a-z-]+)", helped("serve"), re.M)
    assert len(flags) > 15 and {f"-{flag}" for flag in flags} <= items(page, "Fl")


def test_the_manual_and_the_help_have_every_property(node, bucket):
    """What a bucket has can be looked up, in the manual and in `forebay bucket --help`: its name, its values, its default."""
    page, text = MANUAL.read_text(), helped("bucket")
    scratch = harness.random_name()
    node.cli("bucket", "create", scratch)
    for name in bucket.name, scratch:
        for key in json.loads(node.cli("bucket", "show", name, "--json").stdout)["properties"]:
            entry = re.search(rf"^  {re.escape(key)}=\S+((?:\n? {{3,}}.*)+)", text, re.M)
            assert entry and key in items(page, "Cm"), key
    words = " ".join(text.split())
    assert "(through or back; default through)" in words and "(default 128MiB; at most 4GiB)" in words
