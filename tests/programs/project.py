"""A C project: so many files of so many functions, and a Makefile that lists what it has built."""

import pathlib


def project(where, files, functions=150):
    """Writes it to the directory `where`; `make` there leaves the hash of every object in `built`."""
    source = pathlib.Path(where)
    source.mkdir(exist_ok=True)
    for n in range(files):
        lines = [f"long f{n}_{i}(long a, long b) {{ long s = {i}; for (long k = 0; k < b; k++) "
                 f"s += (a ^ k) * {n + 3} % (k + {i + 1}); return s > {n} ? s - a : f{n}_{i - 1}(b, a % 7); }}"
                 for i in range(1, functions)]
        (source / f"part{n}.c").write_text("\n".join([f"long f{n}_0(long a, long b) {{ return a + b; }}", *lines]))
    calls = " + ".join(f"f{n}_{functions - 1}(5, 9)" for n in range(files))
    declared = "\n".join(f"long f{n}_{functions - 1}(long, long);" for n in range(files))
    (source / "main.c").write_text(
        f'#include <stdio.h>\n{declared}\nint main(void) {{ printf("%ld\\n", {calls}); return 0; }}\n')
    objects = " ".join(f"part{n}.o" for n in range(files)) + " main.o"
    (source / "Makefile").write_text(f"built: {objects}\n\tgcc -o all {objects}\n\tsha256sum *.o all >built\n"
                                     "%.o: %.c\n\tgcc -O2 -c -o $@ $<\n")
