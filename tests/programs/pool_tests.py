"""For `pytest -n 2`: each test fills some memory, and checks it when others have run beside it."""

import hashlib
import os
import random

import pytest

SIZE = int(os.environ.get("POOL_TEST_ROWS", "30000"))


@pytest.fixture(scope="session")
def table():
    """What every worker keeps as long as it lives."""
    draw = random.Random(7)
    return {f"key {n}": f"{draw.getrandbits(200):x} and more of it " * 3 for n in range(SIZE)}


def digest(table):
    hasher = hashlib.sha256()
    for key in sorted(table):
        hasher.update(f"{key}={table[key]}\n".encode())
    return hasher.hexdigest()


@pytest.mark.parametrize("n", range(24))
def test_rows(table, n):
    before = digest(table)
    draw = random.Random(n)
    rows = [[draw.getrandbits(64), str(draw.random()), [n] * 8] for _ in range(SIZE)]
    rows.sort()
    draw = random.Random(n)
    assert rows == sorted([draw.getrandbits(64), str(draw.random()), [n] * 8] for _ in range(SIZE))
    assert digest(table) == before


@pytest.mark.xfail(strict=True)
def test_that_fails(table):
    assert digest(table) == "something else"
