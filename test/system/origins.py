"""Origins of other kinds for the system tests: each a real server that is not ours, with one face.

    with Gcs(directory) as origin:
        node.create_bucket("b", origin.url("prefix"), **origin.properties())
        origin.put("prefix/k", b"data"); origin.get("prefix/k"); origin.keys(); origin.delete("prefix/k")

`missing()` of a class says why it cannot run here, or None.
"""

import base64
import datetime
import hashlib
import hmac
import json
import os
import pathlib
import pwd
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree

import botocore.exceptions

import harness


def request(url, method="GET", data=None, headers=None):
    """(status, headers, body); refusals are answers too."""
    asked = urllib.request.Request(url, method=method, data=data, headers=headers or {})
    try:
        with urllib.request.urlopen(asked, timeout=200) as reply:
            return reply.status, reply.headers, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


class Server(harness.Program):
    """What they share: a port, and the wait until it answers."""

    writable = True
    ready_seconds = harness.READY_SECONDS

    def __init__(self, directory):
        super().__init__(directory, type(self).__name__.lower())
        self.port = harness.free_port()
        self.data = self.dir / "data"
        self.data.mkdir(exist_ok=True)
        self.start()
        harness.wait_until(self._answers, self.ready_seconds, f"{self.name} answers")
        self.prepare()

    def _answers(self):
        if not self.running():
            raise RuntimeError(f"{self.name} ended:\n{self.log_tail()}")
        try:
            return request(self.endpoint + "/")[0] > 0
        except OSError:
            return False

    def prepare(self):
        """Makes the container that the tests use."""

    def make_folder(self, name):
        """For servers that know folders."""

    folders = False  # a file and a folder cannot have one name; metadata is not kept; folders stay

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.port}"


class Gcs(Server):
    """fake-gcs-server, in memory."""

    program = harness.ROOT / ".deps/bin/fake-gcs-server"

    @classmethod
    def missing(cls):
        return None if cls.program.exists() else "no fake-gcs-server; make it with scripts/origin-emulators build"

    def start(self):
        self.spawn([self.program, "-scheme", "http", "-host", "127.0.0.1", "-port", self.port, "-backend", "memory",
                    "-public-host", f"127.0.0.1:{self.port}", "-external-url", self.endpoint, "-log-level", "error"])

    def prepare(self):
        status, _, body = request(self.endpoint + "/storage/v1/b?project=p", "POST", json.dumps({"name": "bucket"}).encode(),
                                  {"Content-Type": "application/json"})
        assert status == 200, body

    def url(self, prefix=""):
        return "gs://bucket" + (f"/{prefix}" if prefix else "")

    def properties(self):
        return {"origin.endpoint": self.endpoint}

    def _object(self, key):
        return f"{self.endpoint}/storage/v1/b/bucket/o/{urllib.parse.quote(key, safe='')}"

    def put(self, key, data):
        status, _, body = request(f"{self.endpoint}/upload/storage/v1/b/bucket/o?uploadType=media&name="
                                  + urllib.parse.quote(key, safe=""), "POST", data)
        assert status == 200, body

    def get(self, key):
        status, _, body = request(self._object(key) + "?alt=media")
        return body if status == 200 else None

    def delete(self, key):
        assert request(self._object(key), "DELETE")[0] in (200, 204)

    def items(self, prefix=""):
        """The resources of all objects below a prefix."""
        found = request(f"{self.endpoint}/storage/v1/b/bucket/o?prefix=" + urllib.parse.quote(prefix, safe=""))[2]
        return json.loads(found).get("items", [])

    def keys(self):
        return sorted(item["name"] for item in self.items())


