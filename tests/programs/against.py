#!/usr/bin/env python3
"""Programs under Octavo and under the kernel's swap, at the same total memory, in one run.

The kernel's side is a throw-away memory cgroup and throw-away swap. With zram, what it takes in all is the
cgroup's limit and the most that the device used; the limit is sought so that this comes to `--share` of the
program's peak, and the median of what it came to is Octavo's limit. With `file` it swaps to a file in the
directory of `--work`, which takes no memory, and Octavo gets a backing file there; the cgroup's statistics are
kept fresh, without which the kernel kills the program (see `fresh`); where it does so all the same, in one of
its runs, both get an eighth more, up to twice as much. `--away` has a share of what Octavo
compresses in that file, the most of each: two runs more find the `--max-pool-percent` for that. Octavo, the
kernel and the program alone take turns. Needs root: it makes swap and cgroups, and removes them.

    tests/programs/against.py                             the list, at half of their peaks
    tests/programs/against.py --only objects --times 3 --share 1,0.75,0.5,0.35,0.25,0.15
    tests/programs/against.py --against lz4,lzo-rle --json
    tests/programs/against.py --against file --only objects --away 0.5

ratio: Octavo's wall time over that of the kernel's better side; 0 where the kernel killed the program in a
cgroup as large as all the memory, or a part of it. Last line: "against: N slower than the kernel, median
ratio R".
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import threading

from cgroup import Cgroup, CgroupError
from program import MIB, SetupError
from run import UNDER, Runner, machine, run_once
from singles import singles
from trees import trees

LIST = ("objects", "java_g1", "java_serial", "node", "sort240", "sort240_1", "cc1plus500", "redis_clients", "sqlite",
        "sweep", "sweep_2", "perl", "heap", "heap_jemalloc")
CONTROL = pathlib.Path("/sys/class/zram-control")
PATIENCE = 900  # seconds
SEEK = 4  # runs of the kernel's side to find its limit, at most
SEEK_FILE = 9  # limits with a file, each an eighth more
CLOSE = 0.03  # of the memory wanted
LEAST = 8 * MIB  # of the kernel's limit
FRESH = 0.02  # seconds between two readings of a cgroup's statistics
FILE = "file"
STORED = ("stored_peak_bytes", "away_peak_bytes", "file_reads")  # the most in memory and file, the most in the file
BACKED = "--backing {work}/against.backing --backing-size 4G --"
MOST_PERCENT = 90  # of --max-pool-percent


def swap_on(path):
    """Has the kernel swap to `path` before all else."""
    subprocess.run(["mkswap", path], check=True, capture_output=True)
    subprocess.run(["swapon", "-p", "32767", path], check=True, capture_output=True)


class Zram:
    """A device of its own as the first swap, while the context lasts."""

    def __init__(self, algorithm, size):
        self.algorithm, self.size = algorithm, size

    def __enter__(self):
        if not CONTROL.exists():
            raise CgroupError("this kernel has no zram, or not yet: modprobe zram")
        self.number = int((CONTROL / "hot_add").read_text())
        self.device, node = pathlib.Path(f"/sys/block/zram{self.number}"), f"/dev/zram{self.number}"
        try:
            (self.device / "comp_algorithm").write_text(self.algorithm)
            (self.device / "disksize").write_text(str(self.size))
            swap_on(node)
        except (OSError, subprocess.CalledProcessError) as why:
            self.remove()
            raise CgroupError(f"zram with {self.algorithm} cannot be made swap: {why}") from why
        return self

    def __exit__(self, *_):
        subprocess.run(["swapoff", f"/dev/zram{self.number}"], capture_output=True)
        self.remove()

    def remove(self):
        with contextlib.suppress(OSError):
            (self.device / "reset").write_text("1")
        (CONTROL / "hot_remove").write_text(str(self.number))

    def most_used(self):
        """Bytes of memory it took at most since the last time this was asked."""
        most = int((self.device / "mm_stat").read_text().split()[4])
        (self.device / "mem_used_max").write_text("0")
        return most

    def helped(self, _cgroup):
        """With zram pages are taken and given by the thread that wants them: it has never needed help."""
        return contextlib.nullcontext()


class SwapFile:
    """A file of its own as the first swap, while the context lasts."""

    def __init__(self, directory, size):
        self.path, self.size = pathlib.Path(directory) / f"against-{os.getpid()}.swap", size

    def __enter__(self):
        try:
            with open(self.path, "wb") as file:  # written, not only reserved: swapon refuses holes
                for _ in range(-(-self.size // MIB)):
                    file.write(bytes(MIB))
                os.fsync(file.fileno())
            self.path.chmod(0o600)
            swap_on(self.path)
        except (OSError, subprocess.CalledProcessError) as why:
            self.path.unlink(missing_ok=True)
            raise CgroupError(f"{self.path} cannot be made swap: {why}") from why
        return self

    def __exit__(self, *_):
        subprocess.run(["swapoff", self.path], capture_output=True)
        self.path.unlink(missing_ok=True)

    def most_used(self):
        """Bytes of memory that it takes."""
        return 0

    def helped(self, cgroup):
        return fresh(cgroup)


@contextlib.contextmanager
def fresh(cgroup):
    """Has the kernel know how much of a cgroup's memory is inactive, while the context lasts.

    It takes pages from the list of inactive ones, and moves active ones there when statistics say that few are
    left. Those it brings up to date every two seconds, or at once for whoever reads them. A disk takes what is
    inactive in less time: then the list is empty, the statistics say that it is not, nothing is moved there,
    nothing is found to be taken, and the program is killed, all of its memory active and swapped already
    (Linux 6.18, version 1 of cgroups)."""
    stop = threading.Event()

    def read():
        while not stop.wait(FRESH):
            cgroup.statistics()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        stop.set()
        reader.join()


class Contest:
    """One program, and what each side made of it."""

    def __init__(self, program, share, options):
        self.program, self.share, self.options = program, share, options
        self.runner = Runner(options, options.work)
        if program.setup:
            program.setup(options.work)
        self.alone = run_once(program, options.work, [], PATIENCE)
        self.wanted = int(self.alone.peak_bytes * share)

    def is_right(self, run):
        return run.status == self.alone.status and run.compared == self.alone.compared

    def wall(self, run):
        """Seconds; no end of them for a run that was killed or is wrong."""
        return run.wall_s if self.is_right(run) else math.inf

    def kernel(self, swap, limit):
        """A run in a cgroup of `limit` bytes, and the memory that it took in all."""
        swap.most_used()
        with Cgroup(f"octavo-against-{os.getpid()}", limit, swaps=True) as cgroup, swap.helped(cgroup):
            run = run_once(self.program, self.options.work, [], PATIENCE, cgroup)
        return run, limit + swap.most_used()

    def seek(self, zram):
        """The limit with which the kernel's side takes as much memory as is wanted; a larger one where it
        kills the program at that."""
        limit = int(self.wanted * 0.65)
        for _ in range(SEEK):
            run, total = self.kernel(zram, limit)
            if not self.is_right(run):
                limit = (limit + self.wanted) // 2
            elif abs(total - self.wanted) < CLOSE * self.wanted:
                break
            else:
                limit = max(LEAST, limit - int((total - self.wanted) * 0.7))
        return limit

    def with_file(self, swap):
        """Runs of the kernel's side at the least limit, from what is wanted on in steps of an eighth, with which
        each of them ends; what there is when none does."""
        limit = self.wanted
        for _ in range(SEEK_FILE):
            runs = []
            while len(runs) < self.options.times and all(self.is_right(run) for run, _ in runs):
                runs.append(self.kernel(swap, limit))
            if all(self.is_right(run) for run, _ in runs):
                break
            limit += self.wanted // 8
        return runs

    def with_zram(self, zram):
        """Runs of the kernel's side at the limit at which it takes as much memory as is wanted."""
        limit = self.seek(zram)
        return [self.kernel(zram, limit) for _ in range(self.options.times)]

    def peer(self, against):
        """Walls, and bytes in all, of the kernel's side with a swap file or one of zram's algorithms."""
        size = 2 * self.alone.peak_bytes + 64 * MIB
        with SwapFile(self.options.work, size) if against == FILE else Zram(against, size) as swap:
            runs = self.with_file(swap) if against == FILE else self.with_zram(swap)
        totals = [total if self.is_right(run) else self.wanted for run, total in runs]
        return [self.wall(run) for run, _ in runs], totals

    def keep_away(self, memory):
        """Has Octavo have the share `--away` of what it compresses in its file. A first run tells how much that
        is, a second how much of it the pool has where it may take so many percent of the limit."""
        before, percent = self.options.under, 0
        for _ in range(2):
            run = self.runner.under(self.program, memory, 1, PATIENCE, f"{self.program.name}-away")
            stored, away = (run.stats.get(key, 0) for key in STORED[:2])
            stays = stored * (1 - self.options.away)
            percent = percent * stays / max(stored - away, 1) if percent else 100 * stays / memory
            percent = min(max(int(percent), 1), MOST_PERCENT)
            self.options.under = before.removesuffix("--") + f"--max-pool-percent {percent} --"

    def octavo(self, memory):
        """Walls of the program alone and under Octavo, in turns; what the store and its file had, of the last."""
        alone, under, stats = [self.alone.wall_s], [], {}
        for number in range(self.options.times):
            if number:
                alone.append(run_once(self.program, self.options.work, [], PATIENCE).wall_s)
            run = self.runner.under(self.program, memory, 1, PATIENCE, f"{self.program.name}-{number}")
            under.append(self.wall(run))
            stats = run.stats
        return alone, under, {key: stats[key] for key in STORED if stats.get("away_peak_bytes")}

    def row(self):
        walls, totals = {}, []
        for algorithm in self.options.against:
            name = FILE if algorithm == FILE else f"zram_{algorithm}"
            walls[name], totals[len(totals):] = self.peer(algorithm)
        memory = int(statistics.median(totals)) // MIB * MIB
        kernel = min(statistics.median(each) for each in walls.values())
        before = self.options.under
        if self.options.away is not None:
            self.keep_away(memory)
        walls["alone"], walls["octavo"], stored = self.octavo(memory)
        self.options.under = before
        row = {"program": self.program.name, "share": self.share, "total_memory_bytes": memory}
        for who, each in walls.items():
            row |= {f"{who}_s": number(statistics.median(each)), f"{who}_most_s": number(max(each))}
        octavo = statistics.median(walls["octavo"])
        return row | stored | {"kernel_s": number(kernel), "ratio": number(octavo / kernel if octavo < math.inf else math.inf)}


