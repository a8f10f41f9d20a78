"""An S3 origin in the test process: objects in a dictionary, so that every key is kept byte for byte.

A server over a directory cannot hold keys such as "a//b", ".." or one path component of 1,024 bytes; S3 itself can.
This one speaks as much S3 as a node asks of its origin, checks no signatures, and remembers each request.

    with KeyOrigin() as origin:
        origin.objects["bucket", "../a//b"] = Object(b"data")
        node.create_bucket("bucket", "s3://bucket", **origin.properties())
"""

import dataclasses
import hashlib
import re
import time
import urllib.parse
from email.utils import formatdate
from xml.sax.saxutils import escape

import served


@dataclasses.dataclass
class Object:
    data: bytes
    headers: dict = dataclasses.field(default_factory=dict)
    mtime: float = dataclasses.field(default_factory=lambda: float(int(time.time())))

    @property
    def etag(self):
        return '"' + hashlib.md5(self.data).hexdigest() + '"'


class KeyOrigin(served.Server):
    """Serves `objects`: {(bucket, key): Object}. `requests` is a list of (method, path, query). `before(method, key)` is
    called when a request has come and nothing of its body was read. `before_put(bucket, key)` is called when a PUT has come
    and nothing of it has been decided: somebody else may write first. `before_get(bucket, key)` and `before_list(query)`
    are the same of a GET, and of a listing, whose pages have no more than `page_keys`. A GET for which `busy(bucket, key)`
    gives headers is answered 503 with them."""

    def __init__(self, handler=None):
        super().__init__(handler or Handler)
        self.objects = {}
        self.before = None
        self.before_put = None
        self.before_get = None
        self.before_list = None
        self.busy = None
        self.page_keys = 1000

    def properties(self, endpoint=None):
        return {"origin.endpoint": endpoint or self.endpoint, "origin.region": "us-east-1", "origin.access_key": "any",
                "origin.secret_key": "any"}


