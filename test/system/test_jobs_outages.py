"""Jobs and write-back whose origin's server is stopped, and started again later; keys that end in mid-job."""

import json
import tempfile
import threading

import pytest

import harness
import keyorigin
from test_jobs import checked, keys_of, show, start, until
from test_jobs_export import settings
from written_back import flushed, status

CONTENTS = {f"d/{i:02}": bytes([i]) * 20_000 for i in range(30)}


@pytest.fixture
def own(work):
    """An origin that may be stopped."""
    with harness.Origin(tempfile.mkdtemp(prefix="origin-", dir=work)) as running:
        yield running


def errors(node, job):
    return json.loads(node.cli("job", "errors", job, "--json").stdout)


def unanswered(node):
    return node.metric("forebay_origin_requests_total", code="0")


@pytest.mark.parametrize("kind", ["prefetch", "sync", "export", "import"])
def test_a_server_that_is_stopped_and_started(new_node, own, kind):
    """The origin's server is stopped in mid-job, and started when requests found nobody there: what failed by then is listed
    with its reason, no more counts as done than is there, and in the end, with a retry at most, all of it is. Slower jobs where a
    busy machine stops it too late."""
    node = new_node()
    away = kind in ("sync", "export")
    for rate in ("200kB/s", "50kB/s", "10kB/s"):
        truth = own.s3()
        name, scratch = node.new_bucket(own, retry="0s"), harness.scratch_bucket(node)
        for key, data in CONTENTS.items():
            (node.s3() if away else truth).put_object(Bucket=scratch if away else name, Key=key, Body=data)
        url = f"s3://{name}"
        words = {"prefetch": [name], "sync": [scratch, name], "export": [*settings(own), scratch, url],
                 "import": [*settings(own), url, scratch]}[kind]
        job = start(node, kind, *words, "--rate", rate, "--parallel", "2")
        until(node, job, lambda j: j["done_objects"] >= 3)
        before = unanswered(node)
        own.kill()
        harness.wait_until(lambda: unanswered(node) > before + 3 or show(node, job)["final"], what="nobody answers")
        own.start()
        if unanswered(node) > before + 3:
            break
    assert unanswered(node) > before + 3
    node.cli("job", "wait", job, "--quiet", check=False)
    now, truth = show(node, job), own.s3()

    def is_there():
        if kind == "prefetch":
            return checked(node, name)["cached_objects"]
        return len([k for k in keys_of(truth if away else node.s3(), name if away else scratch) if k in CONTENTS])

    assert 3 <= now["done_objects"] <= is_there() and len(errors(node, job)) == now["failed_objects"]
    said = [x["reason"] for x in [now, *errors(node, job)]]
    assert now["state"] == "done" or any(f"connect to 127.0.0.1 port {own.port}" in reason for reason in said), said
    if now["state"] != "done":
        node.cli("job", "retry" if now["state"] == "partly failed" else "resume", job)
        node.cli("job", "wait", job, "--quiet")
    after = show(node, job)
    assert (after["state"], after["done_objects"], after["failed_objects"], is_there()) == ("done", 30, 0, 30)
    place, where = (truth, name) if away else (node.s3(), name if kind == "prefetch" else scratch)
    assert all(place.get_object(Bucket=where, Key=key)["Body"].read() == data for key, data in CONTENTS.items())


def test_writes_while_the_server_is_stopped(new_node, own):
    """With write=back, writes and removals are acknowledged while no server is there at all, also by a node that was killed
    and started in that time, which tells what waits and why; all of it gets there when the server is started."""
    node, truth = new_node(), own.s3()
    name = node.new_bucket(own, write="back", retry="1s")
    truth.put_object(Bucket=name, Key="gone", Body=b"gone")
    assert node.s3().get_object(Bucket=name, Key="gone")["Body"].read() == b"gone"
    own.stop()
    before = unanswered(node)
    keys = sorted(CONTENTS)
    for key in keys[:15]:
        node.s3().put_object(Bucket=name, Key=key, Body=CONTENTS[key])
    node.s3().delete_object(Bucket=name, Key="gone")
    harness.wait_until(lambda: unanswered(node) > before, what="nobody answers")
    node.kill()
    node.start()
    for key in keys[15:]:
        node.s3().put_object(Bucket=name, Key=key, Body=CONTENTS[key])
    assert status(node, name)["objects"] == 31
    assert all(node.s3().get_object(Bucket=name, Key=key)["Body"].read() == data for key, data in CONTENTS.items())
    own.start()
    flushed(node, name)
    truth = own.s3()
    assert keys_of(truth, name) == keys
    assert all(truth.get_object(Bucket=name, Key=key)["Body"].read() == data for key, data in CONTENTS.items())


