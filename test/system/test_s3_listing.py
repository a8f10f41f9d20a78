"""Listings through S3, against a model: the sorted keys, cut into pages and folded at the delimiter."""

import itertools
import os
import random
import urllib.parse
import xml.etree.ElementTree as ET

import botocore.exceptions
import pytest

import harness
from keyorigin import KeyOrigin, Object
from test_s3_security import ask

KEYS = sorted(["a", "a/1", "a/2", "a/b/1", "a/b/2", "a//x", "b", "b/", "b/1", "c d/e f", "c+d", "c%20d", "z/é", "z/ö",
               "日本/語", "a-b", "a.b", "a0"] + [f"many/{i:04}" for i in range(250)], key=lambda k: k.encode())


def model(keys, prefix="", delimiter="", after=""):
    """[(name, is_prefix)] of one listing."""
    out = []
    for key in keys:
        if not key.startswith(prefix):
            continue
        cut = key.find(delimiter, len(prefix)) if delimiter else -1
        name, folded = (key, False) if cut < 0 else (key[:cut + len(delimiter)], True)
        if name.encode() > after.encode() and (name, folded) not in out:
            out.append((name, folded))
    return out


def entries(page):
    """The same form from an answer; S3 gives keys and prefixes apart, each sorted."""
    keys = [(o["Key"], False) for o in page.get("Contents", [])]
    prefixes = [(p["Prefix"], True) for p in page.get("CommonPrefixes", [])]
    return sorted(keys + prefixes, key=lambda e: e[0].encode())


@pytest.fixture(scope="module")
def listed(node):
    with KeyOrigin() as origin:
        name = harness.random_name()
        for key in KEYS:
            origin.objects[name, key] = Object(key.encode())
        node.create_bucket(name, f"s3://{name}", **origin.properties())
        yield name, node.s3()


@pytest.mark.parametrize("prefix,delimiter,size", list(itertools.product(
    ["", "a", "a/", "a/b/", "many/", "many/01", "c ", "z/", "none/"], ["", "/"], [1000, 7, 1])))
def test_pages_of_version_2(listed, prefix, delimiter, size):
    """Whatever the page size: every entry once, in order, the counts right."""
    name, s3 = listed
    if size == 1 and prefix not in ("a", "a/", "z/"):
        size = 50
    pages = list(s3.get_paginator("list_objects_v2").paginate(
        Bucket=name, Prefix=prefix, Delimiter=delimiter, PaginationConfig={"PageSize": size}))
    got = [e for page in pages for e in entries(page)]
    assert got == model(KEYS, prefix, delimiter)
    assert all(page["KeyCount"] == len(entries(page)) <= size for page in pages)
    assert [page["IsTruncated"] for page in pages] == [True] * (len(pages) - 1) + [False]


@pytest.mark.parametrize("delimiter", ["a", "/b/", "\u00e9", "0", " ", "%20", "many/01"])
def test_any_delimiter(listed, delimiter):
    """Delimiters other than a slash fold alike, whatever the page size, and pages continue behind a fold."""
    name, s3 = listed
    for prefix, size in (("", 1000), ("", 7), ("a", 3), ("many/", 20), ("z", 1), ("none", 5)):
        pages = list(s3.get_paginator("list_objects_v2").paginate(
            Bucket=name, Prefix=prefix, Delimiter=delimiter, PaginationConfig={"PageSize": size}))
        assert [e for page in pages for e in entries(page)] == model(KEYS, prefix, delimiter), (prefix, size)
        assert all(page["KeyCount"] == len(entries(page)) <= size for page in pages)
    first = s3.list_objects(Bucket=name, Delimiter=delimiter, MaxKeys=2)
    rest = s3.list_objects(Bucket=name, Delimiter=delimiter, Marker=first["NextMarker"])
    assert entries(first) + entries(rest) == model(KEYS, "", delimiter)


def test_folds_that_cannot_be_jumped_over(node):
    """More than a page of keys behind the last code point, and a fold as long as a key: each fold comes once, and the
    listing ends."""
    with KeyOrigin() as origin:
        name, longest = harness.random_name(), "x" * 1023 + "-"
        keys = sorted([f"a-\U0010ffff{i:04}" for i in range(1001)] + ["b", longest, "z"], key=lambda k: k.encode())
        for key in keys:
            origin.objects[name, key] = Object(b"")
        node.create_bucket(name, f"s3://{name}", **origin.properties())
        for size in (1000, 1):
            pages = list(node.s3().get_paginator("list_objects_v2").paginate(
                Bucket=name, Delimiter="-", PaginationConfig={"PageSize": size}))
            assert [e for page in pages for e in entries(page)] == [("a-", True), ("b", False), (longest, True), ("z", False)]


