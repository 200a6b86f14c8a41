"""A heap of small Python objects (about 400 MB), full collections in between, a checksum."""

import gc
import sys


class Node:
    def __init__(self, key, left):
        self.key = key
        self.name = f"node-{key}"
        self.values = [key, key * 2, str(key * 3)]
        self.left = left
        self.right = None
        if left is not None:
            left.right = self  # a cycle: only a collection frees it


def main(count):
    gc.disable()
    heads = []
    total = 0
    for chunk in range(10):
        node = None
        table = {}
        for key in range(chunk * count, (chunk + 1) * count):
            node = Node(key, node)
            table[key] = node
        heads.append((node, table))
        total += gc.collect()
        old_node, old_table = heads[chunk // 2]
        for key in list(old_table)[::7]:  # some die, some change, in an old part of the heap
            old_table[key].values.append(chunk)
            old_table[key].left = None
    checksum = 0
    for node, table in heads:
        for key, value in table.items():
            checksum = (checksum * 31 + key + len(value.name) + len(value.values)) % (1 << 61)
    heads.clear()
    print(checksum, gc.collect() > 0, total)


main(int(sys.argv[1]) if len(sys.argv) > 1 else 60000)
