"""Restoring what a versioned bucket had: at a time, one version, what has a tag."""

import datetime
import hashlib
import json
import os
import urllib.parse

import pytest

import harness
import origins
from test_jobs import keys_of, show, start, until
from test_jobs_export import settings

JANUARY = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)


def day(n):
    return JANUARY + datetime.timedelta(days=n - 1)


class Versioned(harness.Origin):
    """A real S3 server whose buckets keep versions. It tells the times of its files, and moves an old version into
    a new file when it is replaced; dated() gives each file the time at which its version was written."""

    def __init__(self, directory):
        super().__init__(directory, versions=True)

    def new_bucket(self, name=None):
        name = super().new_bucket(name)
        self.s3().put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
        return name

    def dated(self, name, times):
        """`times`: by version's id."""
        listed = self.s3().list_object_versions(Bucket=name)
        left = dict(times)
        for version in listed.get("Versions", []) + listed.get("DeleteMarkers", []):
            key, ident = version["Key"], version["VersionId"]
            digest = hashlib.sha256(key.encode()).hexdigest()
            old = self.dir / "versions" / name / digest[:2] / digest[2:4] / digest[4:6] / digest / ident
            path = self.dir / "data" / name / key if version["IsLatest"] else old
            at = left.pop(ident).timestamp()
            os.utime(path, (at, at))
        assert not left


@pytest.fixture(scope="module")
def versioned(work):
    with Versioned(work / "versioned-origin") as running:
        yield running


def put(s3, name, key, body, **more):
    return s3.put_object(Bucket=name, Key=key, Body=body, **more)["VersionId"]


@pytest.fixture
def kept(versioned):
    """A bucket with two objects of the 10th, one that was removed before, and what became of them on the 20th: one
    changed, one removed, one added. (bucket, client, {name: id of a version})"""
    s3, name = versioned.s3(), versioned.new_bucket()
    ids = {"old a": put(s3, name, "ckpt/a", b"old a", Tagging="step=100", ContentType="text/x", Metadata={"m": "1"}),
           "old b": put(s3, name, "ckpt/b", b"old b", Tagging="step=200"),
           "old gone": put(s3, name, "ckpt/gone", b"gone"),
           "gone": s3.delete_object(Bucket=name, Key="ckpt/gone")["VersionId"],
           "new a": put(s3, name, "ckpt/a", b"new a, which is longer"),
           "b": s3.delete_object(Bucket=name, Key="ckpt/b")["VersionId"],
           "c": put(s3, name, "ckpt/c", b"added", Tagging="step=100"),
           "gone again": put(s3, name, "ckpt/gone", b"and here again")}
    on = {"old a": 10, "old b": 10, "old gone": 5, "gone": 6, "new a": 20, "b": 20, "c": 20, "gone again": 20}
    versioned.dated(name, {ids[k]: day(n) for k, n in on.items()})
    return name, s3, ids


def contents(s3, name):
    """What there is but for the manifests."""
    return {key: s3.get_object(Bucket=name, Key=key)["Body"].read() for key in keys_of(s3, name)
            if ".forebay-import-" not in key}


def manifest(s3, name):
    """The lines of the one manifest, by key, and its head."""
    [key] = [k for k in keys_of(s3, name) if "/.forebay-import-" in "/" + k]
    head, *lines = s3.get_object(Bucket=name, Key=key)["Body"].read().decode().splitlines()
    return {urllib.parse.unquote(x.split("\t")[0]): x.split("\t")[1:] for x in lines}, head.split("\t")


