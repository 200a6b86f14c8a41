"""The programs of one process."""

import os
import subprocess
import sys

from program import HERE, MIB, Program, both, compiled, cpython, digest, generate, need, stress, template_file


# What V8 takes where there is plenty: in a memory cgroup it would size its heap by that cgroup's limit.
V8 = ("--max-semi-space-size=16", "--max-old-space-size=4096")


def c_program(name, *args, flags=(), source=None, entry=None, **more):
    return Program(
        entry or name,
        lambda work: [f"{work}/{name}", *(a.format(work=work) for a in args)],
        setup=compiled(name, flags, source),
        **more,
    )


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


def sort(megabytes, threads=2, **more):
    """The buffer is larger than the file's memory at half: the file is larger than the limit."""
    name = f"lines{megabytes}"
    return Program(
        f"sort{megabytes}" + ("" if threads == 2 else f"_{threads}"),
        lambda work: [need("sort", "coreutils"), "-S", f"{megabytes * 5 // 4}M", f"--parallel={threads}", "-T", work,
                      "-o", f"{work}/{name}.sorted", f"{work}/{name}"],
        setup=generate(name, lines_file(megabytes)),
        files={f"{name}.sorted": digest},
        **more,
    )


def singles():
    """The list. Workers of stress-ng are forked away: no cgroup of one process's size is fair to them."""
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
        sort(240, threads=1),
        sort(80, short=True),
        cc1plus(500),
        cc1plus(100, short=True),
        Program("sqlite", lambda work: [need("sqlite3", "sqlite3"), "-bail", ":memory:"], stdin="build.sql",
                short=True),
        java("Serial", 20, fits=True),
        java("G1", 20),
        java("Parallel", 20),
        java("Serial", 8, short=True),
        Program("node", lambda work: [os.path.realpath(need("node", "nodejs")), *V8, f"{HERE}/churn.js", "12", "60000"]),
        Program("node_short", lambda work: [os.path.realpath(need("node", "nodejs")), *V8, f"{HERE}/churn.js", "8", "20000"],
                short=True),
        Program("perl", lambda work: [need("perl", "perl"), f"{HERE}/hash.pl", "400000"]),
        Program("perl_short", lambda work: [need("perl", "perl"), f"{HERE}/hash.pl", "100000"], short=True),
        c_program("heap"),
        c_program("heap_jemalloc", **jemalloc, short=True, fits=True),
        c_program("nolibc", short=True),
        c_program("thread_ends", short=True),
        c_program("moves", short=True),
        c_program("moves_read"),
        c_program("sweep", "384M", "1"),
        c_program("sweep", "384M", "2", entry="sweep_2"),
        c_program("sweep", "96M", "2", entry="sweep_short", short=True),
        c_program("sizes", "256M", flags=("-pthread",), short=True),
        c_program("behind", "96M", short=True),
        c_program("rests", condensed=8192, short=True),
        c_program("own_uffd", "256M", flags=("-pthread",), short=True),
        c_program("crowd", flags=("-pthread",), short=True),
        c_program("forks_once", over=2 * 16 * MIB, short=True, can_fit=False),  # 16 for each of two; children get what is stored
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
        c_program("mapped_over", "400M", mappings=200),
        c_program("mapped_over", "64M", entry="mapped_over_short", mappings=200, short=True),
        c_program("incompressible", "256M", slow_limit=5, can_fit=False),
        c_program("incompressible", "64M", entry="incompressible_short", short=True),
        c_program("gather", "1G", "100000"),
        c_program("gather", "1G", "50000000", entry="gather_long", fits=True),
        Program("true", lambda work: ["true"], fits=True),
        stress("vm", "--vm-bytes", "64M", "--vm-method", "all", "--vm-ops", "20000", can_fit=False),
        stress("mmap", "--mmap-bytes", "64M", "--mmap-ops", "20", can_fit=False),
        stress("mremap", "--mremap-bytes", "32M", "--mremap-ops", "40", can_fit=False),
        stress("madvise", "--madvise-ops", "200", can_fit=False),
        stress("brk", "--brk-ops", "100000", short=True, can_fit=False),
        stress("malloc", "--malloc-bytes", "64K", "--malloc-max", "2000", "--malloc-ops", "50000", can_fit=False),
        stress("bigheap", "--bigheap-growth", "1M", "--bigheap-ops", "400", can_fit=False),
    ]
