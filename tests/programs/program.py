"""What a program of the lists is: how it is started, prepared, and what of it is compared.

The lists themselves are singles.py (one process each) and trees.py (trees of processes).
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree
from dataclasses import dataclass, field

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 1 << 20


class SetupError(Exception):
    """A program cannot be prepared; the message names it and what would help."""


# ---- what is compared ---------------------------------------------------------------------


def whole(data):
    """Every byte."""
    return data


def read(path):
    with open(path, "rb") as f:
        return f.read()


def junit_verdicts(path):
    """Of tests of Python: the verdict of every test, without its time."""
    text = read(path)
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


# ---- a program ----------------------------------------------------------------------------


@dataclass
class Program:
    """One entry of the list. `command` and `setup` get the directory to work in."""

    name: str
    command: object  # (work) -> argv
    setup: object = None  # (work) -> None; may raise SetupError
    stdin: str = "/dev/null"  # relative to the directory of this file
    stdout: object = whole  # bytes -> what is compared
    files: dict = field(default_factory=dict)  # name in the work directory -> (path) -> bytes
    before: object = None  # (work) -> argv that stands before `octavo run`
    short: bool = False  # belongs to --short
    fits: bool = False  # belongs to --fits
    fits_within: float = 1.03  # how many times as long it may take where everything fits
    slow_limit: float = None  # at most so many times the plain wall
    mappings: int = None  # at most so many more mappings than alone ("mappings N" on stderr)
    over: int = None  # at most so many bytes over the limit, by Octavo's own count
    condensed: int = None  # at least so many pages are stored anew, by Octavo's own count
    managed: int = None  # of a tree: at least so many processes are managed, by Octavo's own count
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


def template_file(count):
    def write(f):
        subprocess.run([sys.executable, f"{HERE}/templates.py", str(count)], stdout=f, check=True)

    return write


def python_with_tests(name):
    """An interpreter that has this one of CPython's own tests; a real one, never a shell script before it."""
    for candidate in (sys.executable, "/usr/bin/python3"):
        found = subprocess.run([candidate, "-c", f"import sys, importlib.util as u; u.find_spec('test.{name}') or exit(1); "
                                                 "print(sys.executable)"], capture_output=True, text=True)
        if found.returncode == 0:
            return os.path.realpath(found.stdout.strip())
    raise SetupError(f"no python3 has 'test.{name}': apt-get install libpython3.N-testsuite (or run ci/install)")


def cpython(name, **more):
    """One of CPython's own tests."""
    entry = f"py_{name}"
    return Program(
        entry,
        lambda work: [python_with_tests(name), "-m", "test", "--junit-xml", f"{work}/{entry}.xml", name],
        stdout=lambda data: b"",  # times and loads; the verdicts are in the file
        files={f"{entry}.xml": junit_verdicts},
        plain_status=None,
        **more,
    )


def stress(name, *args, workers=1, **more):
    """A stressor of stress-ng with its own checks, bounded by operations."""
    return Program(
        f"stress_{name}",
        lambda work: [need("stress-ng", "stress-ng"), "--temp-path", work, f"--{name}", str(workers), *args, "--verify"],
        stdout=stress_verdict,  # where it writes depends on its version
        files={"stderr": lambda path: stress_verdict(read(path))},
        **more,
    )
