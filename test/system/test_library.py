"""What `make install` puts down: a program of somebody else, compiled against it, reads and writes objects."""

import os
import subprocess

import harness

ROOT = harness.ROOT
PROGRAM = r"""
#include <forebay/forebay.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(long r, const char *what)
{
    if (r < 0) {
        fprintf(stderr, "%s: %s (%s)\n", what, forebay_error(), forebay_error_name((int)r));
        exit(1);
    }
}

int main(int argc, char **argv)
{
    struct forebay *f;
    struct forebay_file *file;
    struct forebay_listing *l;
    struct forebay_stat st;
    const char *key;
    char text[64] = "";
    must(argc == 2 ? 0 : -1, "usage");
    must(forebay_connect(NULL, &f), "connect");
    must(forebay_put(f, argv[1], "dir/hello", "hello", 5, NULL, &st), "put");
    must(forebay_open(f, argv[1], "dir/hello", &file), "open");
    must(forebay_pread(file, text, sizeof(text) - 1, 1), "pread");
    forebay_close(file);
    must(forebay_list(f, argv[1], "dir/", 0, &l), "list");
    while (forebay_list_next(l, &key, &st) > 0)
        printf("%s %d ", key, (int)st.size_bytes);
    forebay_list_close(l);
    printf("%s %s\n", text, forebay_error_name(forebay_stat(f, argv[1], "absent", &st)));
    forebay_disconnect(f);
    return 0;
}
"""


def test_program_compiled_against_the_installation(bucket, tmp_path):
    """Header, library and pkg-config file are all that a program needs, and the library shows the interface only. `make
    install` puts down the program and its manual beside them."""
    where = tmp_path / "inst"
    subprocess.run(["make", "-C", ROOT, "-o", "all", "install"], env={**os.environ, "DESTDIR": str(where)}, check=True,  # all is built
                   stdout=subprocess.DEVNULL)
    [program] = where.rglob("bin/forebay")
    assert subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout.startswith("forebay ")
    [manual] = where.rglob("man/man1/forebay.1")
    assert manual.read_bytes() == (ROOT / "docs/forebay.1").read_bytes()
    [library] = where.rglob("libforebay.so.*.*.*")
    [description] = where.rglob("forebay.pc")
    (tmp_path / "program.c").write_text(PROGRAM)
    env = {**os.environ, "PKG_CONFIG_PATH": str(description.parent), "PKG_CONFIG_SYSROOT_DIR": str(where)}
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "forebay"], env=env, check=True, capture_output=True,
                           text=True).stdout.split()
    program = tmp_path / "program"
    subprocess.run(["gcc", "-Wall", "-Wextra", "-Werror", "-o", program, tmp_path / "program.c", *flags], check=True)
    done = subprocess.run([program, bucket.name], check=True, capture_output=True, text=True,
                          env={**os.environ, "LD_LIBRARY_PATH": str(library.parent),
                               "FOREBAY_SOCKET": str(bucket.node.socket_path)})
    assert done.stdout == "dir/hello 5 ello ENOENT\n"
    assert bucket.truth.get_object(Bucket=bucket.name, Key="dir/hello")["Body"].read() == b"hello"
    shown = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout.split("\n")
    assert {line.split()[-1].split("_")[0] for line in shown if line} == {"forebay"}
