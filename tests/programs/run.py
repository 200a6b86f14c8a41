#!/usr/bin/env python3
"""Runs unmodified programs alone and under Octavo at half of their memory, and compares.

Each program runs once alone: that gives what is right (exit status, stdout, data files) and its
peak of resident memory. Then it runs under Octavo with a limit of max(32M, half of that peak);
whatever differs is a failure, and so is a program that this machine lacks.

    tests/programs/run.py                      all programs, with target/release/octavo
    tests/programs/run.py --short              a small one of each kind
    tests/programs/run.py --only sort,node --times 20
    tests/programs/run.py --cgroup             each in a cgroup of the limit + 64 MiB, no swap
    tests/programs/run.py --fits               limit above the peak: what does Octavo cost then?
    tests/programs/run.py --under ''           under nothing: tests this runner

`--under` is the command to put before each program; {limit} and {stats} are filled in.
"""

import argparse
import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
import xml.etree.ElementTree
from dataclasses import dataclass, field

from cgroup import Cgroup, CgroupError

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
MIB = 1 << 20
FLOOR = 32 * MIB
PSS_SLACK = 16 * MIB
UNDER = "{root}/target/release/octavo run --memory {limit} --stats-json {stats} --"


class SetupError(Exception):
    """A program cannot be prepared; the message names it and what would help."""


# ---- what is compared ---------------------------------------------------------------------


def whole(data):
    """Every byte."""
    return data


def junit_verdicts(path):
    """Of CPython's tests: the verdict of every test, without its time."""
    with open(path, "rb") as f:
        text = f.read()
    verdicts = []
    try:
        for case in xml.etree.ElementTree.fromstring(text).iter("testcase"):
            kinds = sorted({child.tag for child in case if child.tag in ("failure", "error", "skipped")})
            verdicts.append(f"{case.get('name')} {' '.join(kinds) or 'ok'}")
    except xml.etree.ElementTree.ParseError:
        verdicts.append("no verdicts: the file of results is broken")
    return "\n".join(sorted(verdicts)).encode()


def digest(path):
    """Of a data file: size and hash."""
    hasher = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(MIB):
            hasher.update(block)
    return f"{os.path.getsize(path)} bytes, sha256 {hasher.hexdigest()}".encode()


def stress_verdict(text):
    """Of stress-ng: its complaints."""
    lines = re.findall(rb"stress-ng: (fail|error|warn)\w*: +\[\d+\] (.*)", text)
    return b"\n".join(b" ".join(line) for line in lines)


# ---- the programs -------------------------------------------------------------------------


@dataclass
class Program:
    """One entry of the list. `command` and `setup` get the directory to work in."""

    name: str
    command: object  # (work) -> argv
    setup: object = None  # (work) -> None; may raise SetupError
    stdin: str = "/dev/null"  # relative to the directory of this file
    stdout: object = whole  # bytes -> what is compared
    files: dict = field(default_factory=dict)  # name in the work directory -> (path) -> bytes
    short: bool = False  # belongs to --short
    fits: bool = False  # belongs to --fits
    slow_limit: float = None  # at most so many times the plain wall
    mappings: int = None  # at most so many more mappings than alone ("mappings N" on stderr)
    over: int = None  # at most so many bytes over the limit, by Octavo's own count
    can_fit: bool = True  # its memory is in the first process and compresses: the cgroup test is fair
    plain_status: int = 0  # None: whatever it is alone


def need(command, package):
    """The path of a command that must be there."""
    path = shutil.which(command)
    if not path:
        raise SetupError(f"'{command}' is missing: apt-get install {package} (or run ci/install)")
    return path


def compiled(name, flags=(), source=None):
    """A program from a C file beside this one, compiled into the work directory."""

    def setup(work):
        output = f"{work}/{name}"
        if os.path.exists(output):
            return
        source_path = f"{HERE}/{source or name}.c"
        command = [need("gcc", "gcc"), "-O2", "-std=gnu11", "-pthread", "-o", output, source_path, *flags]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SetupError(f"{' '.join(command)}: {done.stderr.strip()}")

    return setup


def c_program(name, *args, flags=(), source=None, entry=None, **more):
    return Program(
        entry or name,
        lambda work: [f"{work}/{name}", *(a.format(work=work) for a in args)],
        setup=compiled(name, flags, source),
        **more,
    )


