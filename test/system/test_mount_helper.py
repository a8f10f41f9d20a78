"""mount.forebay, what mount(8) runs for the type forebay: /etc/fstab, and options of `forebay mount` in -o."""

import errno
import os
import subprocess
import textwrap

import pytest

import harness
import mounted

pytestmark = pytest.mark.usefixtures("need_fuse")


@pytest.fixture
def helper(node, tmp_path):
    """The program by the name that mount(8) calls it by."""
    path = tmp_path / "sbin" / "mount.forebay"
    path.parent.mkdir()
    path.symlink_to(node.binary)
    return path


@pytest.fixture
def where(tmp_path):
    path = tmp_path / "mnt"
    path.mkdir()
    yield path
    while mounted.is_mounted(path):
        subprocess.run(["umount", "-l", path], check=True)


def ended(path):
    """Whether no process serves a mount there any more."""
    return subprocess.run(["pgrep", "-f", "--", str(path)], stdout=subprocess.DEVNULL, check=False).returncode != 0


def run_apart(tmp_path, helper, script):
    """`script` by sh in a mount namespace of its own, where mount(8) finds the helper; gives what it printed."""
    text = harness.LET_GO_OF_MOUNTS + f"\nset -e\nmount --bind {helper.parent} /usr/sbin\n" + textwrap.dedent(script)
    done = subprocess.run(["unshare", "--mount", "sh", "-c", text], capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_line_of_fstab_mounts(node, origin, helper, where, tmp_path):
    """`mount -a` mounts what fstab names, with its options, once: a second `mount -a` finds it mounted. umount(8) ends it, and its
    process. [Without the helper mount(8) knows no such file system; "defaults" and "_netdev" are no options of ours.]"""
    bucket = node.new_bucket(origin)
    origin.s3().put_object(Bucket=bucket, Key="dir/f", Body=b"held")
    fstab = tmp_path / "fstab"
    fstab.write_text(f"{bucket}/dir {where} forebay defaults,_netdev,nofail,x-systemd.automount,data={node.data},"
                     "attr_timeout=7s,passthrough=off,ro,nosuid 0 0\n")
    out = run_apart(tmp_path, helper, f"""
        mount -T {fstab} -a
        mount -T {fstab} -a
        cat {where}/f; echo
        grep {where} /proc/self/mountinfo
        tr '\\0' ' ' < /proc/$(pgrep -n -f -- {where})/cmdline; echo
        ! touch {where}/new 2>/dev/null
        umount {where}
    """)
    held, *lines = out.splitlines()
    mounts = [line for line in lines if " - fuse.forebay " in line]
    assert held == "held" and len(mounts) == 1, out
    assert " ro," in mounts[0] and "nosuid" in mounts[0] and f" {bucket}/dir " in mounts[0]
    assert "passthrough=off" in out
    harness.wait_until(lambda: ended(where), what="the mount's processes ended")


def test_both_types_are_the_same(node, origin, helper, where, tmp_path):
    """`mount -t fuse.forebay` is the helper of that name. -f mounts nothing."""
    (helper.parent / "mount.fuse.forebay").symlink_to(node.binary)
    bucket = node.new_bucket(origin)
    origin.s3().put_object(Bucket=bucket, Key="f", Body=b"1")
    out = run_apart(tmp_path, helper, f"""
        mount -f -t forebay -o data={node.data} {bucket} {where}
        ! grep {where} /proc/self/mountinfo
        mount -t fuse.forebay -o data={node.data} {bucket} {where}
        cat {where}/f
        umount {where}
    """)
    assert out == "1"
    harness.wait_until(lambda: ended(where), what="the mount's processes ended")


def test_remount_changes_what_the_kernel_keeps(node, origin, helper, where, tmp_path):
    """`mount -o remount,ro` refuses changes from then on, and rw allows them again; the process is the same."""
    (helper.parent / "mount.fuse.forebay").symlink_to(node.binary)  # which a remount without fstab asks for
    bucket = node.new_bucket(origin)
    out = run_apart(tmp_path, helper, f"""
        mount -t forebay -o data={node.data} {bucket} {where}
        serving=$(pgrep -n -f -- {where})
        touch {where}/one
        mount -o remount,ro {where}
        touch {where}/two 2>&1 | grep -o 'Read-only file system'
        grep -o '{where} ro,[a-z,]*' /proc/self/mountinfo
        mount -o remount,rw,noexec {where}
        touch {where}/two
        grep -o '{where} rw,[a-z,]*' /proc/self/mountinfo
        [ $(pgrep -n -f -- {where}) = $serving ]
        umount {where}
    """)
    refused, ro, rw = out.splitlines()
    assert refused == "Read-only file system" and "nosuid" in ro and "noexec" not in ro and "noexec" in rw, out
    assert {o["Key"] for o in origin.s3().list_objects_v2(Bucket=bucket)["Contents"]} == {"one", "two"}
    harness.wait_until(lambda: ended(where), what="the mount's processes ended")


def test_a_remount_by_fstab_begins_with_what_a_mount_does(node, origin, helper, where, tmp_path):
    """Where fstab says nothing of set-user-ID bits and devices they count neither after `mount` nor after `mount -o remount`; the helper is
    told by name, which mount(8) does not hand on. `relatime` is as it is anyway. [With flags of the options alone, as mount(8) gives
    them, a remount let both count; libfuse does not know relatime.]"""
    bucket = node.new_bucket(origin)
    fstab = tmp_path / "fstab"
    fstab.write_text(f"{bucket} {where} forebay defaults,relatime,data={node.data} 0 0\n")
    out = run_apart(tmp_path, helper, f"""
        mount -T {fstab} {where}
        touch {where}/one
        mount -T {fstab} -o remount,ro {where}
        touch {where}/two 2>&1 | grep -o 'Read-only file system'
        grep -o '{where} ro,[a-z,]*' /proc/self/mountinfo
        {helper} {bucket} {where} -o remount,rw,dev
        touch {where}/two
        grep -o '{where} rw,[a-z,]*' /proc/self/mountinfo
        umount {where}
    """)
    refused, ro, rw = out.splitlines()
    assert refused == "Read-only file system" and "nosuid" in ro and "nodev" in ro and "nosuid" in rw and "nodev" not in rw, out
    harness.wait_until(lambda: ended(where), what="the mount's processes ended")


def test_a_remount_that_cannot_be(node, origin, helper, where, tmp_path):
    """What was mounted with `ro` refuses changes until it is unmounted: a remount that would say otherwise fails. Another program's file
    system is left as it is. [Without check_writable the remount succeeds, and every change is refused all the same; without is_ours the
    other file system is read-only then.]"""
    bucket = node.new_bucket(origin)
    fstab, other = tmp_path / "fstab", tmp_path / "other"
    fstab.write_text(f"{bucket} {where} forebay ro,data={node.data} 0 0\n{bucket} {other} forebay ro,data={node.data} 0 0\n")
    other.mkdir()
    out = run_apart(tmp_path, helper, f"""
        mount -T {fstab} {where}
        mount -T {fstab} -o remount,rw {where} 2>&1 | grep -o 'mounted read-only'
        mount -T {fstab} -o remount,rw {where} 2>/dev/null || echo $?
        grep -o '{where} ro,' /proc/self/mountinfo
        umount {where}
        mount -t tmpfs tmpfs {other}
        {helper} {bucket} {other} -o remount,ro || echo $?
        touch {other}/f && echo written
        umount {other}
    """)
    assert out.splitlines() == ["mounted read-only", "32", f"{where} ro,", "32", "written"], out
    harness.wait_until(lambda: ended(where), what="the mount's processes ended")


def test_commas_in_what_is_mounted(node, origin, helper, where, tmp_path):
    """Values within double quotes may have commas, as mount(8) has it, and so may the prefix of a bucket, and backslashes. [By strsep
    alone the first is two options; without add_option's backslashes libfuse takes what stands behind a comma for an option.]"""
    bucket = node.new_bucket(origin)
    origin.s3().put_object(Bucket=bucket, Key="a,b\\c/f", Body=b"held")
    fstab, link = tmp_path / "fstab", tmp_path / "da,ta"
    link.symlink_to(node.data)
    fstab.write_text(f'{bucket}/a,b\\134c {where} forebay data="{link}",passthrough=off,nosuid 0 0\n')
    out = run_apart(tmp_path, helper, f"""
        mount -T {fstab} {where}
        cat {where}/f; echo
        grep {where} /proc/self/mountinfo
        umount {where}
    """)
    held, mount = out.splitlines()
    assert held == "held" and f" {bucket}/a,b\\134c " in mount and "nosuid" in mount, out
    harness.wait_until(lambda: ended(where), what="the mount's processes ended")


def test_options_of_the_mount_are_known_in_o(node, origin, where, tmp_path):
    """`forebay mount -o` takes each option by its name, with - or _, and says what is wrong with one as it does of the flag."""
    bucket = node.new_bucket(origin)
    log = tmp_path / "mount.log"
    node.cli("mount", "-o", f"log={log},read-only,umask=077,passthrough=off,attr_timeout=3s", bucket, where)
    with pytest.raises(OSError) as refused:
        (where / "f").write_bytes(b"")
    assert refused.value.errno == errno.EROFS
    assert where.stat().st_mode & 0o777 == 0o500 and "no passthrough" in log.read_text()
    node.cli("umount", where)
    for option, words in [("threads=1025", "-o threads"), ("passthrough=maybe", "auto"), ("attr_timeout", "attr_timeout=TIME"),
                          ("stats", "stats"), ("foreground", "foreground")]:
        done = node.cli("mount", "-o", option, bucket, where, check=False)
        assert (done.returncode, words in done.stderr) == (2, True), (option, done.stderr)
        assert not mounted.is_mounted(where)


def test_wrong_calls_of_the_helper(node, origin, helper, where):
    """Statuses are those that mount(8) documents: 1 for a wrong call, 32 for a mount that failed."""
    bucket = node.new_bucket(origin)
    data = f"data={node.data}"
    for arguments, status, words in [([bucket], 1, "BUCKET"), ([bucket, where, "-o", f"{data},remount"], 32, "remount"),
                                     ([bucket, where, "-N", "/proc/1/ns/mnt"], 1, "nsenter"), ([bucket, where, "-q"], 1, "-q"),
                                     ([bucket, where, "-o", f"{data},no_such_option=1"], 1, "options"),
                                     (["no-such-bucket", where, "-o", data], 32, "no-such-bucket"),
                                     ([bucket, where, "-o", f"data={where}"], 32, str(where))]:
        done = subprocess.run([helper, *arguments], capture_output=True, text=True, timeout=120, check=False, env=node.env)
        assert (done.returncode, words in done.stderr) == (status, True), (arguments, done.returncode, done.stderr)
        assert not mounted.is_mounted(where), arguments


def test_the_installation_has_the_helpers(tmp_path):
    """`make install` puts a link of each name into sbin, to the program in its place; by that name the program is the helper,
    with mount(8)'s exit statuses, and by its own it is not. [Without a name at install_symlink in meson.build, or in
    mount_helper_is.]"""

    def run(*command):
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    where = tmp_path / "inst"
    subprocess.run(["make", "-C", harness.ROOT, "-o", "all", "install"], env={**os.environ, "DESTDIR": str(where)}, check=True,
                   stdout=subprocess.DEVNULL)  # all is built
    [program] = where.rglob("bin/forebay")
    for name in ("mount.forebay", "mount.fuse.forebay"):
        link = program.parents[1] / "sbin" / name  # it dangles, as long as all lies below DESTDIR
        assert where / os.readlink(link).lstrip("/") == program
        called, absent = tmp_path / name, f"data={tmp_path}/absent"
        called.symlink_to(program)
        done = run(called)
        assert done.returncode == 1 and "mount.forebay" in done.stderr and "BUCKET[/PREFIX] DIR" in done.stderr, done
        assert run(called, "bucket", tmp_path, "-f", "-o", absent).returncode == 0  # nothing is mounted
        done = run(called, "bucket", tmp_path, "-o", absent)
        assert done.returncode == 32 and not mounted.is_mounted(tmp_path), done
    done = run(program)
    assert done.returncode == 2 and done.stderr.startswith("usage: forebay COMMAND"), done
