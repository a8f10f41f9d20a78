"""The source tree itself: what lint looks for it finds, the short names are those of the scripts, and the tests that a
run collects are those that were asked for."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

import harness

ROOT = harness.ROOT


def run(*argv, **options):
    return subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=400, **options)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_include_rule_finds_a_breach(tmp_path):
    """A header from below, one without its folder, one that a command may not use, and a folder that nobody named."""
    write(tmp_path / "src/store/x.c", '#include "base/err.h"\n#include "object/object.h"\n#include "x.h"\n')
    write(tmp_path / "src/cli/ls.c", '#include "client/client.h"\n  #  include "store/store.h"\n')
    write(tmp_path / "src/other/y.c", "")
    done = run(ROOT / "test/lint/layers", tmp_path)
    assert done.returncode == 1
    assert done.stdout.splitlines() == ["src/cli/ls.c: includes store/, which lies below cli/",
                                        "src/other/y.c: folder other is not in the list of layers",
                                        "src/store/x.c: includes object/, which lies below store/",
                                        'src/store/x.c: "x.h" must be written with its folder']


@pytest.mark.parametrize("name, text, finding", [
    ("src/base/a.c", "typedef struct a {\n} a;\n", "src/base/a.c: struct typedef"),
    ("src/base/a.h", "#pragma once\n", "src/base/a.h: header without a comment at its head"),
    ("src/base/a.h", "/* a */\n", "src/base/a.h: header without #pragma once"),
    ("src/base/a.c", "int a(void)\n{\n" + "    a();\n" * 70 + "}\n", "src/base/a.c: a: 73 lines"),
    ("src/base/a.c", "\n" * 1001, "src/base/a.c: 1001 lines"),
    ("src/base/a.c", "/* TO" + "DO */\n", "src/base/a.c: mark of unfinished work"),
    ("tools/new/a.sh", "", "tools/new: no README.md"),
])
def test_each_house_rule_finds_its_breach(tmp_path, name, text, finding):
    write(tmp_path / "src/base/README.md", "base\n")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    assert run(ROOT / "test/lint/house", tmp_path).returncode == 0
    write(tmp_path / name, text)
    done = run(ROOT / "test/lint/house", tmp_path)
    assert done.returncode == 1 and done.stdout.startswith(finding) and len(done.stdout.splitlines()) == 1, done.stdout


def test_short_names_are_those_of_the_scripts():
    """make demo, test and lint are the scripts and nothing else, help lists what there is, and the README names the
    commands that continuous integration runs."""
    for goal, script in {"demo": "scripts/demo", "test": "scripts/test", "lint": "test/lint/all"}.items():
        done = run("make", "-n", goal, cwd=ROOT, check=True)
        assert done.stdout.strip() == script and os.access(ROOT / script, os.X_OK)
    for words, command in {"": "bench/run", "QUICK=1": "bench/run --quick", "ALL=1": "bench/run --all"}.items():
        assert run("make", "-n", "bench", *words.split(), cwd=ROOT, check=True).stdout.split() == command.split()
    listed = run("make", "help", cwd=ROOT, check=True).stdout
    goals = set(re.findall(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(), re.M)[0].split())
    assert set(re.findall(r"^  make (\S+) +\S", listed, re.M)) == goals >= {"all", "demo", "test", "lint", "bench", "install", "help"}
    ci = [line for line in (ROOT / ".ci/run").read_text().splitlines() if not line.startswith(("#", "set ", "cd "))]
    assert ci == ["export FOREBAY_TEST_ROUTES=local,loop", "scripts/setup", "make lint", "scripts/test"]
    assert re.findall(r"^scripts/\w+", (ROOT / "README.md").read_text(), re.M) == ["scripts/demo", "scripts/test", "scripts/setup"]


def test_make_sees_sources_that_came_or_went(tmp_path):
    """As after a pull: Meson lists the sources when it configures, so that it has to be asked again; else it is not."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for folder in ("src/base", "test/unit/support", "build"):
        (tmp_path / folder).mkdir(parents=True)
    source, configured = tmp_path / "src/base/new.c", tmp_path / "build/build.ninja"

    def configures(at_s):
        """Whether make would, when the last time was then."""
        configured.touch()
        os.utime(configured, (at_s, at_s))
        return "meson setup --reconfigure build" in run("make", "-n", cwd=tmp_path, check=True).stdout

    source.touch()
    now = source.parent.stat().st_mtime
    assert configures(now - 10) and not configures(now + 10)
    source.unlink()
    now = source.parent.stat().st_mtime
    assert configures(now - 10) and not configures(now + 10)
    configured.unlink()
    assert "meson setup build " in " ".join(run("make", "-n", cwd=tmp_path, check=True).stdout.split())