def generate(name, write):
    """A data file made once: `write(f)` fills it."""

    def setup(work):
        path = f"{work}/{name}"
        if not os.path.exists(path):
            with open(path + ".part", "wb") as f:
                write(f)
            os.rename(path + ".part", path)

    return setup


def both(*setups):
    def setup(work):
        for one in setups:
            one(work)

    return setup


def lines_file(megabytes):
    """Lines in no order, such as a log's."""

    def write(f):
        x, left = 1, megabytes * MIB
        while left > 0:
            block = []
            for _ in range(10000):
                x = (x * 6364136223846793005 + 1442695040888963407) % (1 << 64)
                block.append(f"{x >> 33:010d} request of user{x >> 50:05d} for /page/{x >> 44 & 255}\n")
            data = "".join(block).encode()
            f.write(data)
            left -= len(data)

    return write


def template_file(count):
    def write(f):
        subprocess.run([sys.executable, f"{HERE}/templates.py", str(count)], stdout=f, check=True)

    return write


def python_with_tests():
    """An interpreter that has CPython's own tests; a real one, never a shell script before it."""
    for candidate in (sys.executable, "/usr/bin/python3"):
        found = subprocess.run([candidate, "-c", "import test.test_gc, sys; print(sys.executable)"],
                               capture_output=True, text=True)
        if found.returncode == 0:
            return os.path.realpath(found.stdout.strip())
    raise SetupError("no python3 has the package 'test': apt-get install libpython3.N-testsuite (or run ci/install)")


def cpython(name, **more):
    return Program(
        f"py_{name}",
        lambda work: [python_with_tests(), "-m", "test", "--junit-xml", f"{work}/py_{name}.xml", name],
        stdout=lambda data: b"",  # times and loads; the verdicts are in the file
        files={f"py_{name}.xml": junit_verdicts},
        plain_status=None,
        **more,
    )


def java_class(work):
    if not os.path.exists(f"{work}/Churn.class"):
        subprocess.run([need("javac", "default-jdk-headless"), "-d", work, f"{HERE}/Churn.java"], check=True)


def java(collector, rounds, short=False, fits=False):
    return Program(
        f"java_{collector.lower()}" + ("_short" if short else ""),
        lambda work: [os.path.realpath(need("java", "default-jdk-headless")), f"-XX:+Use{collector}GC", "-Xmx400m",
                      "-cp", work, "Churn", str(rounds), "150000"],
        setup=java_class,
        short=short,
        fits=fits,
    )


def cc1plus(count, **more):
    name = f"templates{count}"

    def command(work):
        compiler = subprocess.run([need("g++", "g++"), "-print-prog-name=cc1plus"],
                                  capture_output=True, text=True, check=True).stdout.strip()
        return [compiler, "-quiet", "-O1", "-frandom-seed=1", f"{work}/{name}.cc", "-o", f"{work}/{name}.s"]

    return Program(f"cc1plus{count}", command, setup=generate(f"{name}.cc", template_file(count)),
                   files={f"{name}.s": digest}, **more)


def sort(megabytes, **more):
    """The buffer is larger than the file's memory at half: the file is larger than the limit."""
    name = f"lines{megabytes}"
    return Program(
        f"sort{megabytes}",
        lambda work: [need("sort", "coreutils"), "-S", f"{megabytes * 5 // 4}M", "--parallel=2", "-T", work,
                      "-o", f"{work}/{name}.sorted", f"{work}/{name}"],
        setup=generate(name, lines_file(megabytes)),
        files={f"{name}.sorted": digest},
        **more,
    )


def stress(name, *args, short=False):
    return Program(
        f"stress_{name}",
        lambda work: [need("stress-ng", "stress-ng"), "--temp-path", work, f"--{name}", "1", *args, "--verify"],
        stdout=stress_verdict,
        short=short,
        can_fit=False,  # its workers are forked
    )


