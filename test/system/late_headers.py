"""A pytest plugin for ceph/s3-tests, no test of ours: ten of its tests spoil a header and want to be refused, but botocore (since 1.0.0)
signs, dates and measures the request after that, so that a good one arrives. With this plugin they spoil what was signed:

    PYTHONPATH=test/system S3TEST_CONF=conf pytest -p late_headers s3tests/functional/test_headers.py

docs/S3.md has what came out.
"""

import http.client
import urllib.parse

import botocore.awsrequest
import botocore.hooks
import pytest

SPOILING = {f"test_{name}" for name in (
    "object_create_bad_contentlength_none", "object_create_bad_authorization_empty", "object_create_bad_authorization_none",
    "bucket_create_bad_authorization_empty", "bucket_create_bad_authorization_none", "object_create_bad_authorization_incorrect_aws2",
    "object_create_bad_authorization_invalid_aws2", "object_create_bad_date_none_aws2", "bucket_create_bad_authorization_invalid_aws2",
    "bucket_create_bad_date_none_aws2")}


def sent_without_length(request):
    """What is answered to the head alone: urllib3 would measure the body again."""
    url = urllib.parse.urlsplit(request.url)
    connection = http.client.HTTPConnection(url.netloc, timeout=60)
    connection.putrequest(request.method, url.path, skip_accept_encoding=True)
    for name, value in request.headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    response = botocore.awsrequest.AWSResponse(request.url, answer.status, botocore.awsrequest.HeadersDict(answer.getheaders()), answer)
    response._content = answer.read()
    connection.close()
    return response


@pytest.fixture(autouse=True)
def late_headers(request, monkeypatch):
    if request.node.name not in SPOILING:
        return
    register, spoils_date = botocore.hooks.EventAliaser.register, "date_none" in request.node.name

    def register_late(self, event, handler, *more, **others):
        if not event.startswith("before-call.s3."):
            return register(self, event, handler, *more, **others)

        def spoil(request, **_):
            if spoils_date:  # it removes x-amz-date; version 2 has signed Date
                request.headers["x-amz-date"] = request.headers["Date"]
                del request.headers["Date"]
            measured = "Content-Length" in request.headers
            handler(params={"headers": request.headers})
            return sent_without_length(request) if measured and "Content-Length" not in request.headers else None

        return register(self, event.replace("before-call", "before-send"), spoil, *more, **others)

    monkeypatch.setattr(botocore.hooks.EventAliaser, "register", register_late)