@pytest.mark.parametrize("prefix,delimiter", list(itertools.product(["", "a/", "many/"], ["", "/"])))
def test_pages_of_version_1(listed, prefix, delimiter):
    """The first version of the operation pages by marker."""
    name, s3 = listed
    pages = list(s3.get_paginator("list_objects").paginate(
        Bucket=name, Prefix=prefix, Delimiter=delimiter, PaginationConfig={"PageSize": 9}))
    assert [e for page in pages for e in entries(page)] == model(KEYS, prefix, delimiter)
    for after, marker in zip([None, *pages], pages):
        assert marker["Marker"] == (entries(after)[-1][0] if after else "")


def test_start_after_and_owner(listed):
    """start-after begins behind a key that need not exist; fetch-owner adds the owner."""
    name, s3 = listed
    for after in ("", "a", "a/b/1", "b/0", "many/0100", "zzz"):
        page = s3.list_objects_v2(Bucket=name, StartAfter=after)
        assert entries(page) == model(KEYS, after=after)
    for after, prefix, delimiter in (("a/2", "", ""), ("c%20d", "", "/"), ("many/0100", "many/", ""), ("a/b/", "a/", "/")):
        pages = list(s3.get_paginator("list_objects_v2").paginate(
            Bucket=name, StartAfter=after, Prefix=prefix, Delimiter=delimiter, PaginationConfig={"PageSize": 20}))
        assert [e for page in pages for e in entries(page)] == model(KEYS, prefix, delimiter, after), (after, prefix, delimiter)
        assert {page["StartAfter"] for page in pages} == {after}
        for before, page in zip(pages, pages[1:]):
            assert page["ContinuationToken"] == before["NextContinuationToken"]
    assert "Owner" in s3.list_objects_v2(Bucket=name, FetchOwner=True, MaxKeys=1)["Contents"][0]
    assert "Owner" not in s3.list_objects_v2(Bucket=name, MaxKeys=1)["Contents"][0]


FEW = ["a-b", "a-b0/c", "a-c", "a/b", "a/b-1", "a/c/d", "a0", "b--", "b-x/y", "b/1", "c d", "c+d", "c/%2F", "\u00e9-y", "\u00e9/x", "z-1", "z-2", "z/-"]
NO_PATHS = ["a", "a-", "a//x", "a/b/", "b", "..", "../x", "z-1/"]  # nor beside the others


@pytest.fixture(params=["scratch", "memory", "s3", "back", "file"])
def few(request, node, tmp_path):
    """(bucket, its keys) of every kind. Of write=back every second key is in the origin, the others are not yet."""
    name, keys = harness.random_name(), FEW if request.param == "file" else FEW + NO_PATHS
    with KeyOrigin() as origin:
        if request.param in ("s3", "back"):
            more = {"write": "back", "write_delay": "1h"} if request.param == "back" else {}
            node.create_bucket(name, f"s3://{name}", **origin.properties(), **more)
            for key in keys[::2 if more else 1]:
                origin.objects[name, key] = Object(b"x")
        elif request.param == "file":
            node.create_bucket(name, f"file://{tmp_path}")
        else:
            with node.wire() as w:
                w.bucket_create(name, {"values": "memory"} if request.param == "memory" else {})
        s3 = node.s3()
        for key in {"s3": [], "back": keys[1::2]}.get(request.param, keys):
            s3.put_object(Bucket=name, Key=key, Body=b"x")
        yield name, sorted(keys, key=str.encode)


LISTINGS = {"list_objects_v2": ("StartAfter", "ContinuationToken", "NextContinuationToken"),
            "list_objects": ("Marker", "Marker", "NextMarker"), "list_object_versions": ("KeyMarker", "KeyMarker", "NextKeyMarker")}


def walk(s3, operation, after, **asked):
    """All entries of all pages."""
    first, more, following = LISTINGS[operation]
    page, out = {following: after}, []
    while page.get(following) is not None:
        page = getattr(s3, operation)(**asked, **({first if page[following] == after else more: page[following]} if page[following] else {}))
        found = entries({**page, "Contents": page.get("Contents", page.get("Versions", []))})
        assert len(found) <= asked["MaxKeys"] and page["IsTruncated"] == (following in page), (after, asked)
        out += found
        assert len(out) <= 2 * len(FEW + NO_PATHS), (after, asked)
    return out