def test_setup_says_nothing_where_all_is_there():
    """It ran before this test did, and finds nothing to do."""
    done = run(ROOT / "scripts/setup")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def collected(file, **environment):
    """The tests of a file that a run would have, by their names with parameters."""
    env = {key: value for key, value in os.environ.items()
           if not key.startswith(("FOREBAY_SOAK", "FOREBAY_TEST_ROUTES", "PYTEST_"))}
    done = run(sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", file, cwd=ROOT / "test/system",
               env={**env, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return re.findall(rf"^{file}::(\S.*)$", done.stdout, re.M)


def test_long_tests_are_collected_when_asked_for():
    """Those marked soak are not there without FOREBAY_SOAK, rather than reported as not run."""
    usual, all_ = collected("test_scratch_directories.py"), collected("test_scratch_directories.py", FOREBAY_SOAK="1")
    assert set(usual) < set(all_)
    assert not any("test_a_million_entries" in name for name in usual)
    assert any("test_a_million_entries" in name for name in all_)


def test_make_soak_runs_what_is_for_it():
    """Each file with tests that are marked soak, or that heeds how long a walk or how many kills are asked for, is among those that
    scripts/test --soak gives to pytest with FOREBAY_SOAK. [test_mount_memory.py was not.]"""
    [files] = re.findall(r"(?m)^ *FOREBAY_SOAK=\S+ FOREBAY_WALK_SECONDS=\S+ (?:\\\n|.)*$", (ROOT / "scripts/test").read_text())
    heeding = {path.name for path in (ROOT / "test/system").glob("test_*.py")
               if re.search(r"mark\.soak|^KILLS = .*FOREBAY_SOAK|^WALK_SECONDS = ", path.read_text(), re.M)}
    assert len(heeding) > 5 and heeding <= {name.rpartition("/")[2] for name in files.split()}


def test_each_test_runs_in_one_route_or_in_all_that_were_asked_for():
    """Half of the tests in each, every test in one, the same ones each time; in both where both are asked for."""
    def without_route(name):
        return re.sub(r"\b(local|loop)\b", "ROUTE", name)

    usual, both = collected("test_s3_objects.py"), collected("test_s3_objects.py", FOREBAY_TEST_ROUTES="local,loop")
    routed = [name for name in usual if without_route(name) != name]
    assert sorted(without_route(name) for name in usual) == sorted({without_route(name) for name in both})
    assert set(usual) < set(both) and len(both) - len(usual) == len(routed)
    assert all(len(routed) / 4 < sum(route in name for name in routed) for route in ("local", "loop"))
    assert usual == collected("test_s3_objects.py")


OTHER_NAMES = {  # of operations in src/s3 that have several in S3's reference
    "GetAcl": ["GetBucketAcl", "GetObjectAcl"], "PutAcl": ["PutBucketAcl", "PutObjectAcl"], "Preflight": ["OPTIONS"],
    "GetObjectLock": ["GetObjectRetention", "GetObjectLegalHold"],
    "GetBucketSetting": ["GetBucket..."], "PutBucketSetting": ["PutBucket..."], "DeleteBucketSetting": ["DeleteBucket..."],
}


def test_the_page_of_s3_names_every_operation_and_header():
    """docs/S3.md states what src/s3 serves: each operation of its table, each setting, each header that its code knows."""
    page = (ROOT / "docs/S3.md").read_text()
    internal = (ROOT / "src/s3/s3_internal.h").read_text()
    operations = re.findall(r'^    X\([A-Z0-9_]+, "(\w+)", \w+, \w+\)', internal, re.M)
    assert len(operations) > 30
    for name in operations:
        for other in OTHER_NAMES.get(name, [name]):
            assert other in page, f"docs/S3.md does not name {other}"
    settings = re.findall(r'^    X\("([\w-]+)", \w+, ', internal, re.M)
    assert len(settings) > 10 and all(re.search(rf"\b{re.escape(name)}\b", page) for name in settings)
    headers = {name.lower() for file in (ROOT / "src/s3").glob("*.c")
               for name in re.findall(r'"(x-(?:amz|forebay)-[a-z0-9-]*[a-z0-9])"', file.read_text(), re.I)}
    assert len(headers) > 40
    missing = sorted(name for name in headers if not re.search(re.escape(name) + r"(?![\w-]*\w)", page, re.I))
    assert not missing, missing


def test_the_figures_of_the_public_suite_add_up():
    """docs/S3.md names each test of the public suite that fails, once, in the row that says why, and counts them right."""
    page = (ROOT / "docs/S3.md").read_text()
    rows = [(int(count), re.findall(r"`(\w+)`", names)) for count, names in re.findall(r"(?m)^\| (\d+) \| .*? \| (`.*) \|$", page)]
    passed, every, skipped, failed = map(int, re.search(
        r"(\d+) of (\d+) pass, (\d+) is skipped, (\d+) fail", page).groups())
    left_out, rest, share = re.search(r"(\d+) need what is left out.*?other (\d+),\s+([\d.]+) % pass", page, re.S).groups()
    assert all(count == len(names) for count, names in rows)
    assert len({name for _, names in rows for name in names}) == sum(count for count, _ in rows) == failed == every - passed - skipped
    assert int(rest) == every - skipped - int(left_out) and float(share) == round(100 * passed / int(rest), 1) >= 95


def test_each_failed_unit_test_counts_once(tmp_path):
    """cmocka names what failed where it ran and once more at the end of its program."""
    log = tmp_path / "testlog.txt"
    log.write_text("[==========] Running 2 test(s).\n[  FAILED  ] test_a\n[       OK ] test_b\n[==========] 2 test(s) run.\n"
                   "[  FAILED  ] 1 test(s), listed below:\n[  FAILED  ] test_a\n\n 1 FAILED TEST(S)\n"
                   "[==========] Running 1 test(s).\n[  ERROR   ] test_c\n")
    function = re.search(r"(?ms)^count_unit\(\).*?^}$", (ROOT / "scripts/test").read_text()).group()
    done = run("bash", "-c", f"passed=0 failed=0\n{function}\ncount_unit {log}\necho $passed passed, $failed failed")
    assert (done.stdout, done.stderr) == ("1 passed, 2 failed\n", "")


def test_a_failed_unit_program_is_told_at_the_end(tmp_path):
    """With its result and the end of its output, which stands far above what continuous integration shows of a log; scripts/test
    prints it right before the counts."""
    log = tmp_path / "testlog.json"
    ends = {"duration": 3.2, "returncode": 1}
    log.write_text("\n".join(json.dumps(x) for x in [
        {"name": "base / good", "result": "OK", "stdout": "[       OK ] test_a\n", **ends},
        {"name": "base / bad", "result": "FAIL", "stdout": "begin\n" * 40 + "[  FAILED  ] test_b\n", "stderr": "0 != 1\n", **ends},
        {"name": "base / slow", "result": "TIMEOUT", "stdout": "[ RUN      ] test_c\n", **ends},
        {"name": "base / race", "result": "FAIL", "stdout": "[       OK ] test_d\n",
         "stderr": "begin\n" * 40 + "WARNING: ThreadSanitizer: data race (pid=1)\n  #0 of it\nSUMMARY: of it\n" + "on\n" * 40, **ends}]) + "\n")
    done = run(sys.executable, ROOT / "scripts/failed-units", log)
    told = done.stdout.splitlines()
    assert told[0] == "== base / bad: FAIL, status 1, after 3 s"
    race = told.index("== base / race: FAIL, status 1, after 3 s")
    assert told[race - 4:race] == ["[  FAILED  ] test_b", "0 != 1", "== base / slow: TIMEOUT, status 1, after 3 s", "[ RUN      ] test_c"]
    assert 20 < race < 40 and not done.stderr
    # A report of a sanitizer stands wherever it was written, and the program may go on after it.
    assert told[race + 1:race + 5] == ["WARNING: ThreadSanitizer: data race (pid=1)", "  #0 of it", "SUMMARY: of it", "on"] and told[-1] == "on"
    script = (ROOT / "scripts/test").read_text()
    assert script.index('scripts/failed-units "$dir/meson-logs/testlog.json" >>"$failures"') < script.index('cat "$failures"') < script.index("$passed passed, $failed failed")


def test_what_shares_a_node_runs_on_one_worker(tmp_path):
    """The tests of a file and route run on one worker, those of the demonstration too; every worker has some."""
    code = """
import os, pathlib, pytest
@pytest.mark.parametrize("route,number", [(route, number) for route in ("local", "loop") for number in range(6)])
def test_of_a_route(route, number):
    pathlib.Path(__file__).with_name(f"{__name__}.{route}.{os.environ['PYTEST_XDIST_WORKER']}").touch()
"""
    write(tmp_path / "test_demo.py", code)
    write(tmp_path / "test_some.py", code)
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    done = run(sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "conftest", "-p", "no:cacheprovider", "-n", "3", "--dist", "loadgroup",
               tmp_path, env={**env, "FOREBAY_TEST_ROUTES": "local,loop", "PYTHONPATH": str(ROOT / "test/system")})
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [path.name.split(".") for path in tmp_path.glob("test_*.gw*")]
    assert {(name, route) for name, route, _ in ran} == {(name, route) for name in ("test_demo", "test_some") for route in ("local", "loop")}
    workers = [{worker for name, route, worker in ran if name == "test_some" and route == one} for one in ("local", "loop")]
    workers.append({worker for name, _, worker in ran if name == "test_demo"})
    assert [len(each) for each in workers] == [1, 1, 1]
    assert len(set.union(*workers)) == 3


def named_tests(page):
    """(row, file, name or None) of every test that a row of the table names."""
    for row in re.findall(r"(?m)^\|[^|]*\|(.*)\|$", page):
        file = None
        for kind, base, rest, bare in re.findall(r"\b([SU])/(\w+)((?:\.\w+)?)|(?<![\w/.\"-])(\.[a-z]\w+|test_\w+)", row):
            if base:
                file = ROOT / ("test/system" if kind == "S" else "test/unit") / (base + (".py" if kind == "S" else ".c"))
                yield row, file, rest.lstrip(".")
            elif file and bare:
                yield row, file, bare.lstrip(".")


def test_every_test_that_the_documents_name_exists():
    """docs/TESTS.md says which test holds a promise: a name that no file has would promise for nobody."""
    named = list(named_tests((ROOT / "docs/TESTS.md").read_text()))
    assert len(named) > 100
    for row, file, name in named:
        assert file.exists(), f"{file.name}: {row}"
        found = re.search(r"\b" + re.escape(name.removesuffix("_")), file.read_text())
        assert not name or found, f"{file.name} has no {name}: {row}"