def programs():
    jemalloc = dict(source="heap", flags=("-ljemalloc",))
    return [
        Program("objects", lambda work: [os.path.realpath(sys.executable), f"{HERE}/objects.py", "90000"],
                fits=True),
        Program("objects_short", lambda work: [os.path.realpath(sys.executable), f"{HERE}/objects.py", "20000"],
                short=True),
        cpython("test_gc"),
        cpython("test_threading"),
        cpython("test_mmap"),
        cpython("test_dict", short=True),
        cpython("test_bytes"),
        cpython("test_re"),
        cpython("test_json"),
        cpython("test_sqlite3", short=True),
        cpython("test_signal"),
        cpython("test_faulthandler"),
        sort(240),
        sort(80, short=True),
        cc1plus(500),
        cc1plus(100, short=True),
        Program("sqlite", lambda work: [need("sqlite3", "sqlite3"), "-bail", ":memory:"], stdin="build.sql",
                short=True),
        java("Serial", 20, fits=True),
        java("G1", 20),
        java("Parallel", 20),
        java("Serial", 8, short=True),
        Program("node", lambda work: [os.path.realpath(need("node", "nodejs")), f"{HERE}/churn.js", "12", "60000"]),
        Program("node_short", lambda work: [os.path.realpath(need("node", "nodejs")), f"{HERE}/churn.js", "8", "20000"],
                short=True),
        Program("perl", lambda work: [need("perl", "perl"), f"{HERE}/hash.pl", "400000"]),
        Program("perl_short", lambda work: [need("perl", "perl"), f"{HERE}/hash.pl", "100000"], short=True),
        c_program("heap"),
        c_program("heap_jemalloc", **jemalloc, short=True, fits=True),
        c_program("nolibc", short=True),
        c_program("thread_ends", short=True),
        c_program("moves", short=True),
        c_program("forks_once", over=16 * MIB, short=True, can_fit=False),  # children get what is stored
        c_program("fresh_writer", "1G"),
        c_program("fresh_writer", "256M", entry="fresh_writer_short", short=True),
        c_program("populate", "1G"),
        c_program("populate", "256M", entry="populate_short", short=True),
        Program("read_file", lambda work: [f"{work}/read_file", f"{work}/lines1024"],
                setup=both(compiled("read_file"), generate("lines1024", lines_file(1024)))),
        Program("read_file_short", lambda work: [f"{work}/read_file", f"{work}/lines80"],
                setup=both(compiled("read_file"), generate("lines80", lines_file(80))), short=True),
        c_program("small_steps", "1G", mappings=2000),
        c_program("small_steps", "256M", entry="small_steps_short", mappings=2000, short=True),
        c_program("incompressible", "256M", slow_limit=5, can_fit=False),
        c_program("incompressible", "64M", entry="incompressible_short", short=True),
        c_program("gather", "1G", "100000"),
        c_program("gather", "1G", "50000000", entry="gather_long", fits=True),
        Program("true", lambda work: ["true"], fits=True),
        stress("vm", "--vm-bytes", "64M", "--vm-method", "all", "--vm-ops", "20000"),
        stress("mmap", "--mmap-bytes", "64M", "--mmap-ops", "20"),
        stress("mremap", "--mremap-bytes", "32M", "--mremap-ops", "40"),
        stress("madvise", "--madvise-ops", "200"),
        stress("brk", "--brk-ops", "100000", short=True),
        stress("malloc", "--malloc-bytes", "64K", "--malloc-max", "2000", "--malloc-ops", "50000"),
        stress("bigheap", "--bigheap-growth", "1M", "--bigheap-ops", "400"),
    ]


# ---- one run ------------------------------------------------------------------------------


@dataclass
class Result:
    """What one run of one program gave."""

    status: object  # exit status, or "signal N", or "timeout"
    wall_s: float
    peak_bytes: int
    compared: dict
    stderr: bytes
    stats: dict = field(default_factory=dict)
    oom_kills: int = 0
    managed_pss: int = 0  # the largest sample, where asked for

    def mappings(self):
        found = re.search(rb"^mappings (\d+)$", self.stderr, re.M)
        return int(found.group(1)) if found else None


def status_words(raw):
    code = os.waitstatus_to_exitcode(raw)
    return code if code >= 0 else f"signal {-code}"


