#!/usr/bin/env python3
"""Runs unmodified programs alone and under Octavo at half of their memory, and compares.

Each program runs once alone: that gives what is right (exit status, stdout, data files) and its
peak of resident memory. Then it runs under Octavo with a limit of max(32M, half of that peak);
whatever differs is a failure, and so is a program that this machine lacks.

    tests/programs/run.py                      all programs of one process, with target/release/octavo
    tests/programs/run.py --trees              all trees of processes
    tests/programs/run.py --short              a small one of each kind
    tests/programs/run.py --only sort,node --times 20
    tests/programs/run.py --cgroup             each in a cgroup of the limit + 64 MiB, no swap
    tests/programs/run.py --fits               limit above the peak: what does Octavo cost then?
    tests/programs/run.py --under ''           under nothing: tests this runner

The peak of a tree is the most that a look every 10 ms finds all its processes to have together. Under
Octavo no such look may find more than the limit and 16 MiB a process (`worst`: by how many MiB the
worst passed that; below 0, it did not), and a cgroup has 24 MiB more for each process after the first.

`--under` is the command to put before each program; {limit} and {stats} are filled in.
"""

import argparse
import fcntl
import json
import math
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field

from cgroup import Cgroup, CgroupError
from memory import One, Sample, Tree
from program import HERE, MIB, SetupError
from singles import singles
from trees import trees

ROOT = os.path.dirname(os.path.dirname(HERE))
FLOOR = 32 * MIB

# Pairs of runs of what fits: how many at least and at most, and how exact their median is to be before that.
LEAST_PAIRS = 15
MOST_PAIRS = 61
EXACT = 0.01

UNDER = "{root}/target/release/octavo run --memory {limit} --stats-json {stats} --"


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
    peak: Sample = None  # where sampled: the largest
    worst: Sample = None  # and that which had most for so many processes
    processes: int = 1  # most at once, where sampled
    left: list = field(default_factory=list)  # of a tree: who was there for long after its end

    def mappings(self):
        found = re.search(rb"^mappings (\d+)$", self.stderr, re.M)
        return int(found.group(1)) if found else None

    def notes(self):
        return re.findall(r"^note: (.*)$", self.stderr.decode(errors="replace"), re.M)


def status_words(raw):
    code = os.waitstatus_to_exitcode(raw)
    return code if code >= 0 else f"signal {-code}"


def wait(tree, timeout, watched):
    """(status, rusage) of its first; past the timeout all are killed. Samples now and then if `watched`."""
    deadline = time.monotonic() + timeout
    pause = 0.001
    while True:
        done, raw, usage = os.wait4(tree.first, os.WNOHANG)
        if done:
            return status_words(raw), usage
        if time.monotonic() > deadline:
            tree.end(0)
            return "timeout", os.wait4(tree.first, 0)[2]
        begin = time.monotonic()
        if watched:
            watched.sample()
        time.sleep(max(pause, (watched.rest if watched else 0) * (time.monotonic() - begin)))
        pause = min(pause * 1.5, 0.01)


def statistics_of(path, patience):
    """What Octavo has written there; after so many seconds without a word: nothing. (Where other work keeps the
    CPUs, a program ends before its statistics are told.)"""
    deadline = time.monotonic() + patience
    while True:
        try:
            with open(path) as f:
                return json.load(f)
        except (FileNotFoundError, json.JSONDecodeError):
            if time.monotonic() > deadline:
                return {}
        time.sleep(0.02)


def run_once(program, work, prefix, timeout, cgroup=None, stats=None, watch=None):
    """One run, `prefix` before the program's own command; `watch` is One, Tree or None."""
    for name in program.files:
        if os.path.exists(f"{work}/{name}"):
            os.unlink(f"{work}/{name}")
    argv = (program.before(work) if program.before else []) + prefix + program.command(work)
    environment = dict(os.environ, LC_ALL="C", TMPDIR=work, PYTHONHASHSEED="0")
    with open(f"{work}/stdout", "wb") as out, open(f"{work}/stderr", "wb") as err, \
            open(os.path.join(HERE, program.stdin), "rb") as stdin:
        begin = time.monotonic()
        child = subprocess.Popen(argv, stdin=stdin, stdout=out, stderr=err, cwd=work, env=environment,
                                 start_new_session=True, preexec_fn=cgroup.enter if cgroup else None)
        tree = Tree(child.pid)
        watched = tree if watch is Tree else watch(child.pid) if watch else None
        try:
            status, usage = wait(tree, timeout, watched)
        except BaseException:
            tree.end(0)
            raise
        wall = time.monotonic() - begin
        child.returncode = 0  # reaped here, not by subprocess
    left = tree.end(5) if watch is Tree else []
    with open(f"{work}/stdout", "rb") as f:
        compared = {"stdout": program.stdout(f.read())}
    for name, look in program.files.items():
        path = f"{work}/{name}"
        compared[name] = look(path) if os.path.exists(path) else b"(no such file)"
    with open(f"{work}/stderr", "rb") as f:
        result = Result(status, wall, usage.ru_maxrss * 1024, compared, f.read(), left=left)
    if watched:
        result.peak, result.worst, result.processes = watched.peak, watched.worst, watched.processes
    if watch is Tree:
        result.peak_bytes = tree.peak.bytes
    if stats:
        result.stats = statistics_of(stats, patience=5 if program.managed else 0)
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
    if run.left and not plain.left:
        wrong.append(f"five seconds after its end there still were {', '.join(run.left)}")
    over = run.stats.get("exceeded_bytes", 0)
    if program.over is not None and over > program.over:
        wrong.append(f"{over // MIB} MiB over the limit, at most {program.over // MIB} are allowed")
    return wrong