# ---- keys that end ----

class Ending(keyorigin.KeyOrigin):
    """An origin that takes requests with the session token `token` alone. With the n-th request for an object it becomes
    `then`. It answers `first` of them, and the others once it is told to `go_on`."""

    def __init__(self, status, first):
        super().__init__(Handler)
        self.token, self.then, self.left, self.refused, self.before, self.status = "one", "two", 0, 0, self.look, status
        self.first, self.asked, self.go_on = first, 0, threading.Event()

    def look(self, method, key):
        with self.lock:
            self.asked += bool(key)
            waits = self.asked > self.first
        if waits:
            self.go_on.wait(200)
        with self.lock:
            if key and self.left > 0:
                self.left -= 1
                if self.left == 0:
                    self.token = self.then


class Handler(keyorigin.Handler):
    def _is_refused(self):
        if self.headers.get("x-amz-security-token") == self.owner.token:
            return False
        with self.owner.lock:
            self.owner.refused += 1
        self.body()
        self.send(self.owner.status, b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>")
        return True

    def do_GET(self):
        return self._is_refused() or super().do_GET()

    def do_HEAD(self):
        return self._is_refused() or super().do_HEAD()

    def do_PUT(self):
        return self._is_refused() or super().do_PUT()


@pytest.mark.parametrize("kind, status", [("prefetch", 400), ("export", 400), ("export", 403), ("import", 403)])
@pytest.mark.parametrize("late", [False, True])
def test_keys_that_end_in_mid_job(new_node, tmp_path, kind, late, status):
    """The session token of a job ends in its midst, in the file of credentials there is another one by then: it goes on, and
    nothing fails. Renewed later, the job ends partly failed, the others with the service's word for it although answers to HEAD have
    none, and a retry does them. 400 is Amazon's status for that, 403 that of others. (Seen to fail where web_perform in web_conn.c does
    not send once more what was refused for that, where it does not ask why, and without can_wait in run.c.)"""
    def renew(token):
        (tmp_path / "new").write_text(f"[default]\naws_access_key_id=a\naws_secret_access_key=s\naws_session_token={token}\n")
        (tmp_path / "new").rename(tmp_path / "credentials")

    renew("one")
    node = new_node(env={"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"), "AWS_CONFIG_FILE": "/nonexistent",
                         "AWS_EC2_METADATA_DISABLED": "true"})
    name, scratch = harness.random_name(), harness.scratch_bucket(node)
    with Ending(status, first=40 if kind == "export" else 12) as source:  # of which an object takes several when it is written
        properties = {"origin.endpoint": source.endpoint, "origin.region": "us-east-1"}
        sets = [x for k, v in properties.items() for x in ("--set", f"{k}={v}")]
        for key, data in CONTENTS.items():
            if kind == "export":
                node.s3().put_object(Bucket=scratch, Key=key, Body=data)
            else:
                source.objects[name, key] = keyorigin.Object(data)
        if kind == "prefetch":
            node.create_bucket(name, f"s3://{name}", **properties)
        words = {"prefetch": [name], "export": [*sets, scratch, f"s3://{name}"], "import": [*sets, f"s3://{name}", scratch]}[kind]
        job = start(node, kind, *words, "--rate", "100kB/s", "--parallel", "2")
        until(node, job, lambda j: j["done_objects"] >= 3)
        if not late:
            renew("two")
        source.left = 5
        source.go_on.set()
        node.cli("job", "wait", job, "--quiet", check=False)
        now = show(node, job)
        assert source.refused > 0
        if late:
            assert now["state"] == "partly failed" and 3 <= now["done_objects"] < 30, now
            reasons = [x["reason"] for x in errors(node, job)]
            assert len(reasons) == now["failed_objects"] and all(f"{status} ExpiredToken: The provided" in x for x in reasons), reasons
            assert kind == "prefetch" or "ExpiredToken" in now["reason"]  # a manifest, or the directories of a scratch bucket
            renew("two")
            node.cli("job", "retry", job)
            node.cli("job", "wait", job, "--quiet")
        after = show(node, job)
        assert (after["state"], after["done_objects"], after["failed_objects"]) == ("done", 30, 0), errors(node, job)
        if kind == "prefetch":
            assert checked(node, name)["cached_objects"] == 30
        elif kind == "import":
            assert all(node.s3().get_object(Bucket=scratch, Key=key)["Body"].read() == data for key, data in CONTENTS.items())
        else:
            assert all(source.objects[name, key].data == data for key, data in CONTENTS.items())
