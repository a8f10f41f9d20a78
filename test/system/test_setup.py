"""What the scripts install, with stand-ins for the programs that reach outside: apt-get, sudo, go. They work in a copy of the
scripts, so that nothing of this tree is touched."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

import harness

FAKES = {
    "id": "echo 1000",
    # Lists every package as installed but for $MISSING.
    "dpkg-query": '''while [ "$1" != -- ]; do shift; done; shift
for name; do [ "$name" = "$MISSING" ] || echo "$name installed"; done''',
    "apt-get": 'echo "apt-get $*" >>"$CALLS"',
    "sudo": '''echo "sudo $*" >>"$CALLS"; [ -z "$NO_SUDO" ] || exit 1
while [ "${1#-}" != "$1" ]; do shift; done; exec "$@"''',
    # Says that it is $GO_SAYS, gives every module the sum $GO_SUM, and builds a server that says what it shall.
    "go": '''case $1 in
env) echo "$GO_SAYS" ;;
mod) printf '{\\n\\t"Sum": "%s",\\n\\t"Dir": "%s"\\n}\\n' "$GO_SUM" "$PWD" ;;
install) mkdir -p "$GOBIN"; while [ $# -gt 1 ]; do [ "$1" != -ldflags ] || flags=$2; shift; done; name=${1%@*}; name=${name##*/}
printf '#!/bin/sh\\necho %s\\n' "${SAYS:-${flags##*=}}" >"$GOBIN/$name"; chmod +x "$GOBIN/$name" ;;
esac''',
}


@pytest.fixture
def tree(tmp_path):
    """run(script, *arguments, **environment) of a copy of the scripts; .root, .calls (what the stand-ins were asked)."""
    root = tmp_path / "tree"
    shutil.copytree(harness.ROOT / "scripts", root / "scripts")
    (root / "test/system").mkdir(parents=True)
    shutil.copy(harness.ROOT / "test/system/requirements.txt", root / "test/system")
    fakes = tmp_path / "bin"
    fakes.mkdir()
    for name, text in FAKES.items():
        (fakes / name).write_text("#!/bin/sh\n" + text + "\n")
        (fakes / name).chmod(0o755)
    calls = tmp_path / "calls"

    def run(script, *arguments, **environment):
        env = {**os.environ, "PATH": f"{fakes}:{os.environ['PATH']}", "CALLS": str(calls), "MISSING": "", "NO_SUDO": "",
               "XDG_CACHE_HOME": str(tmp_path / "cache"), **environment}
        calls.write_text("")
        return subprocess.run([root / "scripts" / script, *arguments], env=env, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=200)

    run.root, run.calls = root, lambda: calls.read_text().splitlines()
    return run


def make_venv(root):
    """As scripts/setup leaves it."""
    venv = root / ".deps/venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin/python").symlink_to("/usr/bin/python3")
    interpreter = pathlib.Path("/usr/bin/python3").resolve()
    (venv / "made-from").write_text((root / "test/system/requirements.txt").read_text() + f"{venv} {interpreter}\n")


def test_missing_packages_are_installed_by_sudo(tree):
    """Somebody who is not root, and may use sudo: only what is missing is installed; without sudo a line says what to do."""
    make_venv(tree.root)
    done = tree("setup")
    assert (done.returncode, done.stderr, tree.calls()) == (0, "", [])
    done = tree("setup", MISSING="rsync")
    assert done.returncode == 0 and done.stderr.startswith("setup: installing 1 Debian packages"), done.stderr
    called = [line for line in tree.calls() if line.startswith("apt-get")]
    assert [line.split()[-1] for line in called] == ["update", "rsync"]
    assert sum(line.startswith("sudo -n -- ") for line in tree.calls()) == 2
    done = tree("setup", MISSING="rsync", NO_SUDO="1")
    assert done.returncode == 1 and tree.calls() == ["sudo -n true"]
    assert done.stderr == ("setup: installing rsync needs root rights: run scripts/setup once as root, or from a terminal where sudo "
                           "can ask for a password\n")


def test_a_peer_that_could_not_be_installed_is_tried_again(tree):
    """The bench goes on without it. What is there is not installed twice."""
    make_venv(tree.root)
    shutil.copytree(harness.ROOT / "bench", tree.root / "bench", ignore=shutil.ignore_patterns("results"))
    python = tree.root / ".deps/venv/bin/python"
    python.unlink()
    python.write_text('#!/bin/sh\necho "python $*" >>"$CALLS"\nfor last; do :; done\n[ "$last" != "$REFUSED" ]\n')
    python.chmod(0o755)
    peer = [line for line in (tree.root / "bench/peers.txt").read_text().splitlines() if not line.startswith("#")][-1]
    done = tree("setup", "--bench", REFUSED=peer)
    assert done.returncode == 0 and f"{peer}: could not be installed" in done.stderr, done.stderr
    done = tree("setup", "--bench", REFUSED="")
    assert done.returncode == 0 and "could not be installed" not in done.stderr
    assert any(line.endswith(f" {peer}") for line in tree.calls()), tree.calls()
    done = tree("setup", "--bench", REFUSED=peer)
    assert (done.returncode, done.stderr, tree.calls()) == (0, "", [])


def pinned(name, text):
    return re.search(rf"^ *{re.escape(name)}=(\S+)$", text, re.M).group(1)


def test_the_server_is_built_only_from_bytes_with_the_pinned_sum(tree):
    server = tree.root / ".deps/bin/versitygw"
    right = pinned("server_sum", (tree.root / "scripts/origin-server").read_text())
    done = tree("origin-server", "build", GO_SAYS="go9.9.9", GO_SUM="h1:other=")
    assert done.returncode == 1 and not server.exists()
    assert f"has the sum 'h1:other=', not '{right}': not used" in done.stderr
    done = tree("origin-server", "build", GO_SAYS="go9.9.9", GO_SUM=right)
    assert done.returncode == 0 and server.exists(), done.stderr


def test_minio_is_built_only_from_bytes_with_the_pinned_sum(tree):
    """It is kept for the next clone, and says the pinned version; where it cannot be had, a line says so, and only who asks for it by name
    fails."""
    program, text = tree.root / ".deps/bin/minio", (tree.root / "scripts/bench-peers").read_text()
    right = pinned("minio_sum", text)
    for words, status in (([], 0), (["minio"], 1)):
        done = tree("bench-peers", "build", *words, GO_SAYS="go9.9.9", GO_SUM="h1:other=")
        assert done.returncode == status and not program.exists()
        assert f"has the sum 'h1:other=', not '{right}': not used" in done.stderr and "goes on without it" in done.stderr.splitlines()[-1]
        done = tree("bench-peers", "build", *words, GO_SAYS="go9.9.9", GO_SUM=right, SAYS="another")
        assert done.returncode == status and not program.exists() and "does not say that it is" in done.stderr
    done = tree("bench-peers", "build", GO_SAYS="go9.9.9", GO_SUM=right)
    assert done.returncode == 0 and pinned("minio_version", text) in subprocess.run([program], capture_output=True, text=True).stdout
    assert not (tree.root / ".deps/go").exists()
    for gone in (None, program):  # what is there is enough, and so is what was kept
        if gone:
            gone.unlink()
        done = tree("bench-peers", "build", GO_SAYS="go9.9.9", GO_SUM="h1:other=")
        assert (done.returncode, done.stderr) == (0, "") and program.exists()
    assert tree("bench-peers", "build", "nobody").returncode == 1


def test_a_toolchain_with_another_sum_is_not_used(tree):
    """Where Go is too old the pinned one is fetched."""
    go = tree.root / "scripts/lib/go.sh"
    go.write_text(go.read_text().replace(" /usr/local/go/bin/go /usr/lib/go/bin/go;", ";"))  # this machine's, if it has one
    arch = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()
    right = pinned(f"[{arch}]", go.read_text())
    done = tree("origin-server", "build", GO_SAYS="go1.19.8", GO_SUM="h1:other=")
    assert done.returncode == 1 and not (tree.root / ".deps/bin/versitygw").exists()
    assert "golang.org/toolchain" in done.stderr and f"has the sum 'h1:other=', not '{right}': not used" in done.stderr