def sha256(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def test_the_server_has_the_times(versioned, kept):
    """The origin of these tests tells of every version when it was written, in listings and to HEAD alike."""
    name, s3, ids = kept
    listed = {v["VersionId"]: v["LastModified"] for v in s3.list_object_versions(Bucket=name)["Versions"]}
    assert listed[ids["old a"]] == day(10) and listed[ids["new a"]] == day(20)
    assert s3.head_object(Bucket=name, Key="ckpt/a", VersionId=ids["old a"])["LastModified"] == day(10)


@pytest.mark.parametrize("date, there", [
    ("2026-01-10", {"a": b"old a", "b": b"old b"}),
    ("2026-01-19T23:59:59Z", {"a": b"old a", "b": b"old b"}),
    ("2026-01-10T01:00:00+01:00", {"a": b"old a", "b": b"old b"}),
    ("2026-01-05T12:00:00Z", {"gone": b"gone"}),
    ("2026-01-06", {}),
    ("2026-01-20", {"a": b"new a, which is longer", "c": b"added", "gone": b"and here again"}),
])
def test_as_of_a_date(node, scratch, versioned, kept, date, there):
    """import --as-of brings what was there then: what changed since as it was, what was removed since, nothing that
    was removed by then, and nothing newer; with its type, metadata and time. A manifest names the versions."""
    name, _, ids = kept
    s3 = node.s3()
    job = json.loads(node.cli("import", "--wait", "--json", *settings(versioned), "--as-of", date, f"s3://{name}/ckpt",
                              scratch + "/back").stdout)
    assert (job["state"], job["done_objects"], job["options"]) == ("done", len(there), [f"--as-of={date}"])
    assert contents(s3, scratch) == {"back/" + k: v for k, v in there.items()}
    lines, head = manifest(s3, scratch)
    assert head[:2] == ["# forebay import 1", f"s3://{name}/ckpt"]
    assert {k: v[:2] for k, v in lines.items()} == {k: [str(len(v)), sha256(v)] for k, v in there.items()}
    if there.get("a") == b"old a":
        assert [lines["a"][3], lines["b"][3]] == [ids["old a"], ids["old b"]]
        head = s3.head_object(Bucket=scratch, Key="back/a")
        assert (head["ContentType"], head["Metadata"]["m"]) == ("text/x", "1")
        assert head["LastModified"] == day(10)
        assert set(head["Metadata"]) == {"m"}  # the time is the file's own


def test_as_of_with_filters(node, scratch, versioned, kept):
    """The other filters choose among what was there then, by its sizes and times; a dry run counts."""
    name, *_ = kept
    then = ["import", "--wait", "--json", *settings(versioned), "--as-of", "2026-01-15"]
    dry = json.loads(node.cli(*then, "--dry-run", f"s3://{name}", scratch).stdout)
    assert (dry["total_objects"], dry["total_bytes"], dry["done_objects"]) == (2, 10, 0)
    assert keys_of(node.s3(), scratch) == []
    assert json.loads(node.cli(*then, "--newer", "2026-01-11", f"s3://{name}", scratch).stdout)["total_objects"] == 0
    assert json.loads(node.cli(*then, "--max-size", "5", "--exclude", "*b", "--newer", "2026-01-10",
                               f"s3://{name}", scratch).stdout)["done_objects"] == 1
    assert contents(node.s3(), scratch) == {"ckpt/a": b"old a"}
    listed = json.loads(node.cli(*then, "--list", "-", f"s3://{name}", scratch, stdin="ckpt/b\nckpt/c\n",
                                 check=False).stdout)
    assert (listed["state"], listed["done_objects"], listed["failed_objects"]) == ("partly failed", 1, 1)
    assert contents(node.s3(), scratch) == {"ckpt/a": b"old a", "ckpt/b": b"old b"}


def test_one_version(node, scratch, versioned, kept):
    """import --version brings that version of the object that the URL names, also where it was removed since."""
    name, _, ids = kept
    for key, version in (("a", "old a"), ("b", "old b")):
        job = json.loads(node.cli("import", "--wait", "--json", *settings(versioned), "--version", ids[version],
                                  f"s3://{name}/ckpt/{key}", scratch + "/one").stdout)
        assert (job["done_objects"], job["options"]) == (1, ["--version=" + ids[version]])
    assert contents(node.s3(), scratch) == {"one/a": b"old a", "one/b": b"old b"}
    first = [k for k in keys_of(node.s3(), scratch) if ".forebay-import-" in k][0]
    line = node.s3().get_object(Bucket=scratch, Key=first)["Body"].read().decode().splitlines()[1].split("\t")
    assert (line[0], line[2], line[4]) == ("a", sha256(b"old a"), ids["old a"])


def test_what_has_a_tag(node, scratch, versioned, kept):
    """import --tag brings what has it now, or with --as-of what had it then, among what the other filters choose;
    what lacks it is no part of the job."""
    name, s3, _ = kept
    put(s3, name, "ckpt/d", b"tagged", Tagging="step=200&kind=x")
    put(s3, name, "other/e", b"tagged, too", Tagging="step=200")
    tagged = ["import", "--wait", "--json", *settings(versioned), "--tag", "step=200"]
    dry = json.loads(node.cli(*tagged, "--dry-run", f"s3://{name}", scratch).stdout)
    assert (dry["total_objects"], dry["total_bytes"]) == (2, 17)
    job = json.loads(node.cli(*tagged, "--include", "ckpt/*", f"s3://{name}", scratch).stdout)
    assert (job["done_objects"], job["total_objects"], job["total_bytes"], job["skipped_objects"]) == (1, 1, 6, 0)
    assert contents(node.s3(), scratch) == {"ckpt/d": b"tagged"}
    lines, _ = manifest(node.s3(), scratch)
    assert list(lines) == ["ckpt/d"] and len(lines["ckpt/d"]) == 3
    other = harness.scratch_bucket(node)
    node.cli("import", "--wait", *settings(versioned), "--tag", "step=100", "--as-of", "2026-01-15", f"s3://{name}", other)
    assert contents(node.s3(), other) == {"ckpt/a": b"old a"}
    newest = harness.scratch_bucket(node)
    job = json.loads(node.cli("import", "--wait", "--json", *settings(versioned), "--tag", "step=100", "--newest", "1",
                              f"s3://{name}/ckpt", newest).stdout)
    assert contents(node.s3(), newest) == {"c": b"added"}
    assert (job["total_objects"], job["done_objects"]) == (1, 1)
    whole = harness.scratch_bucket(node)
    job = json.loads(node.cli("import", "--wait", "--json", *settings(versioned), "--tag", "step=100", "--newest", "1",
                              f"s3://{name}", whole).stdout)  # a folder with others: the count left them out, and the walk does not once more
    assert contents(node.s3(), whole) == {"ckpt/c": b"added"}
    assert (job["total_objects"], job["total_bytes"], job["done_objects"]) == (1, 5, 1)


def test_what_has_a_tag_at_another_node(node, scratch, new_node):
    """import --tag knows tags of forebay://, too: those that the other node shows. Versions it keeps none, and says so."""
    other = new_node()
    place, (access, secret) = harness.scratch_bucket(other), other.credentials
    for key, tags in (("ckpt/a", "step=100"), ("ckpt/b", "step=200&kind=x"), ("ckpt/c", "")):
        other.s3().put_object(Bucket=place, Key=key, Body=key.encode(), **({"Tagging": tags} if tags else {}))
    url = f"forebay://{other.endpoint.removeprefix('http://')}/{place}"
    sets = ["--set", f"origin.access_key={access}", "--set", f"origin.secret_key={secret}"]
    job = json.loads(node.cli("import", "--wait", "--json", *sets, "--tag", "step=200", url, scratch).stdout)
    assert (job["state"], job["done_objects"], job["failed_objects"]) == ("done", 1, 0)
    assert contents(node.s3(), scratch) == {"ckpt/b": b"ckpt/b"}
    refused = node.cli("import", *sets, "--as-of", "2026-01-15", url, scratch, check=False)
    assert refused.returncode in (1, 2) and "keeps no versions" in refused.stderr and len(refused.stderr.splitlines()) == 1


def test_tags_that_cannot_be_asked_for(new_node, new_shaper, versioned, kept):
    """An object whose tags the origin does not tell is a failure with its reason; a retry asks again, and what then
    turns out to lack the tag is no part of the job."""
    name, *_ = kept
    node, shaper = new_node(), new_shaper(versioned)
    scratch = harness.scratch_bucket(node)
    shaper.fault("status:403", match="tagging", count="1000000")
    done = node.cli("import", "--wait", "--json", *settings(versioned, shaper.endpoint), "--tag", "step=100",
                    f"s3://{name}", scratch, check=False)
    job = json.loads(done.stdout)
    assert (done.returncode, job["done_objects"], job["failed_objects"]) == (3, 0, 3)
    assert contents(node.s3(), scratch) == {}
    shaper.reset()
    node.cli("job", "retry", job["id"])
    node.cli("job", "wait", job["id"], "--quiet")
    job = show(node, job["id"])
    assert (job["state"], job["done_objects"], job["total_objects"], job["failed_objects"]) == ("done", 1, 1, 0)
    assert contents(node.s3(), scratch) == {"ckpt/c": b"added"}


def test_plain_import_with_a_manifest(node, scratch, versioned, kept):
    """import --manifest writes one without versions; the next import from there takes it for no data."""
    name, s3, _ = kept
    node.cli("import", "--wait", "--manifest", *settings(versioned), f"s3://{name}/ckpt", scratch)
    lines, _ = manifest(node.s3(), scratch)
    assert {k: v[1] for k, v in lines.items()} == {
        "a": sha256(b"new a, which is longer"), "c": sha256(b"added"), "gone": sha256(b"and here again")}
    assert all(len(v) == 3 for v in lines.values())
    put(s3, name, ".forebay-import-20260101T000000Z-1.tsv", b"#")
    other = harness.scratch_bucket(node)
    node.cli("import", "--wait", *settings(versioned), f"s3://{name}", other)
    assert sorted(contents(node.s3(), other)) == ["ckpt/a", "ckpt/c", "ckpt/gone"]
    assert keys_of(node.s3(), other) == ["ckpt/a", "ckpt/c", "ckpt/gone"]


def test_killed_in_the_middle(new_node, versioned):
    """kill -9 in the middle of a restore, twice, while the origin goes on changing: every object is the version of
    that date, done and counted once."""
    node, s3, name = new_node(), versioned.s3(), versioned.new_bucket()
    scratch = harness.scratch_bucket(node)
    old, times = {f"{i:02}": bytes([i]) * 40_000 for i in range(30)}, {}
    ids = {key: put(s3, name, key, data) for key, data in old.items()}
    times.update((ident, day(10)) for ident in ids.values())
    for key, data in old.items():
        times[put(s3, name, key, data[:-1])] = day(20)
    versioned.dated(name, times)
    job = start(node, "import", *settings(versioned), "--as-of", "2026-01-15", "--rate", "800kB/s", "--parallel", "2",
                f"s3://{name}", scratch)
    for least in (6, 14):
        until(node, job, lambda j, n=least: j["done_objects"] >= n)
        node.kill()
        put(s3, name, f"{29 - least:02}", b"of today")
        s3.delete_object(Bucket=name, Key=f"{28 - least:02}")
        node.start()
    node.cli("job", "wait", job, "--quiet")
    after = show(node, job)
    assert (after["state"], after["done_objects"], after["failed_objects"]) == ("done", 30, 0)
    assert contents(node.s3(), scratch) == old
    lines, _ = manifest(node.s3(), scratch)
    assert {k: (v[0], v[3]) for k, v in lines.items()} == {k: (str(len(v)), ids[k]) for k, v in old.items()}
    # What was there already when it was done again stands there by its MD5.
    assert all(v[1] in (sha256(old[k]), "md5:" + hashlib.md5(old[k]).hexdigest()) for k, v in lines.items())


def test_a_bucket_as_it_was(node, versioned, kept):
    """A bucket may stand before what its origin had then: it is read like any other, and not written. Another date
    is another origin: nothing cached of the former is left."""
    name, _, ids = kept
    view = harness.random_name()
    node.create_bucket(view, f"s3://{name}", validate="never", **versioned.properties(), **{"origin.as_of": "2026-01-15"})
    s3 = node.s3(retries={"max_attempts": 0})
    for _ in range(2):
        assert contents(s3, view) == {"ckpt/a": b"old a", "ckpt/b": b"old b"}
    with pytest.raises(s3.exceptions.NoSuchKey):
        s3.get_object(Bucket=view, Key="ckpt/c")
    assert set(s3.head_object(Bucket=view, Key="ckpt/a")["Metadata"]) == {"m"}
    with pytest.raises(s3.exceptions.ClientError) as refused:
        s3.put_object(Bucket=view, Key="ckpt/a", Body=b"x")
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403, refused.value
    with pytest.raises(s3.exceptions.ClientError):
        s3.delete_object(Bucket=view, Key="ckpt/a")
    back = node.cli("bucket", "set", view, "write=back", check=False)
    assert back.returncode == 2 and "read-only" in back.stderr
    assert node.cli("bucket", "set", view, "origin.as_of=never", check=False).returncode == 2
    node.cli("bucket", "set", view, "origin.as_of=2026-01-20")
    assert s3.get_object(Bucket=view, Key="ckpt/a")["Body"].read() == b"new a, which is longer"
    assert sorted(contents(s3, view)) == ["ckpt/a", "ckpt/c", "ckpt/gone"]
    node.cli("bucket", "rm", view)


@pytest.mark.parametrize("arguments, words", [
    (["import", "--as-of", "soon", "s3://x", "B"], ["--as-of soon", "2026-01-31"]),
    (["import", "--as-of", "2026-02-30", "s3://x", "B"], ["--as-of"]),
    (["import", "--as-of", "2400-01-01", "s3://x", "B"], ["--as-of", "not come yet"]),
    (["import", "--as-of", "2026-01-01", "--version", "x", "s3://x/y", "B"], ["--as-of, --version"]),
    (["import", "--tag", "step", "s3://x", "B"], ["--tag step", "KEY=VALUE"]),
    (["import", "--version", "8", "s3://x", "B"], ["version", "one object"]),
    (["import", "--as-of", "2026-01-01", "file:///tmp", "B"], ["keeps no versions"]),
    (["import", "--version", "8", "file:///tmp/x", "B"], ["keeps no versions"]),
    (["import", "--tag", "a=b", "file:///tmp", "B"], ["--tag", "tags cannot be asked for", "s3://"]),
    (["import", "--version", "x", "--set", "origin.endpoint=http://127.0.0.1:1", "gs://x/y", "B"], ["version x"]),
    (["import", "--as-of", "2026-01-01", "az://x", "B"], ["origin.as_of", "when a blob was removed", "origin.version"]),
    (["import", "--version", "newest", "az://x/y", "B"], ["origin.version newest", "2026-01-31T23:59:59.1234567Z"]),
    (["export", "--as-of", "2026-01-01", "B", "file:///tmp"], ["--as-of", "only for import"]),
    (["prefetch", "--tag", "a=b", "B"], ["--tag", "only for import"]),
    (["export", "--manifest", "B", "file:///tmp"], ["--manifest"]),
])
def test_what_cannot_be_restored_is_refused(node, scratch, arguments, words):
    """What cannot work is refused in one line, before anything is queued."""
    before = json.loads(node.cli("job", "ls", "--json").stdout)
    done = node.cli(*[scratch if a == "B" else a for a in arguments], check=False)
    assert done.returncode in (1, 2) and len(done.stderr.splitlines()) == 1, done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    assert json.loads(node.cli("job", "ls", "--json").stdout) == before


def test_origins_that_keep_none(node, scratch, origin, versioned, kept):
    """A service, and a bucket, that keep no versions say so, and so does one that lacks the version: one line, and no
    job."""
    name, s3, ids = kept
    plain, never = origin.new_bucket(), harness.random_name()
    s3.create_bucket(Bucket=never)
    for server, url, option, words in (
            (origin, f"s3://{plain}", ["--as-of", "2026-01-15"], "keeps no versions"),
            (versioned, f"s3://{never}", ["--as-of", "2026-01-15"], "keeps no versions"),
            (versioned, f"s3://{name}/ckpt/c", ["--version", ids["old a"]], "404"),
            (versioned, f"s3://{name}/ckpt/gone", ["--version", ids["gone"]], "405")):
        done = node.cli("import", *settings(server), *option, url, scratch, check=False)
        assert done.returncode in (1, 2) and len(done.stderr.splitlines()) == 1
        assert words in done.stderr, done.stderr


def test_show_tells_what_was_asked(node, scratch, versioned, kept):
    """job show has the options of a job, but for what may be secret."""
    name, *_ = kept
    job = start(node, "import", *settings(versioned), "--as-of", "2026-01-15", "--include", "*a", "--parallel", "3",
                f"s3://{name}", scratch)
    node.cli("job", "wait", job, "--quiet")
    assert show(node, job)["options"] == ["--include=*a", "--parallel=3", "--as-of=2026-01-15"]
    shown = node.cli("job", "show", job).stdout
    assert "--as-of=2026-01-15" in shown and "--include=*a" in shown and versioned.secret_key not in shown


def test_generations_of_cloud_storage(node, scratch, work):
    """gs:// restores generations: by date, with a manifest that names them, and one by its number."""
    reason = origins.Gcs.missing()
    if reason:
        pytest.skip(f"not run: {reason}")
    with origins.Gcs(work / f"gcs-{harness.random_name()}") as server:
        def ask(path, method, data=None):
            status, _, body = origins.request(server.endpoint + path, method, data, {"Content-Type": "application/json"})
            assert status in (200, 204), body
            return json.loads(body or b"{}")

        def write(key, data):
            return ask("/upload/storage/v1/b/kept/o?uploadType=media&name=" + urllib.parse.quote(key, safe=""), "POST", data)

        ask("/storage/v1/b?project=p", "POST", json.dumps({"name": "kept", "versioning": {"enabled": True}}).encode())
        write("ckpt/gone", b"gone")
        ask("/storage/v1/b/kept/o/ckpt%2Fgone", "DELETE")
        old = write("ckpt/a", b"old a")
        then = write("ckpt/b", b"old b")["timeCreated"]
        write("ckpt/a", b"new a")
        ask("/storage/v1/b/kept/o/ckpt%2Fb", "DELETE")
        write("ckpt/c", b"added")
        write("ckpt/gone", b"here again")
        url = ["--set", "origin.endpoint=" + server.endpoint]
        job = json.loads(node.cli("import", "--wait", "--json", *url, "--as-of", then, "gs://kept/ckpt", scratch).stdout)
        assert (job["state"], job["done_objects"]) == ("done", 2)
        assert contents(node.s3(), scratch) == {"a": b"old a", "b": b"old b"}
        lines, _ = manifest(node.s3(), scratch)
        assert lines["a"][1] == sha256(b"old a") and lines["a"][3] == old["generation"]
        other = harness.scratch_bucket(node)
        node.cli("import", "--wait", *url, "--version", old["generation"], "gs://kept/ckpt/a", other)
        assert contents(node.s3(), other) == {"a": b"old a"}
        for arguments, words in (["--as-of", then, "gs://bucket"], "keeps no versions"), (["--tag", "a=b", "gs://kept"], "tags cannot be asked for"):
            done = node.cli("import", *url, *arguments, scratch, check=False)
            assert done.returncode in (1, 2) and words in done.stderr and len(done.stderr.splitlines()) == 1