def number(value):
    """What JSON has for it: nothing for a side that was killed."""
    return None if math.isinf(value) else round(value, 3)


def words(value):
    return "killed" if value is None else f"{value:.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--under", default=UNDER, help="command before each program (default: %(default)s)")
    parser.add_argument("--only", default=",".join(LIST), help="names of tests/programs/run.py, with commas")
    parser.add_argument("--times", type=int, default=5, help="runs of each side (%(default)s)")
    parser.add_argument("--share", default="0.5", help="memory as a share of the peak, or several (%(default)s)")
    parser.add_argument("--against", default="lz4", help="zram's algorithms, with commas, or 'file' (%(default)s)")
    parser.add_argument("--away", type=float, help="of what Octavo compresses, the share to be in its file")
    parser.add_argument("--work", default="/tmp/octavo-against", help="directory for data files (%(default)s)")
    parser.add_argument("--json", action="store_true", help="one object on stdout, the table on stderr")
    options = parser.parse_args()
    options.against = options.against.split(",")
    try:
        shares = [float(share) for share in options.share.split(",")]
    except ValueError:
        parser.error(f"--share is numbers with commas, as 0.75,0.5: not '{options.share}'")
    if FILE in options.against:
        if options.against != [FILE]:
            parser.error("'file' is compared by itself: Octavo has a file then too")
        options.under = options.under.removesuffix("--") + BACKED.format(work=options.work)
    elif options.away is not None:
        parser.error("--away takes --against file")
    options.trees = options.pss = options.cgroup = False
    os.makedirs(options.work, exist_ok=True)
    # The peak of a tree is that of its largest process.
    everything = {program.name: program for program in [*trees(), *singles()]}
    names = options.only.split(",")
    for name in names:
        if name not in everything:
            parser.error(f"no program is called '{name}' (see tests/programs/run.py --list, and --trees)")
    out = sys.stderr if options.json else sys.stdout
    form = "{:<16} {:>6} {:>7} {:>8} {:>9} {:>9} {:>7}"
    print(form.format("program", "share", "MiB", "alone s", "kernel s", "octavo s", "ratio"), file=out, flush=True)
    rows = []
    for name, share in itertools.product(names, shares):
        try:
            row = Contest(everything[name], share, options).row()
        except (SetupError, CgroupError, OSError, subprocess.CalledProcessError) as why:
            print(f"against: {name}: {why}", file=sys.stderr)
            return 2
        rows.append(row)
        print(form.format(name, f"{share:.0%}", row["total_memory_bytes"] // MIB, *map(words, (row["alone_s"], row["kernel_s"],
                          row["octavo_s"], row["ratio"]))), file=out, flush=True)
    if options.json:
        print(json.dumps({"bench": "programs-against", "machine": machine(), "rows": rows}))
    ratios = [math.inf if row["ratio"] is None else row["ratio"] for row in rows]
    slower = sum(ratio > 1.03 for ratio in ratios)
    print(f"against: {slower} slower than the kernel, median ratio {statistics.median(ratios):.2f}", file=out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