class Handler(served.Handler):
    def _parse(self):
        path, _, query = self.path.partition("?")
        self.query = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        bucket, _, key = path[1:].partition("/")
        self.bucket, self.key = bucket, urllib.parse.unquote(key)
        self.origin = self.owner
        with self.origin.lock:
            self.origin.requests.append((self.command, urllib.parse.unquote(path), self.query))
        if self.origin.before:
            self.origin.before(self.command, self.key)

    def _error(self, status, code, **headers):
        self.send(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode(),
                  Content_Type="application/xml", **headers)

    def _found(self):
        with self.origin.lock:
            return self.origin.objects.get((self.bucket, self.key))

    def _asks_for_tags(self):
        """Which it has not, and says so."""
        if "tagging" in self.query:
            self.body()
            self._error(501, "NotImplemented")
        return "tagging" in self.query

    def _read(self):
        self._parse()
        if self._asks_for_tags():
            return None
        if not self.key:
            return self._list()
        if self.origin.before_get and self.command == "GET":
            self.origin.before_get(self.bucket, self.key)
        busy = self.origin.busy(self.bucket, self.key) if self.origin.busy and self.command == "GET" else None
        if busy is not None:
            return self._error(503, "SlowDown", **busy)
        found = self._found()
        if found is None:
            return self._error(404, "NoSuchKey")
        match = self.headers.get("If-Match")
        if match and match.strip('"') not in ("*", found.etag.strip('"')):
            return self._error(412, "PreconditionFailed")
        headers = {"ETag": found.etag, "Last_Modified": formatdate(found.mtime, usegmt=True),
                   "Accept_Ranges": "bytes", **found.headers}
        size, asked = len(found.data), self.headers.get("Range")
        if not asked:
            return self.send(200, found.data, **headers)
        first, last = re.match(r"bytes=(\d*)-(\d*)", asked).groups()
        start = int(first) if first else max(0, size - int(last))
        end = min(int(last) + 1 if first and last else size, size)
        if start >= size:
            return self._error(416, "InvalidRange")
        headers["Content_Range"] = f"bytes {start}-{end - 1}/{size}"
        return self.send(206, found.data[start:end], **headers)

    do_GET = do_HEAD = _read

    def _list(self):
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter", "")
        after = self.query.get("continuation-token") or self.query.get("start-after", "")
        after, most = urllib.parse.unquote(after), min(int(self.query.get("max-keys", 1000)), self.origin.page_keys)
        if self.origin.before_list:
            self.origin.before_list(self.query)
        quote = urllib.parse.quote if self.query.get("encoding-type") == "url" else lambda s: s
        with self.origin.lock:
            keys = sorted((k for b, k in self.origin.objects if b == self.bucket and k.startswith(prefix)),
                          key=lambda k: k.encode())
            out, last, truncated = [], after, False
            for key in keys:
                cut = key.find(delimiter, len(prefix)) if delimiter else -1
                name = key if cut < 0 else key[:cut + len(delimiter)]
                if name.encode() <= last.encode() or (cut >= 0 and after.startswith(name)):
                    continue
                if len(out) == most:
                    truncated = True
                    break
                last = name
                if cut >= 0:
                    out.append(f"<CommonPrefixes><Prefix>{escape(quote(name))}</Prefix></CommonPrefixes>")
                    continue
                found = self.origin.objects[self.bucket, key]
                date = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(found.mtime))
                out.append(f"<Contents><Key>{escape(quote(key))}</Key><LastModified>{date}</LastModified>"
                           f"<ETag>{escape(found.etag)}</ETag><Size>{len(found.data)}</Size></Contents>")
        token = f"<NextContinuationToken>{escape(urllib.parse.quote(last))}</NextContinuationToken>" if truncated else ""
        self.send(200, ("<ListBucketResult>" + f"<IsTruncated>{str(truncated).lower()}</IsTruncated>{token}" +
                        ("<EncodingType>url</EncodingType>" if "encoding-type" in self.query else "") +
                        "".join(out) + "</ListBucketResult>").encode(), Content_Type="application/xml")

    def do_PUT(self):
        self._parse()
        if self._asks_for_tags():
            return None
        data = self.body()
        if len(data) < int(self.headers.get("Content-Length", 0)):  # who sends it has gone
            self.close_connection = True
            return None
        source = self.headers.get("x-amz-copy-source")
        kept = {n: v for n, v in self.headers.items() if n.lower().startswith("x-amz-meta-") or
                n.lower() in ("content-type", "cache-control", "content-encoding", "content-disposition")}
        with self.origin.lock:
            if source:
                bucket, _, key = urllib.parse.unquote(source).lstrip("/").partition("/")
                found = self.origin.objects.get((bucket, key))
                if found is None:
                    return self._error(404, "NoSuchKey")
                wanted = self.headers.get("x-amz-copy-source-if-match")
                if wanted and wanted.strip('"') != found.headers.get("ETag", found.etag).strip('"'):
                    return self._error(412, "PreconditionFailed")
                data, kept = found.data, found.headers
            if self.origin.before_put:
                self.origin.before_put(self.bucket, self.key)
            match, there = self.headers.get("If-Match"), self.origin.objects.get((self.bucket, self.key))
            if match and (there is None or match.strip('"') not in ("*", there.etag.strip('"'))):
                return self._error(412, "PreconditionFailed")
            if self.headers.get("If-None-Match") == "*" and (self.bucket, self.key) in self.origin.objects:
                return self._error(412, "PreconditionFailed")
            stored = self.origin.objects[self.bucket, self.key] = Object(data, kept)
        body = (f"<CopyObjectResult><ETag>{escape(stored.etag)}</ETag></CopyObjectResult>".encode() if source else b"")
        return self.send(200, body, ETag=stored.etag)

    def do_DELETE(self):
        self._parse()
        if self._asks_for_tags():
            return
        with self.origin.lock:
            self.origin.objects.pop((self.bucket, self.key), None)
        self.send(204)
