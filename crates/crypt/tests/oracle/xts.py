#!/usr/bin/env python3
"""xts.py encrypt|decrypt KEY-IN-HEX SECTOR-BYTES FIRST-IV IV-STEP <sectors >sectors"""

import sys

from evp import xts

way, key, sector, first, step = sys.argv[1:]
data = sys.stdin.buffer.read()
out = xts(way == "encrypt", bytes.fromhex(key), int(sector), int(first), int(step), data)
sys.stdout.buffer.write(out)
