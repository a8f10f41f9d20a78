"""The README tells the truth: its commands are run as they stand there, in other places and with a bucket of the test."""

import os
import re
import shlex
import subprocess
import sys
import urllib.request

import pytest

import harness
import mounted

pytestmark = pytest.mark.usefixtures("need_fuse")


def test_the_commands_for_your_own_bucket(origin, tmp_path):
    """A node with a disk of its own, a bucket whose keys come from the environment of the node, a mount, a program that
    reads there; the second epoch costs the origin nothing; the node says where things are; a check finds its disk."""
    bucket, body = origin.new_bucket(), harness.random_bytes(3 << 20, seed=1)
    for i in range(3):
        origin.s3().put_object(Bucket=bucket, Key=f"imagenet/{i}", Body=body)
    text = (harness.ROOT / "README.md").read_text()
    [block] = [b for b in re.findall(r"^```\n(.*?)^```$", text, re.M | re.S) if "forebay serve" in b]
    for there, here in {"/var/lib/forebay": tmp_path / "data", "/nvme0/forebay": tmp_path / "disk", "/data/images": tmp_path / "images",
                        "s3://my-training-bucket/": f"s3://{bucket}/"}.items():
        assert there in block
        block = block.replace(there, str(here))
    make, serve, *commands, train = [line for line in re.sub(r" +#.*", "", block).splitlines() if line]
    assert make == "scripts/setup && make && sudo make install" and serve.endswith(" &") and train == f"python train.py --data {tmp_path}/images"
    (tmp_path / "images").mkdir()
    (tmp_path / "train.py").write_text("import os, sys\nd = sys.argv[sys.argv.index('--data') + 1]\n"
                                       "print(sorted((f, len(open(os.path.join(d, f), 'rb').read())) for f in os.listdir(d)))\n")
    env = {**{k: v for k, v in os.environ.items() if not k.startswith("AWS_")}, "AWS_ACCESS_KEY_ID": origin.access_key,
           "AWS_SECRET_ACCESS_KEY": origin.secret_key, "AWS_REGION": harness.REGION, "AWS_ENDPOINT_URL": origin.endpoint,
           "PATH": f"{harness.forebay_bin().parent}:{os.environ['PATH']}", "FOREBAY_LISTEN": "127.0.0.1:0", "FOREBAY_WIRE": "127.0.0.1:0",
           "FOREBAY_RESERVE": "0", "FOREBAY_DATA": "", "FOREBAY_SOCKET": ""}

    def sh(script, **more):
        return subprocess.run(["sh", "-ec", script], env={**env, **more}, cwd=tmp_path, capture_output=True, text=True, timeout=300,
                              check=True).stdout

    data = tmp_path / "data"
    with open(tmp_path / "log", "wb") as log:
        node = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", *shlex.split(serve.removesuffix(" &"))], env=env,
                                stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        ready = re.search(r"ready: s3 (\S+)", node.stdout.readline())
        assert ready, (tmp_path / "log").read_text()

        def cost():
            with urllib.request.urlopen(ready[1] + "/-/metrics", timeout=200) as reply:
                return sum(float(line.split()[-1]) for line in reply.read().decode().splitlines()
                           if line.startswith("forebay_origin_read_bytes_total"))

        sh("\n".join(commands))
        epoch = f"{shlex.quote(sys.executable)} {train.removeprefix('python ')}"
        for _ in range(2):
            assert sh(epoch) == f"{[(str(i), len(body)) for i in range(3)]}\n"
            harness.wait_until(lambda: cost() == 3 * len(body), what="each byte came from the origin once")
        said = sh("forebay status", FOREBAY_DATA=str(data))
        assert f"{tmp_path}/images" in said and f"{tmp_path}/disk" in said and "passthrough" in said
        sh(f"forebay umount {tmp_path}/images")
    finally:
        if mounted.is_mounted(tmp_path / "images"):
            subprocess.run(["umount", "-l", tmp_path / "images"], check=False)
        node.terminate()
        node.wait(harness.STOP_SECONDS)
        node.stdout.close()
    assert node.returncode == 0, (tmp_path / "log").read_text()
    report = sh(f"forebay store check --json --data {data}")
    assert '"extents": 3,' in report and f'"bytes": {3 * len(body)},' in report and '"bad_blocks": 0' in report
    assert not (data / "cache").exists()
