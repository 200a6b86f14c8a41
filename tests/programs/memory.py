"""How much memory a program uses, and a tree of them, seen from outside.

    One    one process, which stands still meanwhile
    Tree   who belongs to it, and what all have together; nobody is stopped, since a shell would notice

The kernel sums PSS by a walk through the mappings. Octavo's helpers move pages from one to another all the
while, and what is moved ahead of the walk counts twice: megabytes, where the walk has to wait for a CPU. RssAnon
is one number, to some hundred KiB, and PSS is never more than that; so the lesser of the two is nearer.

A process belongs to the tree if it is of the session of the first or below a process of the tree: one
that leaves both at once (a daemon between two looks) is missed. Processes with one address space (a
child of vfork; Octavo's helpers beside their program) are one: the kernel tells their order.
"""

import contextlib
import ctypes
import os
import signal
import time
from dataclasses import dataclass

SYS_KCMP, KCMP_VM = 312, 1  # x86-64
FAILED, SAME, BEFORE = -1, 0, 1  # what kcmp answers; also 2, after
KEEPER = "octavo-keeper"  # holds the ledger: not of the job, and no larger for it
SLACK = 16 << 20  # bytes that each process may add to the limit
SUMMED_AGAIN = 4  # times at most, where somebody ends meanwhile
syscall = ctypes.CDLL(None).syscall


def managed_pss(pid):
    """PSS in bytes of what Octavo answers for: private anonymous memory that can be read and written,
    its own pool and tables included, without stacks. The program stands still meanwhile."""
    total, counts, most = 0, False, 0
    try:
        os.kill(pid, signal.SIGSTOP)
        most = anonymous_rss(pid)
        with open(f"/proc/{pid}/smaps") as smaps:
            for line in smaps:
                words = line.split()
                if "-" in words[0] and not words[0].endswith(":"):
                    anonymous = words[4] == "0" and (len(words) == 5 or words[5] == "[heap]" or words[5][:6] == "[anon:")
                    counts = words[1] == "rw-p" and anonymous
                elif counts and words[0] == "Pss:":
                    total += int(words[1]) * 1024
        most = max(most, anonymous_rss(pid))
    except (OSError, ValueError):
        pass  # it has just ended
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    return min(total, most)


def anonymous_rss(pid):
    """Bytes of anonymous memory of a process, what it shares counted in full; 0 if it has ended."""
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/status") as status:
            for line in status:
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) * 1024
    return 0


def anonymous_pss(pid):
    """Bytes of anonymous memory of a process, what it shares counted in part; 0 if it has ended.

    Somewhat more than what counts: of stacks, and of mappings of files the pages written to."""
    most = anonymous_rss(pid)
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/smaps_rollup") as rollup:
            for line in rollup:
                if line.startswith("Pss_Anon:"):
                    return min(int(line.split()[1]) * 1024, max(most, anonymous_rss(pid)))
    return 0


def kcmp_vm(a, b):
    """How the address spaces of two processes compare."""
    return syscall(SYS_KCMP, a, b, KCMP_VM, 0, 0)


def one_of_each_memory(pids):
    """Of processes that have one address space in common, the first."""
    kept = []  # in the kernel's order of their address spaces
    for pid in pids:
        low, high = 0, len(kept)
        while low < high:
            middle = (low + high) // 2
            order = kcmp_vm(kept[middle], pid)
            if order == SAME or (order == FAILED and kcmp_vm(pid, pid) == FAILED):
                break  # or it has ended
            if order == FAILED:
                del kept[middle]
                high -= 1
            elif order == BEFORE:
                low = middle + 1
            else:
                high = middle
        else:
            kept.insert(low, pid)
    return kept


@dataclass
class Sample:
    """What there is at one moment."""

    bytes: int = 0
    processes: int = 0
    parts: str = ""  # of a tree: who has most

    def over(self, limit):
        """Bytes over what is allowed; below zero: so much room."""
        return self.bytes - limit - SLACK * self.processes


class Watched:
    """What has been seen so far of whoever is sampled."""

    def __init__(self):
        self.peak = self.worst = Sample()
        self.processes = 0  # most at once

    def sample(self):
        now = self.now()
        self.peak = max(self.peak, now, key=lambda one: one.bytes)
        self.worst = max(self.worst, now, key=lambda one: one.over(0))
        self.processes = max(self.processes, now.processes)


class One(Watched):
    """The process `pid`."""

    rest = 4  # times what a sample took: the process needs time to run

    def __init__(self, pid):
        super().__init__()
        self.pid = pid

    def now(self):
        return Sample(managed_pss(self.pid), 1)


class Tree(Watched):
    """The processes of a job that `first` leads, also as leader of a session."""

    rest = 1

    def __init__(self, first):
        super().__init__()
        self.first = first
        self.sessions = {first}
        self.members = {first}
        self.strangers = set()

    def look(self):
        """Who is there now: {pid: name}, without zombies and the keeper of the ledger."""
        there = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        self.strangers &= there
        new = {}
        for pid in there - self.strangers:
            with contextlib.suppress(OSError, ValueError):
                with open(f"/proc/{pid}/stat") as f:
                    stat = f.read()
                end = stat.rindex(")")
                state, parent, _, session = stat[end + 2 :].split()[:4]
                new[pid] = stat[stat.index("(") + 1 : end], state, int(parent), int(session)
        self.members &= new.keys()
        left = new.keys() - self.members
        while ours := {pid for pid in left if new[pid][2] in self.members or new[pid][3] in self.sessions}:
            self.members |= ours
            left -= ours
        self.sessions |= {new[pid][3] for pid in self.members}
        self.strangers |= left
        return {pid: new[pid][0] for pid in self.members if new[pid][1] not in "ZX" and new[pid][0] != KEEPER}

    def now(self):
        """What all use. Who ends while it is summed leaves what he shared to the others, where it may be counted
        once more: then it is summed again, a few times, and the least counts."""
        names = self.look()
        least = self.summed(names)
        for _ in range(SUMMED_AGAIN):
            left = self.look()
            if names.keys() <= left.keys():
                break
            names = left
            least = min(least, self.summed(names), key=lambda one: one.over(0))
        return least

    @staticmethod
    def summed(names):
        programs_first = sorted(names, key=lambda pid: names[pid].startswith("octavo-"))
        used = [(anonymous_pss(pid), names[pid]) for pid in one_of_each_memory(programs_first)]
        used = sorted((one for one in used if one[0]), reverse=True)
        parts = ", ".join(f"{name} {size >> 20}" for size, name in used[:6])
        return Sample(sum(size for size, _ in used), len(used), parts)

    def end(self, patience):
        """Waits so many seconds for all to end, then ends who is left; gives their names."""
        deadline = time.monotonic() + patience
        while (left := self.look()) and time.monotonic() < deadline:
            time.sleep(0.02)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return sorted(left.values())
