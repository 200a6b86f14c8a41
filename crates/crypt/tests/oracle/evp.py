"""AES-256-XTS by OpenSSL's libcrypto: XTS has no command of its own in `openssl`."""

import ctypes
import ctypes.util


def _load():
    name = ctypes.util.find_library("crypto")
    if name is None:
        raise SystemExit("no libcrypto here; install the package openssl")
    lib = ctypes.CDLL(name)
    pointer = ctypes.c_void_p
    for function in ("EVP_CIPHER_CTX_new", "EVP_aes_256_xts"):
        getattr(lib, function).restype = pointer
    lib.EVP_CipherInit_ex.argtypes = [pointer, pointer, pointer, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int]
    lib.EVP_CipherUpdate.argtypes = [pointer, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int), ctypes.c_char_p,
                                     ctypes.c_int]
    lib.EVP_CIPHER_CTX_free.argtypes = [pointer]
    return lib


def xts(encrypt, key, sector, first, step, data):
    """Every `sector` bytes of `data` with the next IV: `first`, and `step` more each time."""
    lib, out = _load(), bytearray()
    context = lib.EVP_CIPHER_CTX_new()
    room, length = ctypes.create_string_buffer(sector), ctypes.c_int()
    for at in range(0, len(data), sector):
        number = (first + at // sector * step) % 2**64
        iv = number.to_bytes(16, "little")
        ok = lib.EVP_CipherInit_ex(context, lib.EVP_aes_256_xts(), None, key, iv, int(encrypt))
        ok = ok and lib.EVP_CipherUpdate(context, room, ctypes.byref(length), data[at:at + sector], sector)
        if not ok or length.value != sector:
            raise SystemExit("OpenSSL refuses")
        out += room.raw
    lib.EVP_CIPHER_CTX_free(context)
    return bytes(out)