def test_listings_of_every_kind_of_bucket(node, few):
    """Whatever is asked for, and wherever a listing begins, within a fold, too: what is behind that and fits, once, in order; a common
    prefix that is not behind the marker is not shown, as S3 says ("filtered out from results if it is not lexicographically greater"),
    though some of its keys are. (Delimiters other than a slash showed it.)"""
    (name, keys), s3, rng = few, node.s3(), random.Random(4711)
    places = ["", *keys, *[key[:-1] for key in keys], *[key + "-" for key in keys], "a-bz", "b-y", "zz", "\u00e9-"]
    prefixes = ["", "", "", "a", "a-", "b-", "z", "\u00e9", "none"]
    if set(NO_PATHS) <= set(keys):  # a file:// origin shows the folder itself to who asks for exactly that
        prefixes.append("a/")
    for _ in range(250):
        operation, prefix = rng.choice(sorted(LISTINGS)), rng.choice(prefixes)
        delimiter, after, size = rng.choice(["", "/", "/", "-", "-", "b", "/b", "--", "\u00e9"]), rng.choice(places), rng.choice([1, 2, 3, 1000])
        got = walk(s3, operation, after, Bucket=name, Prefix=prefix, Delimiter=delimiter, MaxKeys=size)
        assert got == model(keys, prefix, delimiter, after), (operation, prefix, delimiter, after, size)


def test_entries_are_complete(bucket):
    """Size, ETag and time of an entry are the object's own."""
    etag = bucket.s3.put_object(Bucket=bucket.name, Key="k", Body=b"12345")["ETag"]
    [entry] = bucket.s3.list_objects_v2(Bucket=bucket.name)["Contents"]
    [true] = bucket.truth.list_objects_v2(Bucket=bucket.name)["Contents"]
    assert (entry["Size"], entry["ETag"], entry["StorageClass"]) == (5, etag, "STANDARD")
    assert entry["LastModified"] == true["LastModified"]


def test_names_are_encoded_when_that_is_asked_for(node, listed):
    """encoding-type=url: keys, prefixes and what the request named, and the answer says so; otherwise they are XML text.
    Clients ask for it by themselves, and take raw names without a word."""
    name, _ = listed
    for operation in "list-type=2&", "":
        raw = ask(node, "GET", f"/{name}?{operation}prefix=c").body
        assert b"<EncodingType>" not in raw and b"<Key>c d/e f</Key>" in raw and b"<Key>c%20d</Key>" in raw
        encoded = ask(node, "GET", f"/{name}?encoding-type=url&{operation}prefix=c").body
        assert b"<EncodingType>url</EncodingType>" in encoded and b"<Key>c%2520d</Key>" in encoded and b"<Key>c%2Bd</Key>" in encoded
        assert b"<Key>c+d/e+f</Key>" in encoded or b"<Key>c%20d/e%20f</Key>" in encoded
        assert "<Key>z/\u00e9</Key>".encode() in ask(node, "GET", f"/{name}?{operation}prefix=z").body
        encoded = ask(node, "GET", f"/{name}?encoding-type=url&{operation}prefix=c%2520d").body
        assert b"<Prefix>c%2520d</Prefix>" in encoded
        encoded = ask(node, "GET", f"/{name}?delimiter=%C3%A9&encoding-type=url&{operation}prefix=z%2F").body
        assert b"<Delimiter>%C3%A9</Delimiter>" in encoded and b"<Prefix>z/%C3%A9</Prefix>" in encoded, encoded
    first = ask(node, "GET", f"/{name}?encoding-type=url&prefix=c%2520&max-keys=1&delimiter=d").body
    assert b"<Prefix>c%2520d</Prefix>" in first and b"<NextMarker>" not in first
    first = ask(node, "GET", f"/{name}?encoding-type=url&prefix=c&max-keys=1").body
    assert b"<NextMarker>c%20d/e%20f</NextMarker>" in first or b"<NextMarker>c+d/e+f</NextMarker>" in first, first