def managed_pss(pid):
    """PSS in bytes of what Octavo answers for: private anonymous memory that can be read and written,
    its own pool and tables included, without stacks. The program stands still meanwhile: a page that
    leaves one mapping and comes to another would count twice."""
    total, counts = 0, False
    try:
        os.kill(pid, signal.SIGSTOP)
        with open(f"/proc/{pid}/smaps") as smaps:
            for line in smaps:
                words = line.split()
                if "-" in words[0] and not words[0].endswith(":"):
                    anonymous = words[4] == "0" and (len(words) == 5 or words[5] == "[heap]" or words[5][:6] == "[anon:")
                    counts = words[1] == "rw-p" and anonymous
                elif counts and words[0] == "Pss:":
                    total += int(words[1]) * 1024
    except (OSError, ValueError):
        pass  # it has just ended
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    return total


def wait(pid, timeout, sample=None):
    """(status, rusage); past the timeout its whole session is killed. Calls `sample` now and then."""
    deadline = time.monotonic() + timeout
    pause = 0.001
    while True:
        done, raw, usage = os.wait4(pid, os.WNOHANG)
        if done:
            return status_words(raw), usage
        if time.monotonic() > deadline:
            os.killpg(pid, signal.SIGKILL)
            return "timeout", os.wait4(pid, 0)[2]
        begin = time.monotonic()
        if sample:
            sample()
        time.sleep(max(pause, 4 * (time.monotonic() - begin)))
        pause = min(pause * 1.5, 0.02)


def run_once(program, work, prefix, timeout, cgroup=None, stats=None, pss=False):
    """One run, `prefix` before the program's own command."""
    for name in program.files:
        if os.path.exists(f"{work}/{name}"):
            os.unlink(f"{work}/{name}")
    argv = prefix + program.command(work)
    environment = dict(os.environ, LC_ALL="C", TMPDIR=work, PYTHONHASHSEED="0")
    with open(f"{work}/stdout", "wb") as out, open(f"{work}/stderr", "wb") as err, \
            open(os.path.join(HERE, program.stdin), "rb") as stdin:
        begin = time.monotonic()
        child = subprocess.Popen(argv, stdin=stdin, stdout=out, stderr=err, cwd=work, env=environment,
                                 start_new_session=True, preexec_fn=cgroup.enter if cgroup else None)
        samples = [0]
        sample = (lambda: samples.append(managed_pss(child.pid))) if pss else None
        try:
            status, usage = wait(child.pid, timeout, sample)
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            raise
        wall = time.monotonic() - begin
        child.returncode = 0  # reaped here, not by subprocess
    with open(f"{work}/stdout", "rb") as f:
        compared = {"stdout": program.stdout(f.read())}
    for name, look in program.files.items():
        path = f"{work}/{name}"
        compared[name] = look(path) if os.path.exists(path) else b"(no such file)"
    with open(f"{work}/stderr", "rb") as f:
        result = Result(status, wall, usage.ru_maxrss * 1024, compared, f.read(), managed_pss=max(samples))
    if stats and os.path.exists(stats):
        with open(stats) as f:
            result.stats = json.loads(f.read() or "{}")
    if cgroup:
        result.oom_kills = cgroup.oom_kills()
    return result


def first_difference(expected, found):
    """One line about where two texts part."""
    a, b = expected.splitlines(), found.splitlines()
    for i, (x, y) in enumerate(zip(a, b)):
        if x != y:
            return f"line {i + 1}: expected {x[:100]!r} found {y[:100]!r}"
    return f"expected {len(a)} lines, found {len(b)}"


def judge(program, plain, run):
    """What is wrong with the run; an empty list: nothing."""
    wrong = []
    if run.status != plain.status:
        tail = run.stderr.decode(errors="replace").strip().splitlines()[-3:]
        wrong.append(f"status {run.status}, alone {plain.status}; stderr: {' | '.join(tail)}")
    for name, expected in plain.compared.items():
        if run.compared[name] != expected:
            wrong.append(f"{name}: {first_difference(expected, run.compared[name])}")
    if run.oom_kills:
        wrong.append(f"{run.oom_kills} killed by the cgroup's limit")
    if program.slow_limit and run.wall_s > program.slow_limit * plain.wall_s:
        wrong.append(f"{run.wall_s:.2f} s, more than {program.slow_limit} times the {plain.wall_s:.2f} s alone")
    if program.mappings is not None:
        here, alone = run.mappings(), plain.mappings()
        if here is None or alone is None or here > alone + program.mappings:
            wrong.append(f"{here} mappings, alone {alone}, at most {program.mappings} more are allowed")
    over = run.stats.get("exceeded_bytes", 0)
    if program.over is not None and over > program.over:
        wrong.append(f"{over // MIB} MiB over the limit, at most {program.over // MIB} are allowed")
    return wrong


