#!/usr/bin/env python3
"""A redis server that takes snapshots, again and again, while a benchmark writes to it.

    redis_saves.py KEYS SNAPSHOTS     in the working directory: dump-N.rdb, and `dumps` with a digest for each

Writes are held up for the moment in which the server tells the digest of all its data and forks; the
dump must have just that. What a client waits for afterwards, at most, goes to stderr. `dumps_hold`
loads every dump in a server of its own, which is for whoever compares.
"""

import contextlib
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time

SERVER = "redis-check-rdb"  # the same file as redis-server, in the package that starts no service


class RedisError(Exception):
    """What the server answered, or that it did not."""


class Client:
    """A connection; calls are lists of words."""

    def __init__(self, path, patience=60):
        deadline = time.monotonic() + patience
        while True:
            self.socket = socket.socket(socket.AF_UNIX)
            try:
                self.socket.connect(path)
                self.stream = self.socket.makefile("rb")
                if self("PING") == b"PONG":
                    return
            except (OSError, RedisError):  # not there yet, or still loading
                if time.monotonic() > deadline:
                    raise
            self.socket.close()
            time.sleep(0.02)

    def send(self, calls):
        def coded(words):
            words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
            return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)

        self.socket.sendall(b"".join(coded(words) for words in calls))

    def answer(self):
        line = self.stream.readline()
        if not line.endswith(b"\r\n"):
            raise RedisError("the server has closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise RedisError(rest.decode())
        if kind == b"$":
            return self.stream.read(int(rest) + 2)[:-2] if int(rest) >= 0 else None
        return rest

    def __call__(self, *words):
        self.send([words])
        return self.answer()

    def info(self, key):
        section = dict(line.split(":", 1) for line in self("INFO").decode().split("\r\n") if ":" in line)
        return section[key]


@contextlib.contextmanager
def server(directory, name, *options):
    """A server in that directory, ended at the end; gives its first client."""
    program = f"{directory}/redis-server"
    if not os.path.lexists(program):
        os.symlink(shutil.which(SERVER), program)
    process = subprocess.Popen([program, "--port", "0", "--unixsocket", f"{directory}/{name}.sock", "--save", "",
                                "--dir", directory, "--enable-debug-command", "yes", "--logfile",
                                f"{directory}/{name}.log", *options])
    try:
        client = Client(f"{directory}/{name}.sock")
        yield client
        with contextlib.suppress(RedisError):
            client("SHUTDOWN", "NOSAVE")
        if process.wait(60):
            raise RedisError(f"the server has ended with {process.returncode}")
    finally:
        process.kill()
        process.wait()


def fill(client, keys):
    """Values of which a half can be compressed; some sets, lists and hashes among them."""
    draw = random.Random(5)
    for start in range(0, keys, 500):
        calls = []
        for n in range(start, min(start + 500, keys)):
            value = draw.randbytes(200).hex() + "some words that all have in common " * 12
            calls.append(("SET", f"key:{n:012d}", value))
            if n % 10 == 0:
                calls.append(("RPUSH", f"list:{n % 100}", value[:100]))
                calls.append(("HSET", f"hash:{n % 1000}", f"field {n}", value[:50]))
                calls.append(("ZADD", "ranks", n % 1009, f"member {n}"))
        client.send(calls)
        for _ in calls:
            client.answer()


class Pinger(threading.Thread):
    """A client that writes all the time; `longest` is the most it has waited for, in seconds."""

    def __init__(self, path):
        super().__init__()
        self.client, self.longest, self.ended = Client(path), 0, False

    def run(self):
        n = 0
        while not self.ended:
            begin = time.monotonic()
            self.client("SET", "ping", n)
            self.longest = max(self.longest, time.monotonic() - begin)
            n += 1
            time.sleep(0.001)


def snapshot(client, path):
    """Has the server fork and save; gives the digest of that moment and the longest wait after it."""
    client("CLIENT", "PAUSE", 600000, "WRITE")
    digest = client("DEBUG", "DIGEST").decode()
    client("BGSAVE")
    client("CLIENT", "UNPAUSE")
    pinger = Pinger(path)
    pinger.start()
    while client.info("rdb_bgsave_in_progress") == "1":
        time.sleep(0.005)
    pinger.ended = True
    pinger.join()
    if client.info("rdb_last_bgsave_status") != "ok":
        raise RedisError("a save in the background has failed")
    return digest, pinger.longest


def main():
    keys, snapshots = map(int, sys.argv[1:])
    work = os.getcwd()
    path = f"{work}/redis.sock"
    waits, digests = [], []
    with server(work, "redis") as client:
        fill(client, keys)
        print(client("DBSIZE").decode(), "keys", client("DEBUG", "DIGEST").decode())
        # Replaces a quarter of what is there: the data do not grow, however long it takes.
        benchmark = subprocess.Popen(["redis-benchmark", "-s", path, "-q", "-l", "-t", "set,mset,get",
                                      "-n", "20000", "-r", str(keys // 4), "-d", "700", "-c", "20"],
                                     stdout=subprocess.DEVNULL)
        for number in range(snapshots):
            time.sleep(0.3)
            digest, wait = snapshot(client, path)
            os.rename("dump.rdb", f"dump-{number}.rdb")
            digests.append(f"dump-{number}.rdb {digest}\n")
            waits.append(wait)
        if benchmark.poll() is not None:
            raise RedisError(f"redis-benchmark has ended with {benchmark.returncode}")
        benchmark.terminate()
        benchmark.wait()
    with open("dumps", "w") as f:
        f.writelines(digests)
    print(snapshots, "snapshots")
    print(f"note: after a fork a client waited {max(waits) * 1000:.0f} ms at most", file=sys.stderr)


def dumps_hold(path):
    """Of the file `dumps`: whether each dump has, once loaded, the digest that was told at its fork."""
    verdicts = []
    with open(path) as f:
        for line in f:
            name, digest = line.split()
            directory = os.path.dirname(path)
            try:
                with server(directory, "second", "--dbfilename", name) as client:
                    found = client("DEBUG", "DIGEST").decode()
            except (OSError, RedisError) as e:
                found = f"an error, {e}"
            verdicts.append(f"{name} {'holds' if found == digest else f'has {found}, at its fork it was {digest}'}")
    return "\n".join(verdicts).encode()


if __name__ == "__main__":
    main()