class Minio(harness.Origin):
    """MinIO over a directory, whose webhook tells the node, which is there before it, of changes in its one bucket."""

    program = harness.ROOT / ".deps/bin/minio"
    token = "hush"

    @classmethod
    def missing(cls):
        return None if cls.program.exists() else "no MinIO, which is a peer of the bench; make it with scripts/bench-peers build"

    def __init__(self, directory, node):
        self.name_of_webhook, self.node, self.bucket = "NODE", node, harness.random_name()
        super().__init__(directory)

    def start(self):
        harness.start_on_free_port(self, lambda port: self._spawn(port, []))

    def _spawn(self, port, options):
        webhook = f"MINIO_NOTIFY_WEBHOOK_{{}}_{self.name_of_webhook}"
        self.spawn([self.program, "server", "--quiet", "--address", f"127.0.0.1:{port}", *options, self.dir / "data"], env={
            "MINIO_ROOT_USER": self.access_key, "MINIO_ROOT_PASSWORD": self.secret_key, "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off", "HOME": str(self.dir), webhook.format("ENABLE"): "on", webhook.format("AUTH_TOKEN"): self.token,
            webhook.format("ENDPOINT"): f"{self.node.endpoint}/-/api/v1/events/{self.bucket}"})

    def _answers(self):
        if not self.running():
            raise harness.Ended(f"MinIO ended:\n{self.log_tail()}")
        try:
            self.s3().list_buckets()
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError):  # it is ready some moments before it says so
            return False
        return True

    def new_bucket(self, name=None):
        """The one whose events go to the node's bucket of that name."""
        assert name in (None, self.bucket)
        self.s3().create_bucket(Bucket=self.bucket)
        self.s3().put_bucket_notification_configuration(Bucket=self.bucket, NotificationConfiguration={"QueueConfigurations": [{
            "QueueArn": f"arn:minio:sqs:{harness.REGION}:{self.name_of_webhook}:webhook",
            "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]}]})
        return self.bucket


class Azurite(Server):
    """Azurite, in memory, with an account of our own. Requests of the tests are signed here, apart from the product's code."""

    program = harness.ROOT / ".deps/azurite/run"
    account = "forebaytest"
    key = base64.b64encode(b"a key for tests only, 32 bytes..").decode()
    other_account = "forebayother"
    other_key = base64.b64encode(b"another account's key, 32 bytes.").decode()

    @classmethod
    def missing(cls):
        return None if cls.program.exists() else "no Azurite; make it with scripts/origin-emulators build"

    def start(self):
        self.spawn([self.program, "--blobHost", "127.0.0.1", "--blobPort", self.port, "--inMemoryPersistence", "--silent",
                    "--skipApiVersionCheck", "--disableTelemetry"],
                   env={"AZURITE_ACCOUNTS": f"{self.account}:{self.key};{self.other_account}:{self.other_key}"})

    def ask(self, method, path, query=None, data=b"", headers=None, account=None):
        name, key = account or (self.account, self.key)
        query = dict(query or {})
        headers = {k.lower(): v for k, v in (headers or {}).items()}
        headers["x-ms-version"] = "2021-12-02"
        headers["x-ms-date"] = datetime.datetime.now(datetime.timezone.utc).strftime("%a, %d %b %Y %H:%M:%S GMT")
        if method == "PUT":
            headers["content-type"] = headers.get("content-type", "application/octet-stream")
        path = f"/{name}/{urllib.parse.quote(path)}"
        text = "\n".join([method, "", "", str(len(data)) if data else "", "", headers.get("content-type", ""), "", "", "",
                          "", "", ""]) + "\n"
        text += "".join(f"{k}:{headers[k]}\n" for k in sorted(headers) if k.startswith("x-ms-"))
        text += f"/{name}{path}" + "".join(f"\n{k}:{query[k]}" for k in sorted(query))
        signature = hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()
        headers["authorization"] = f"SharedKey {name}:{base64.b64encode(signature).decode()}"
        url = f"http://127.0.0.1:{self.port}{path}" + ("?" + urllib.parse.urlencode(query) if query else "")
        return request(url, method, data if method == "PUT" else None, headers)

    def prepare(self):
        for account in (None, (self.other_account, self.other_key)):
            status, _, body = self.ask("PUT", "bucket", {"restype": "container"}, account=account)
            assert status == 201, body

    def url(self, prefix=""):
        return "az://bucket" + (f"/{prefix}" if prefix else "")

    def properties(self):
        return {"origin.endpoint": f"{self.endpoint}/{self.account}", "origin.account": self.account,
                "origin.account_key": self.key, "origin.part_size": "5MiB"}  # large objects have several blocks

    def other_properties(self):
        """The same service, another account."""
        return {**self.properties(), "origin.endpoint": f"{self.endpoint}/{self.other_account}", "origin.account": self.other_account,
                "origin.account_key": self.other_key}

    def sas(self):
        """Properties with an account's shared access signature instead of its key."""
        start, end = "2020-01-01T00:00:00Z", "2099-01-01T00:00:00Z"
        fields = {"sv": "2021-12-02", "ss": "b", "srt": "sco", "sp": "rwdlac", "st": start, "se": end, "spr": "https,http"}
        text = "\n".join([self.account, fields["sp"], fields["ss"], fields["srt"], start, end, "", fields["spr"],
                          fields["sv"], "", ""])
        fields["sig"] = base64.b64encode(hmac.new(base64.b64decode(self.key), text.encode(), hashlib.sha256).digest()).decode()
        return {"origin.endpoint": f"{self.endpoint}/{self.account}", "origin.sas": urllib.parse.urlencode(fields)}

    def put(self, key, data):
        status, _, body = self.ask("PUT", f"bucket/{key}", data=data, headers={"x-ms-blob-type": "BlockBlob"})
        assert status == 201, body

    def get(self, key):
        status, _, body = self.ask("GET", f"bucket/{key}")
        return body if status == 200 else None

    def delete(self, key):
        assert self.ask("DELETE", f"bucket/{key}")[0] == 202

    def keys(self):
        body = self.ask("GET", "bucket", {"restype": "container", "comp": "list"})[2]
        return sorted(e.text for e in xml.etree.ElementTree.fromstring(body).iterfind(".//Blob/Name"))


class Moto(Server):
    """moto: S3, IAM and STS. After `watch` every request must be signed by somebody who may do it, and roles are given by their
    trust policies, but for so many requests: a web identity asks without a signature, which moto refuses then."""

    program = harness.ROOT / ".deps/moto/bin/moto_server"
    account = "123456789012"

    @classmethod
    def missing(cls):
        return None if cls.program.exists() else "no moto; make it with scripts/origin-emulators build"

    def start(self):
        self.spawn([self.program, "-H", "127.0.0.1", "-p", self.port])

    def watch(self, but_for="0"):
        status, _, body = request(self.endpoint + "/moto-api/reset-auth", "POST", but_for.encode(), {"Content-Type": "text/plain"})
        assert status == 200, body

    def client(self, service, key="root", secret="root"):
        import boto3
        return boto3.client(service, endpoint_url=self.endpoint, region_name="us-east-1", aws_access_key_id=key,
                            aws_secret_access_key=secret)

    def prepare(self):
        self.client("s3").create_bucket(Bucket="bucket")

    def user(self, name, *actions):
        """(access key, secret key) of a new user who may do these."""
        iam = self.client("iam")
        iam.create_user(UserName=name)
        if actions:
            iam.put_user_policy(UserName=name, PolicyName="p", PolicyDocument=self._policy(*actions))
        made = iam.create_access_key(UserName=name)["AccessKey"]
        return made["AccessKeyId"], made["SecretAccessKey"]

    def role(self, name, trusted, *actions):
        """The ARN of a new role that `trusted` (an ARN, or "*") may assume."""
        trust = {"Effect": "Allow", "Principal": {"AWS": trusted}, "Action": "sts:AssumeRole"}
        iam = self.client("iam")
        made = iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [trust]}))
        iam.put_role_policy(RoleName=name, PolicyName="p", PolicyDocument=self._policy(*actions))
        return made["Role"]["Arn"]

    @staticmethod
    def _policy(*actions):
        allowed = {"Effect": "Allow", "Action": list(actions), "Resource": "*"}
        return json.dumps({"Version": "2012-10-17", "Statement": [allowed]})


class Nginx(Server):
    """nginx over a directory with its automatic index: read-only through HTTP, filled behind its back."""

    writable = False
    folders = True
    program = "/usr/sbin/nginx"

    @classmethod
    def missing(cls):
        return None if os.path.exists(cls.program) else "no nginx; install nginx-light"

    def start(self):
        config = f"""daemon off; pid {self.dir}/pid; error_log stderr; user root; events {{}}
            http {{ access_log off; sendfile on; types {{}} default_type text/x-test;
              client_body_temp_path {self.dir}/t; proxy_temp_path {self.dir}/t; fastcgi_temp_path {self.dir}/t;
              uwsgi_temp_path {self.dir}/t; scgi_temp_path {self.dir}/t;
              server {{ listen 127.0.0.1:{self.port};
                location / {{ root {self.data}; autoindex on; }}
                location /json/ {{ alias {self.data}/; autoindex on; autoindex_format json; }}
                location /plain/ {{ alias {self.data}/; etag off; }} }} }}"""
        (self.dir / "conf").write_text(config)
        self.spawn([self.program, "-p", self.dir, "-e", "stderr", "-c", self.dir / "conf"])

    def url(self, prefix="", below=""):
        return f"{self.endpoint}/{below}" + urllib.parse.quote(prefix)

    def properties(self):
        return {}

    def make_folder(self, name):
        (self.data / name).mkdir()

    def put(self, key, data):
        path = self.data / key
        path.parent.mkdir(parents=True, exist_ok=True)
        other = path.with_name(path.name + ".new")
        other.write_bytes(data)
        other.rename(path)

    def get(self, key):
        path = self.data / key
        return path.read_bytes() if path.exists() else None

    def delete(self, key):
        (self.data / key).unlink()

    def keys(self):
        return sorted(str(p.relative_to(self.data)) for p in self.data.rglob("*") if p.is_file())


class Directory(Server):
    """A server over a directory that the tests look into."""

    folders = True

    def url(self, prefix=""):
        return self.root_url + (f"/{prefix}" if prefix else "")

    def make_folder(self, name):
        (self.data / name).mkdir(parents=True, exist_ok=True)

    put, get, delete, keys = Nginx.put, Nginx.get, Nginx.delete, Nginx.keys


class Ganesha(Directory):
    """nfs-ganesha over a directory, NFS 3 on a port of its own. It wants to register with a port mapper: in a mount namespace
    of its own it finds one that says yes to everything (rpcbind.py)."""

    program = "/usr/bin/ganesha.nfsd"
    protocol = 3

    def __init__(self, directory):
        self.mount_port = harness.free_port()
        super().__init__(directory)

    @classmethod
    def missing(cls):
        if not os.path.exists(cls.program):
            return "no nfs-ganesha; install nfs-ganesha and nfs-ganesha-vfs"
        if os.geteuid() != 0:
            return "nfs-ganesha needs root"
        apart = subprocess.run(["unshare", "-m", "true"], stderr=subprocess.DEVNULL)
        return None if apart.returncode == 0 else "nfs-ganesha needs a mount namespace, which cannot be made from a chroot"

    @property
    def root_url(self):
        return f"nfs://127.0.0.1:{self.port}{self.data}"

    def properties(self):
        return {"origin.mount_port": self.mount_port}

    def start(self):
        (self.dir / "recovery").mkdir(exist_ok=True)
        (self.dir / "conf").write_text(f"""
            NFS_CORE_PARAM {{ NFS_Port = {self.port}; MNT_Port = {self.mount_port}; Bind_addr = 127.0.0.1; NFS_Protocols = {self.protocol};
                Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false; mount_path_pseudo = false; }}
            NFSv4 {{ Graceless = true; RecoveryBackend = fs; RecoveryRoot = "{self.dir}/recovery"; }}
            EXPORT {{ Export_Id = 1; Path = "{self.data}"; Pseudo = "{self.data}"; Access_Type = RW; Squash = None; SecType = sys;
                Protocols = {self.protocol}; Attr_Expiration_Time = 0; FSAL {{ Name = VFS; }} }}
            MDCACHE {{ Dir_Chunk = 0; Use_Getattr_Directory_Invalidation = true; }} # files change behind its back here
            LOG {{ Default_Log_Level = EVENT; }}
            """)
        mapper = pathlib.Path(__file__).with_name("rpcbind.py")
        self.spawn(["unshare", "-m", "sh", "-c", harness.LET_GO_OF_MOUNTS + 'mount -t tmpfs none /run && exec "$@"', "sh", sys.executable, mapper,
                    self.program, "-F", "-L", "STDERR", "-f", self.dir / "conf", "-p", self.dir / "pid"])

    def _answers(self):
        if not self.running():
            raise RuntimeError(f"{self.name} ended:\n{self.log_tail()}")
        return "NFS SERVER INITIALIZED" in self.log()[self._log_from:]

    def spawn(self, *arguments, **options):
        self._log_from = len(self.log())
        super().spawn(*arguments, **options)

    def restart(self):
        self.kill()
        self.start()
        harness.wait_until(self._answers, harness.READY_SECONDS, f"{self.name} answers")


class Hadoop(Server):
    """A namenode and a datanode, each a process; the origin is the namenode's WebHDFS. The tests ask it apart from the product."""

    folders = True
    place = harness.ROOT / ".deps/hadoop"
    ready_seconds = 400  # two Java programs
    user = "tester"

    def __init__(self, directory):
        self.ports = {name: harness.free_port() for name in ("rpc", "data", "http", "ipc")}
        self.tries = 5
        self.datanode = harness.Program(pathlib.Path(directory) / "datanode", "datanode")
        super().__init__(directory)

    @classmethod
    def missing(cls):
        return None if (cls.place / "run").exists() else "no Hadoop; make it with scripts/origin-emulators build hadoop"

    def _configure(self):
        conf = self.dir / "conf"
        conf.mkdir(exist_ok=True)
        ports = self.ports
        (conf / "log4j.properties").write_text("log4j.rootLogger=WARN,c\nlog4j.appender.c=org.apache.log4j.ConsoleAppender\n"
                                               "log4j.appender.c.layout=org.apache.log4j.SimpleLayout\n")
        for name, values in {
                "core": {"fs.defaultFS": f"hdfs://127.0.0.1:{ports['rpc']}", "hadoop.tmp.dir": self.dir / "tmp"},
                "hdfs": {"dfs.namenode.name.dir": self.data / "name", "dfs.datanode.data.dir": self.data / "data",
                         "dfs.namenode.http-address": f"127.0.0.1:{self.port}", "dfs.datanode.address": f"127.0.0.1:{ports['data']}",
                         "dfs.datanode.http.address": f"127.0.0.1:{ports['http']}", "dfs.datanode.hostname": "127.0.0.1",
                         "dfs.datanode.ipc.address": f"127.0.0.1:{ports['ipc']}", "dfs.replication": 1,
                         "dfs.namenode.safemode.extension": 0, "dfs.permissions.superusergroup": "super", "dfs.ls.limit": 7,
                         "dfs.namenode.acls.enabled": "true"}}.items():
            rows = "".join(f"<property><name>{k}</name><value>{v}</value></property>" for k, v in values.items())
            (conf / f"{name}-site.xml").write_text(f"<configuration>{rows}</configuration>")
        # Java must find this machine's name, which a container may not have told the resolver.
        (conf / "hosts").write_text(f"127.0.0.1 localhost {socket.gethostname()}\n")
        self.env = {"JAVA_TOOL_OPTIONS": f"-Djdk.net.hosts.file={conf}/hosts"}
        return conf

    def start(self):
        conf = self._configure()
        run = self.place / "run"
        if not (self.data / "name").exists():
            subprocess.run([run, conf, "namenode.NameNode", "-format", "-nonInteractive"], check=True, timeout=self.ready_seconds,
                           env={**os.environ, **self.env}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.spawn([run, conf, "namenode.NameNode"], env=self.env)
        self.start_datanode()

    def restart_namenode(self):
        """Killed, and started again: it waits for the datanode's report before it lets anybody write."""
        self.kill()
        self.spawn([self.place / "run", self.dir / "conf", "namenode.NameNode"], env=self.env)

    def safe_mode(self, on):
        """By the administrator's program, which `run` does not reach."""
        subprocess.run(["java", "-Xmx200m", "-cp", f"{self.dir}/conf:{self.place}/lib/*", "org.apache.hadoop.hdfs.tools.DFSAdmin", "-safemode",
                        "enter" if on else "leave"], check=True, timeout=self.ready_seconds, env={**os.environ, **self.env},
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def start_datanode(self):
        self.datanode.spawn([self.place / "run", self.dir / "conf", "datanode.DataNode"], env=self.env)

    def stop(self):
        self.datanode.stop()
        super().stop()

    def ask(self, method, path, op, user=None, data=None, **query):
        """(status, headers, body), at the datanode where one is told."""
        query = {"op": op, "user.name": user or self.user, **query}
        url = f"{self.endpoint}/webhdfs/v1/{urllib.parse.quote(path)}?{urllib.parse.urlencode(query)}"
        status, headers, body = request(url, method)
        if status == 307:
            status, headers, body = request(urllib.parse.quote(headers["Location"].encode("latin-1"), safe=":/?&=%+"), method, data or b"",
                                            {"Content-Type": "application/octet-stream"})
        return status, headers, body

    def _begin_again(self):
        """On other ports: somebody else took one between its choice and its use."""
        self.tries -= 1
        self.kill()
        self.datanode.kill()
        self.log_path.unlink(missing_ok=True)
        self.datanode.log_path.unlink(missing_ok=True)
        self.port, self.ports = harness.free_port(), {name: harness.free_port() for name in self.ports}
        self.start()

    def _answers(self):
        if not self.running() or not self.datanode.running():
            said = f"{self.log_tail()}\n{self.datanode.log_tail()}"
            if self.tries > 0 and "Address already in use" in said:
                self._begin_again()
                return False
            raise RuntimeError(f"{self.name} ended:\n{said}")
        try:
            superuser = pwd.getpwuid(os.geteuid()).pw_name
            return self.ask("PUT", "ready", "CREATE", superuser, b"x", overwrite="true")[0] == 201
        except OSError:
            return False

    def prepare(self):
        superuser = pwd.getpwuid(os.geteuid()).pw_name
        for op, query in (("MKDIRS", {}), ("SETOWNER", {"owner": self.user})):
            status, _, body = self.ask("PUT", "work", op, superuser, **query)
            assert status == 200, body

    def url(self, prefix=""):
        return f"hdfs://127.0.0.1:{self.port}/work" + (f"/{prefix}" if prefix else "")

    def properties(self):
        return {"origin.user": self.user}

    def make_folder(self, name):
        status, _, body = self.ask("PUT", f"work/{name}", "MKDIRS")
        assert status == 200, body

    def put(self, key, data):
        status, _, body = self.ask("PUT", f"work/{key}", "CREATE", data=data, overwrite="true")
        assert status == 201, body

    def get(self, key):
        url = f"{self.endpoint}/webhdfs/v1/work/{urllib.parse.quote(key)}?op=OPEN&user.name={self.user}"
        status, _, body = request(url)
        return body if status == 200 else None

    def delete(self, key):
        assert json.loads(self.ask("DELETE", f"work/{key}", "DELETE")[2])["boolean"]

    def names(self, folder=""):
        listing = json.loads(self.ask("GET", f"work/{folder}", "LISTSTATUS")[2])
        return {x["pathSuffix"]: x for x in listing.get("FileStatuses", {}).get("FileStatus", [])}

    def keys(self, folder=""):
        found = []
        for name, x in self.names(folder).items():
            found += self.keys(f"{folder}{name}/") if x["type"] == "DIRECTORY" else [folder + name]
        return sorted(found)