def over_budget(program, limit, run):
    """What is wrong with the run's largest sample of PSS. Data that do not compress may go over."""
    if run.managed_pss > limit + PSS_SLACK and not program.name.startswith("incompressible"):
        return [f"managed PSS {run.managed_pss // MIB} MiB, more than the limit of {limit // MIB} + 16"]
    return []


def misfits(row):
    """What Octavo costs too much where everything fits."""
    wrong = []
    if row["under_s"] > max(1.03 * row["plain_s"], row["plain_s"] + 0.015):
        wrong.append(f"{row['under_s']} s, more than 1.03 times (or 15 ms past) the {row['plain_s']} s alone")
    if row["under_peak_bytes"] > row["plain_peak_bytes"] + 24 * MIB:
        wrong.append(f"{(row['under_peak_bytes'] - row['plain_peak_bytes']) // MIB} MiB more memory than alone")
    return wrong


# ---- the list -----------------------------------------------------------------------------


def memory_limit(share, peak):
    """Bytes, whole MiB, never below the floor."""
    return max(FLOOR, -(-int(peak * share) // MIB) * MIB)


class Runner:
    """Runs programs as the options say, collects rows, counts failures."""

    def __init__(self, options, work):
        self.options = options
        self.work = work
        self.rows = []

    def prefix(self, limit, stats):
        filled = self.options.under.format(root=ROOT, limit=f"{limit // MIB}M", stats=stats)
        return shlex.split(filled)

    def under(self, program, limit, timeout, number):
        stats = f"{self.work}/stats.json"
        if os.path.exists(stats):
            os.unlink(stats)
        prefix = self.prefix(limit, stats)
        if not self.options.cgroup:
            return run_once(program, self.work, prefix, timeout, stats=stats, pss=self.options.pss)
        with Cgroup(f"octavo-programs-{os.getpid()}-{number}", limit + 64 * MIB) as cgroup:
            return run_once(program, self.work, prefix, timeout, cgroup, stats)

    def program(self, program):
        """Runs one program; returns its row."""
        row = {"program": program.name, "runs": 0, "failed": 0, "problems": []}
        try:
            if program.setup:
                program.setup(self.work)
            plain = run_once(program, self.work, [], 900)
        except (SetupError, OSError, subprocess.CalledProcessError) as e:
            row.update(runs=1, failed=1, problems=[f"not set up: {e}"])
            return row
        if program.plain_status is not None and plain.status != program.plain_status:
            tail = plain.stderr.decode(errors="replace").strip().splitlines()[-3:]
            row.update(runs=1, failed=1, problems=[f"fails alone: status {plain.status}; {' | '.join(tail)}"])
            return row
        limit = memory_limit(self.options.limit_share, plain.peak_bytes)
        plains, walls, runs = [plain.wall_s], [], []
        for number in range(self.options.times):
            if self.options.fits and number:
                plains.append(run_once(program, self.work, [], 900).wall_s)
            run = self.under(program, limit, 60 + 30 * plain.wall_s, f"{program.name}-{number}")
            runs.append(run)
            walls.append(run.wall_s)
            problems = judge(program, plain, run) + (over_budget(program, limit, run) if self.options.pss else [])
            row["runs"] += 1
            row["failed"] += bool(problems)
            row["problems"] += [f"run {number + 1}: {p}" for p in problems]
            if problems and self.options.keep:
                self.keep(program, number)
        row.update(
            plain_s=round(statistics.median(plains), 3),
            under_s=round(statistics.median(walls), 3),
            ratio=round(statistics.median(walls) / statistics.median(plains), 3),
            plain_peak_bytes=plain.peak_bytes,
            limit_bytes=limit,
            under_peak_bytes=max(r.peak_bytes for r in runs),
            mappings=max((r.mappings() or 0 for r in runs), default=0),
            oom_kills=sum(r.oom_kills for r in runs),
            managed_pss_bytes=max(r.managed_pss for r in runs),
            stats=runs[-1].stats,
        )
        problems = misfits(row) if self.options.fits else []
        row["failed"] += bool(problems)
        row["problems"] += problems
        return row

    def keep(self, program, number):
        for name in ("stdout", "stderr"):
            shutil.copy(f"{self.work}/{name}", f"{self.options.keep}/{program.name}-{number + 1}.{name}")

    def all(self, chosen):
        header = ("program", "plain s", "under s", "times", "peak MiB", "limit", "under", "faults", "over", "verdict")
        form = "{:<20} {:>8} {:>8} {:>6} {:>9} {:>6} {:>6} {:>9} {:>6}  {}"
        self.say(form.format(*header))
        for program in chosen:
            row = self.program(program)
            self.rows.append(row)
            stats = row.get("stats", {})
            verdict = "ok" if not row["failed"] else f"FAILED {row['failed']} of {row['runs']}"
            if "ratio" in row:
                self.say(form.format(
                    program.name, f"{row['plain_s']:.2f}", f"{row['under_s']:.2f}", f"{row['ratio']:.2f}",
                    row["plain_peak_bytes"] // MIB, row["limit_bytes"] // MIB, row["under_peak_bytes"] // MIB,
                    stats.get("faults", "-"), stats.get("exceeded_bytes", 0) // MIB or "-", verdict))
                if self.options.pss:
                    self.say(f"    managed PSS at most {row['managed_pss_bytes'] // MIB} MiB")
            else:
                self.say(form.format(program.name, *["-"] * 8, verdict))
            for problem in row["problems"][:5]:
                self.say(f"    {problem}")

    def say(self, line):
        print(line, file=sys.stderr if self.options.json else sys.stdout, flush=True)


def machine():
    with open("/proc/meminfo") as f:
        total = int(f.readline().split()[1]) * 1024
    return {"cpus": os.cpu_count(), "kernel": os.uname().release, "memory_bytes": total}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--under", default=UNDER, help="command before each program (default: %(default)s)")
    parser.add_argument("--short", action="store_true", help="a small program of each kind")
    parser.add_argument("--only", help="names, with commas")
    parser.add_argument("--without", default="", help="names, with commas")
    parser.add_argument("--times", type=int, help="runs of each under Octavo (1; 5 with --fits)")
    parser.add_argument("--limit-share", type=float, help="limit as a share of the peak (0.5; 2 with --fits)")
    parser.add_argument("--cgroup", action="store_true", help="in a memory cgroup of the limit + 64 MiB, no swap")
    parser.add_argument("--fits", action="store_true", help="interleave with plain runs, the limit above the peak")
    parser.add_argument("--pss", action="store_true", help="sample the PSS that counts, and hold it to the limit + 16 MiB")
    parser.add_argument("--work", default="/tmp/octavo-programs", help="directory for data files (%(default)s)")
    parser.add_argument("--keep", help="directory for stdout and stderr of runs that failed")
    parser.add_argument("--json", action="store_true", help="one object on stdout, the table on stderr")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    options = parser.parse_args()
    options.times = options.times or (5 if options.fits else 1)
    options.limit_share = options.limit_share or (2 if options.fits else 0.5)

    everything = programs()
    names = {p.name for p in everything}
    only = options.only.split(",") if options.only else None
    for name in (only or []) + [n for n in options.without.split(",") if n]:
        if name not in names:
            parser.error(f"no program is called '{name}' (see --list)")
    chosen = [p for p in everything if (p.name in only if only else
              p.fits if options.fits else p.short if options.short else not p.name.endswith(("_short", "_long")))]
    chosen = [p for p in chosen if p.name not in options.without.split(",")]
    if options.cgroup:
        chosen = [p for p in chosen if p.can_fit]
    if options.list:
        for program in chosen:
            print(program.name)
        return 0
    os.makedirs(options.work, exist_ok=True)
    if options.keep:
        os.makedirs(options.keep, exist_ok=True)

    runner = Runner(options, options.work)
    try:
        runner.all(chosen)
    except CgroupError as e:
        print(f"run.py: {e}", file=sys.stderr)
        return 2
    passed = sum(r["runs"] - r["failed"] for r in runner.rows)
    failed = sum(r["failed"] for r in runner.rows)
    if options.json:
        print(json.dumps({"bench": "programs", "machine": machine(), "rows": runner.rows}))
    runner.say(f"programs: {passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