def over_budget(program, limit, run):
    """What is wrong with the run's worst sample. Data that do not compress may go over."""
    if run.worst and run.worst.over(limit) > 0 and not program.name.startswith("incompressible"):
        worst = run.worst
        return [f"{worst.bytes // MIB} MiB in {worst.processes} processes ({worst.parts}), "
                f"more than the limit of {limit // MIB} + 16 for each"]
    return []


def too_few(program, run):
    """What Octavo counted less of than the program is there for."""
    wanted = {"processes": program.managed, "condensed_pages": program.condensed}
    return [f"{run.stats.get(key, 0)} {key} by Octavo's count, at least {least} should have been"
            for key, least in wanted.items() if least and run.stats.get(key, 0) < least]


def misfits(row, bar):
    """What Octavo costs too much where everything fits and it may take `bar` times as long."""
    wrong = []
    if row["ratio"] > bar and row["under_s"] > row["plain_s"] + 0.015:
        wrong.append(f"{row['ratio']} times (and more than 15 ms past) the {row['plain_s']} s alone")
    if row["under_peak_bytes"] > row["plain_peak_bytes"] + 24 * MIB:
        wrong.append(f"{(row['under_peak_bytes'] - row['plain_peak_bytes']) // MIB} MiB more memory than alone")
    return wrong


