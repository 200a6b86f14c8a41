"""A throw-away memory cgroup, version 1 or 2, with a hard limit; no swap, unless that is what is measured."""

import os
import time


class CgroupError(Exception):
    """There is no memory cgroup here that we may use; the message says what would help."""


def _mounts():
    """(version, directory) of each hierarchy that can limit memory."""
    with open("/proc/self/mounts") as mounts:
        for line in mounts:
            _, where, kind, options, *_ = line.split()
            if kind == "cgroup" and "memory" in options.split(","):
                yield 1, where
            elif kind == "cgroup2":
                with open(f"{where}/cgroup.controllers") as controllers:
                    if "memory" in controllers.read().split():
                        yield 2, where


def _write(path, value):
    with open(path, "w") as f:
        f.write(str(value))


def _read(path):
    with open(path) as f:
        return f.read()


class Cgroup:
    """Use as a context; `enter` is for the child, between fork and exec."""

    def __init__(self, name, limit_bytes, swaps=False):
        found = next(_mounts(), None)
        if not found:
            raise CgroupError("no cgroup hierarchy with the memory controller is mounted")
        self.version, root = found
        self.path = f"{root}/{name}"
        try:
            if self.version == 2 and "memory" not in _read(f"{root}/cgroup.subtree_control"):
                _write(f"{root}/cgroup.subtree_control", "+memory")
            os.mkdir(self.path)
        except OSError as e:
            raise CgroupError(f"cannot make {self.path}: {e.strerror}; run as root") from e
        if self.version == 1:
            _write(f"{self.path}/memory.limit_in_bytes", limit_bytes)
            if not swaps:
                _write(f"{self.path}/memory.swappiness", 0)
            optional = {"memory.memsw.limit_in_bytes": limit_bytes}
        else:
            _write(f"{self.path}/memory.max", limit_bytes)
            optional = {"memory.swap.max": 0}
        for name, value in ({} if swaps else optional).items():  # absent where the kernel has no swap accounting
            if os.path.exists(f"{self.path}/{name}"):
                _write(f"{self.path}/{name}", value)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """The pager leaves a moment after its program; a grandchild may stay for longer."""
        for _attempt in range(50):
            try:
                return os.rmdir(self.path)
            except OSError:
                time.sleep(0.1)
        raise CgroupError(f"{self.path} is still in use after five seconds: it was not removed")

    def enter(self):
        """Moves the calling process in. For preexec_fn."""
        _write(f"{self.path}/cgroup.procs", 0)

    def statistics(self):
        """What the kernel tells of its memory, brought up to date."""
        return _read(f"{self.path}/memory.stat")

    def oom_kills(self):
        """How many processes the kernel has killed here."""
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        for line in _read(f"{self.path}/{name}").splitlines():
            key, value = line.split()
            if key == "oom_kill":
                return int(value)
        raise CgroupError(f"{self.path}/{name} has no line oom_kill (kernel before 4.13)")

    def peak_bytes(self):
        """The most that was charged here, page cache included; None before Linux 5.19 (v2)."""
        name = "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"
        try:
            return int(_read(f"{self.path}/{name}"))
        except FileNotFoundError:
            return None
