"""A certificate authority of the test's own, and certificates for 127.0.0.1."""

import subprocess


class Authority:
    """A certificate authority in a directory; `ca` is what clients trust."""

    def __init__(self, directory):
        self.dir = directory
        self.dir.mkdir(parents=True, exist_ok=True)
        self.ca = self.dir / "ca.crt"
        self._openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                      "-subj", "/CN=test authority", "-addext", "keyUsage=critical,keyCertSign,cRLSign", "-keyout",
                      self.dir / "ca.key", "-out", self.ca)

    def _openssl(self, *arguments):
        done = subprocess.run(["openssl", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, cwd=self.dir, timeout=200)
        assert done.returncode == 0, done.stdout

    def issue(self, name):
        """(certificate, key) for 127.0.0.1 with this common name."""
        cert, key, request = (self.dir / f"{name}.{end}" for end in ("crt", "key", "csr"))
        extensions = self.dir / "extensions"
        extensions.write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth\n")
        self._openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
                      "-keyout", key, "-out", request)
        self._openssl("x509", "-req", "-days", "2", "-CA", self.ca, "-CAkey", self.dir / "ca.key", "-CAcreateserial",
                      "-extfile", extensions, "-in", request, "-out", cert)
        return cert, key