def test_names_that_are_no_text(node, tmp_path):
    """A file whose name is no UTF-8 does not take the page from those who read the others; nor does a request for one."""
    name, folder = harness.random_name(), tmp_path / "files"
    folder.mkdir()
    for file in (b"a", b"odd\xff\xc3", b"z"):
        (folder / os.fsdecode(file)).write_bytes(b"data")
    node.create_bucket(name, f"file://{folder}")
    keys = [e.text for e in ET.fromstring(ask(node, "GET", f"/{name}?list-type=2").body).iter() if e.tag.endswith("}Key")]
    assert keys == ["a", "odd\ufffd\ufffd", "z"]
    assert b"<Key>odd%FF%C3</Key>" in ask(node, "GET", f"/{name}?list-type=2&encoding-type=url").body
    assert ask(node, "GET", f"/{name}/odd%FF").error()["Code"] == "InvalidURI"
    for parameter in ("prefix", "start-after", "delimiter"):
        assert ask(node, "GET", f"/{name}?list-type=2&{parameter}=odd%FF").error()["Code"] == "InvalidArgument", parameter
    for other in ("3", "1", "v2", ""):  # as S3: it is not another way to ask for the first kind
        assert ask(node, "GET", f"/{name}?list-type={other}").error()["Code"] == "InvalidArgument", other
    assert ask(node, "GET", f"/{name}?versions&list-type=3").status == 200
    for n in range(3):  # the error shows the beginning of the path, cut anywhere
        path = urllib.parse.quote(f"/{name}/" + "a" * n + "\u20ac" * 800)
        assert ask(node, "GET", path).error()["Code"] == "KeyTooLongError"


@pytest.mark.parametrize("validate, asked", [("ttl:1h", 1), ("always", 2)])
def test_a_fresh_listing_asks_nobody(node, validate, asked):
    """A page that is fresh by the bucket's rule is answered here, for all versions of the operation; what is written here shows."""
    with KeyOrigin() as origin:
        name, s3 = harness.random_name(), node.s3()
        for key in ("a", "dir/b", "dir/c"):
            origin.objects[name, key] = Object(b"x")
        node.create_bucket(name, f"s3://{name}", validate=validate, **origin.properties())

        def lists():
            return sum(method == "GET" and path.rstrip("/") == f"/{name}" for method, path, _ in origin.requests)

        before = lists()
        for list_page in (s3.list_objects_v2, s3.list_objects):
            assert entries(list_page(Bucket=name, Delimiter="/")) == [("a", False), ("dir/", True)]
        assert lists() - before == asked
        s3.put_object(Bucket=name, Key="new", Body=b"x")
        assert entries(s3.list_objects_v2(Bucket=name, Delimiter="/")) == [("a", False), ("dir/", True), ("new", False)]


def test_limits(listed):
    """max-keys 0 gives nothing, more than 1000 gives 1000 at most, nonsense is refused; so are forged tokens."""
    name, s3 = listed
    page = s3.list_objects_v2(Bucket=name, MaxKeys=0)
    assert page["KeyCount"] == 0 and not page["IsTruncated"]
    assert s3.list_objects_v2(Bucket=name, MaxKeys=5000)["KeyCount"] == len(KEYS)
    for arguments in ({"MaxKeys": -1}, {"ContinuationToken": "forged"}, {"ContinuationToken": "MUFBQUFh"},
                      {"EncodingType": "other"}):
        with pytest.raises(botocore.exceptions.ClientError) as error:
            s3.list_objects_v2(Bucket=name, **arguments)
        assert error.value.response["Error"]["Code"] == "InvalidArgument"
    for where in ("Prefix", "StartAfter"):
        assert s3.list_objects_v2(Bucket=name, **{where: "z" * 1024})["KeyCount"] <= 1  # the last key comes behind it
        with pytest.raises(botocore.exceptions.ClientError) as error:
            s3.list_objects_v2(Bucket=name, **{where: "z" * 1025})
        assert error.value.response["Error"]["Code"] == "KeyTooLongError"


def test_more_than_a_page(node):
    """2,500 keys come in three pages by default, and no page has more than 1,000 though more are asked for."""
    with KeyOrigin() as origin:
        name = harness.random_name()
        keys = [f"k{i:05}" for i in range(2500)]
        for key in keys:
            origin.objects[name, key] = Object(b"")
        node.create_bucket(name, f"s3://{name}", **origin.properties())
        pages = list(node.s3().get_paginator("list_objects_v2").paginate(Bucket=name))
        assert [o["Key"] for page in pages for o in page["Contents"]] == keys
        assert [page["KeyCount"] for page in pages] == [1000, 1000, 500]
        for call in (node.s3().list_objects_v2, node.s3().list_objects):
            page = call(Bucket=name, MaxKeys=2500)
            assert (len(page["Contents"]), page["IsTruncated"], page["MaxKeys"]) == (1000, True, 1000)
