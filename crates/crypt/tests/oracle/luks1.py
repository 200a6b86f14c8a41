#!/usr/bin/env python3
"""luks1.py IMAGE PASSPHRASE: the master key in hex, and the byte at which the sectors begin.

By the LUKS1 On-Disk Format Specification 1.2.3: the header and its key slots are big-endian; a slot's
key material is the master key, split by the anti-forensic splitter into `stripes` parts and encrypted
as the sectors are, with a key made of the passphrase by PBKDF2.
"""

import hashlib
import struct
import sys

from evp import xts

SECTOR = 512


def diffuse(block, hash_name):
    """The diffusion between stripes: each hash-sized part, with its number in front, hashed."""
    size, out = hashlib.new(hash_name).digest_size, b""
    for number, at in enumerate(range(0, len(block), size)):
        part = block[at:at + size]
        out += hashlib.new(hash_name, struct.pack(">I", number) + part).digest()[:len(part)]
    return out


def merge(material, length, stripes, hash_name):
    """The anti-forensic splitter, backwards."""
    state = bytes(length)
    for stripe in range(stripes):
        part = material[stripe * length:(stripe + 1) * length]
        state = bytes(a ^ b for a, b in zip(state, part))
        if stripe < stripes - 1:
            state = diffuse(state, hash_name)
    return state


def main():
    image, passphrase = open(sys.argv[1], "rb").read(), sys.argv[2].encode()
    magic, version, cipher, mode, hash_name, payload, length, digest, salt, rounds, _uuid = struct.unpack_from(
        ">6sH32s32s32sII20s32sI40s", image)
    cipher, mode, hash_name = (field.rstrip(b"\0").decode() for field in (cipher, mode, hash_name))
    found = (magic, version, cipher, mode, length)
    if found != (b"LUKS\xba\xbe", 1, "aes", "xts-plain64", 64):
        raise SystemExit(f"{sys.argv[1]} is {found}, not LUKS1 with aes-xts-plain64 and 512 bits of key")
    for slot in range(8):
        active, slot_rounds, slot_salt, offset, stripes = struct.unpack_from(">II32sII", image, 208 + 48 * slot)
        if active != 0x00AC71F3:
            continue
        key = hashlib.pbkdf2_hmac(hash_name, passphrase, slot_salt, slot_rounds, length)
        encrypted = image[offset * SECTOR:offset * SECTOR + length * stripes]
        master = merge(xts(False, key, SECTOR, 0, 1, encrypted), length, stripes, hash_name)
        if hashlib.pbkdf2_hmac(hash_name, master, salt, rounds, len(digest)) == digest:
            print(master.hex(), payload * SECTOR)
            return
    raise SystemExit("the passphrase opens no slot")


main()