def error_of_median(values):
    """The standard error of their median, were they of a normal distribution as wide as the middle of them is."""
    middle = statistics.median(values)
    deviation = 1.4826 * statistics.median(abs(value - middle) for value in values)
    return 1.2533 * deviation / math.sqrt(len(values))


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
        self.tells_stats = "{stats}" in options.under
        self.watch = Tree if options.trees else One if options.pss else None

    def prefix(self, limit, stats):
        filled = self.options.under.format(root=ROOT, limit=f"{limit // MIB}M", stats=stats)
        return shlex.split(filled)

    def under(self, program, limit, processes, timeout, number, watch=None):
        stats = f"{self.work}/stats.json" if self.tells_stats else None
        if stats and os.path.exists(stats):
            os.unlink(stats)
        prefix = self.prefix(limit, stats)
        if not self.options.cgroup:
            return run_once(program, self.work, prefix, timeout, stats=stats, watch=watch)
        room = limit + 64 * MIB + 24 * MIB * (processes - 1)
        with Cgroup(f"octavo-programs-{os.getpid()}-{number}", room) as cgroup:
            return run_once(program, self.work, prefix, timeout, cgroup, stats, watch=watch)

    def alone(self, program, watch=None):
        return run_once(program, self.work, [], 900, watch=watch)

    def program(self, program):
        """Runs one program; returns its row."""
        row = {"program": program.name, "runs": 0, "failed": 0, "problems": []}
        try:
            if program.setup:
                program.setup(self.work)
            plain = self.alone(program, watch=Tree if self.options.trees else None)
        except (SetupError, OSError, subprocess.CalledProcessError) as e:
            row.update(runs=1, failed=1, problems=[f"not set up: {e}"])
            return row
        if program.plain_status is not None and plain.status != program.plain_status:
            tail = plain.stderr.decode(errors="replace").strip().splitlines()[-3:]
            row.update(runs=1, failed=1, problems=[f"fails alone: status {plain.status}; {' | '.join(tail)}"])
            return row
        limit = memory_limit(self.options.limit_share, plain.peak_bytes)
        timeout = 60 + 30 * plain.wall_s
        plains, walls, runs = [] if self.options.fits else [plain.wall_s], [], []
        # Samples take half a CPU, more of it where there are more processes: what is timed is not watched.
        timed_by = None if self.options.fits else self.watch
        if self.options.fits and self.watch:
            runs.append(self.under(program, limit, plain.processes, timeout, f"{program.name}-watched", self.watch))
            self.note(row, program, plain, limit, runs[-1])
        while not self.is_enough(plains, walls):
            number = len(walls)
            # Where both are compared they go in pairs, by turns first: a machine whose speed drifts has the
            # same speed for both of a pair.
            if self.options.fits and number % 2 == 0:
                plains.append(self.alone(program).wall_s)
            run = self.under(program, limit, plain.processes, timeout, f"{program.name}-{number}", timed_by)
            if self.options.fits and number % 2:
                plains.append(self.alone(program).wall_s)
            runs.append(run)
            walls.append(run.wall_s)
            self.note(row, program, plain, limit, run)
        ratios = self.ratios(plains, walls)
        row.update(
            plain_s=round(statistics.median(plains), 3),
            under_s=round(statistics.median(walls), 3),
            ratio=round(statistics.median(ratios), 3),
            plain_peak_bytes=plain.peak_bytes,
            limit_bytes=limit,
            under_peak_bytes=max(r.peak_bytes for r in runs),
            mappings=max((r.mappings() or 0 for r in runs), default=0),
            oom_kills=sum(r.oom_kills for r in runs),
            managed_pss_bytes=max(r.peak.bytes if r.peak else 0 for r in runs),
            worst_bytes=max((r.worst.over(limit) for r in runs if r.worst), default=None),
            processes=max(r.processes for r in runs),
            exceeded_bytes=max(r.stats.get("exceeded_bytes", 0) for r in runs),
            stats=runs[-1].stats,
            notes=[f"{who}: {note}" for who, run in [("alone", plain), *(("under", run) for run in runs)] for note in run.notes()],
        )
        if self.options.fits:
            problems = misfits(row, program.fits_within)
            row["failed"] += bool(problems)
            row["problems"] += problems
            row["notes"].append(f"{len(ratios)} pairs, {row['ratio']} known to {error_of_median(ratios):.3f}")
        return row

    def note(self, row, program, plain, limit, run):
        """Notes in `row` what is wrong with the run, the last one."""
        problems = judge(program, plain, run) + over_budget(program, limit, run)
        if self.tells_stats:
            problems += too_few(program, run)
        row["runs"] += 1
        row["failed"] += bool(problems)
        row["problems"] += [f"run {row['runs']}: {p}" for p in problems]
        if problems and self.options.keep:
            self.keep(program, row["runs"])

    def ratios(self, plains, walls):
        """Wall times over those of the plain runs: by pairs where there are pairs."""
        return [wall / plain for plain, wall in zip(plains if self.options.fits else plains * len(walls), walls)]

    def is_enough(self, plains, walls):
        """Whether it ran as often as was asked for, or as it takes to know what it costs."""
        if self.options.times or not self.options.fits:
            return len(walls) >= (self.options.times or 1)
        if len(walls) < LEAST_PAIRS:
            return False
        return len(walls) >= MOST_PAIRS or error_of_median(self.ratios(plains, walls)) <= EXACT

    def keep(self, program, number):
        for name in ("stdout", "stderr"):
            shutil.copy(f"{self.work}/{name}", f"{self.options.keep}/{program.name}-{number}.{name}")

    def all(self, chosen):
        header = ("program", "plain s", "under s", "times", "peak MiB", "limit", "under", "faults", "over", "worst", "verdict")
        form = "{:<20} {:>8} {:>8} {:>6} {:>9} {:>6} {:>6} {:>9} {:>6} {:>6}  {}"
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
                    stats.get("faults", "-"), row["exceeded_bytes"] // MIB or "-",
                    "-" if row["worst_bytes"] is None else -(-row["worst_bytes"] // MIB), verdict))
            else:
                self.say(form.format(program.name, *["-"] * 9, verdict))
            for note in row.get("notes", []):
                self.say(f"    {note}")
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
    parser.add_argument("--trees", action="store_true", help="the trees of processes; all together are sampled")
    parser.add_argument("--short", action="store_true", help="a small program of each kind")
    parser.add_argument("--only", help="names, with commas")
    parser.add_argument("--without", default="", help="names, with commas")
    parser.add_argument("--times", type=int, help=f"runs of each under Octavo (1; with --fits {LEAST_PAIRS} to {MOST_PAIRS}, until the median is known to {EXACT})")
    parser.add_argument("--limit-share", type=float, help="limit as a share of the peak (0.5; 2 with --fits)")
    parser.add_argument("--cgroup", action="store_true", help="in a memory cgroup of the limit + 64 MiB, no swap")
    parser.add_argument("--fits", action="store_true", help="in pairs with plain runs, the limit above the peak; the median of the pairs' ratios")
    parser.add_argument("--pss", action="store_true", help="sample the PSS that counts, and hold it to the limit + 16 MiB")
    parser.add_argument("--work", default="/tmp/octavo-programs", help="directory for data files (%(default)s)")
    parser.add_argument("--keep", help="directory for stdout and stderr of runs that failed")
    parser.add_argument("--json", action="store_true", help="one object on stdout, the table on stderr")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    options = parser.parse_args()
    options.limit_share = options.limit_share or (2 if options.fits else 0.5)

    everything = trees() if options.trees else singles()
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
    directory = os.open(options.work, os.O_RDONLY)  # not inherited, and locked until this ends
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        parser.error(f"another run uses {options.work}: --work names a directory of its own")
    if options.keep:
        os.makedirs(options.keep, exist_ok=True)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended too
    runner = Runner(options, options.work)
    try:
        runner.all(chosen)
    except (CgroupError, FileNotFoundError) as e:
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
