"""The programs that are trees of processes."""

import glob
import os
import shutil

from program import HERE, Program, SetupError, cpython, digest, generate, junit_verdicts, need, stress, template_file
from project import project
from redis_saves import SERVER, dumps_hold

DEBIAN_PYTHON = "/usr/bin/python3"  # of which packages like pytest are


def as_nobody(_work):
    """For what refuses root: another user, who keeps the one capability that Octavo takes."""
    if os.geteuid():
        return []
    return [need("setpriv", "util-linux"), "--reuid=nobody", "--regid=nogroup", "--clear-groups",
            "--inh-caps=+sys_ptrace", "--ambient-caps=+sys_ptrace"]


def room_for_nobody(work):
    os.chmod(work, 0o1777)


def named(name, short):
    """What the shorter twin is called, and belongs to."""
    return dict(name=name + "_short" * short, short=short)


def make(files, functions, jobs=4, short=False, **more):
    """`make -j`: its last rule notes the hash of every object."""
    name = f"project{files}"

    def setup(work):
        need("make", "make")
        project(f"{work}/{name}", files, functions)

    return Program(command=lambda work: ["make", "-s", "-B", f"-j{jobs}", "-C", name], setup=setup,
                   files={f"{name}/built": digest}, managed=files + 2, **named("make" if jobs == 4 else f"make{jobs}", short), **more)


def gxx(count, short=False):
    """The driver, cc1plus and the assembler."""
    name = f"templates{count}"
    return Program(command=lambda work: [need("g++", "g++"), "-O2", "-pipe", "-frandom-seed=1", "-c", f"{name}.cc"],
                   setup=generate(f"{name}.cc", template_file(count)), files={f"{name}.o": digest}, managed=3,
                   **named("gxx", short))


def redis(keys, snapshots, short=False):
    def setup(work):
        need(SERVER, "redis-tools")

    return Program(command=lambda work: [DEBIAN_PYTHON, f"{HERE}/redis_saves.py", str(keys), str(snapshots)],
                   setup=setup, files={"dumps": dumps_hold}, managed=3 + snapshots, **named("redis", short))


def redis_clients(keys, requests):
    def command(work):
        need(SERVER, "redis-tools")
        return [need("bash", "bash"), f"{HERE}/redis_clients.sh", str(keys), str(requests)]

    return Program("redis_clients", command, managed=4)


def pipeline(lines, short=False):
    return Program(command=lambda work: [need("bash", "bash"), f"{HERE}/pipeline.sh", str(lines)],
                   files={"pipeline.gz": digest}, managed=12, **named("pipeline", short))


def pytest(rows, short=False):
    """A pool of two workers; the verdict of every test is compared."""
    results = f"pytest{rows}.xml"

    def setup(work):
        if not glob.glob("/usr/lib/python3/dist-packages/xdist"):
            raise SetupError("pytest's pool is missing: apt-get install python3-pytest-xdist (or run ci/install)")

    def command(work):
        return ["env", f"POOL_TEST_ROWS={rows}", DEBIAN_PYTHON, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider",
                "--rootdir", work, f"--junit-xml={work}/{results}", f"{HERE}/pool_tests.py"]

    return Program(command=command, setup=setup, stdout=lambda data: b"", files={results: junit_verdicts}, managed=3,
                   **named("pytest", short))


def node(entries, rounds, short=False):
    return Program(command=lambda work: [os.path.realpath(need("node", "nodejs")), f"{HERE}/workers.js",
                                         str(entries), str(rounds)], managed=6, **named("workers", short))


def postgres(scale, transactions, short=False):
    directory = f"postgres{scale}"

    def setup(work):
        room_for_nobody(work)
        shutil.copy(f"{HERE}/postgres.sh", work)  # nobody may not be let to where it stands
        os.makedirs(f"{work}/{directory}", exist_ok=True)
        os.chmod(f"{work}/{directory}", 0o1777)

    def command(work):
        binaries = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
        if not binaries:
            raise SetupError("PostgreSQL is missing: apt-get install postgresql (or run ci/install)")
        return ["sh", f"{work}/postgres.sh", binaries[-1], f"{work}/{directory}", str(scale), str(transactions)]

    return Program(command=command, setup=setup, before=as_nobody, managed=15, **named("postgres", short))


def stressors():
    """Two workers of each, which are forked; what they fork in turn is what most of them are about."""
    two = dict(workers=2, managed=3, short=True)
    return [
        stress("fork", "--fork-ops", "2000", **two),
        stress("vfork", "--vfork-ops", "20000", **two),
        stress("clone", "--clone-max", "64", "--clone-ops", "200", **two),
        stress("exec", "--exec-max", "8", "--exec-ops", "40", before=as_nobody, setup=room_for_nobody, **two),
        stress("pthread", "--pthread-ops", "2000", **two),
        stress("daemon", "--daemon-ops", "500", **two),
        stress("zombie", "--zombie-ops", "2000", **two),
        stress("kill", "--kill-ops", "20000", **two),
        stress("mmap", "--mmap-bytes", "64M", "--mmap-ops", "20", **two),
        stress("mremap", "--mremap-bytes", "32M", "--mremap-ops", "40", **two),
        stress("madvise", "--madvise-ops", "40", **two),
        stress("brk", "--brk-ops", "100000", **two),
        stress("munmap", "--munmap-ops", "200000", **two),
        stress("mprotect", "--mprotect-ops", "2000", **two),
        stress("malloc", "--malloc-bytes", "64K", "--malloc-max", "2000", "--malloc-ops", "200000", **two),
        stress("bigheap", "--bigheap-growth", "1M", "--bigheap-ops", "200", **two),
        stress("vm", "--vm-bytes", "64M", "--vm-method", "all", "--vm-ops", "20000", **two),
    ]


def trees():
    """The list. What takes more than some seconds alone has a shorter one beside it."""
    return [
        cpython("test_subprocess"),
        cpython("test_fork1", short=True),
        cpython("test_multiprocessing_fork"),
        cpython("test_multiprocessing_spawn"),
        cpython("test_concurrent_futures"),
        cpython("test_os"),
        cpython("test_pty", short=True),
        make(300, 40),
        make(20, 80, short=True),
        make(20, 80, jobs=2, short=True, fits=True, fits_within=1.05),
        gxx(500),
        gxx(100, short=True),
        redis(100_000, 5),
        redis(30_000, 2, short=True),
        redis_clients(500_000, 300_000),
        pipeline(800_000),
        pipeline(100_000, short=True),
        pytest(30_000),
        pytest(5_000, short=True),
        node(100_000, 5),
        node(20_000, 4, short=True),
        postgres(2, 2000),
        postgres(1, 200, short=True),
        *stressors(),
    ]
