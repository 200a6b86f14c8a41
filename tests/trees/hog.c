/* hog MIB SECONDS SEED HOW: fills memory, then looks at random words of it (HOW `busy`), or at none
 * (`idle`), and at the end at all. HOW `noise`: the contents do not compress. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { WORDS = 512 };

static int keep_one_in; /* words that are not zeros */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint64_t word(uint64_t seed, size_t at) {
    uint64_t x = seed * 0x9e3779b97f4a7c15u + at + 1;
    x ^= x >> 29, x *= 0xbf58476d1ce4e5b9u, x ^= x >> 32;
    return at % (size_t)keep_one_in ? 0 : x;
}

static void look(const uint64_t *array, uint64_t seed, size_t at) {
    if (array[at] != word(seed, at)) {
        printf("hog %lu: word %zu is %lx\n", (unsigned long)seed, at, (unsigned long)array[at]);
        exit(1);
    }
}

int main(int argc, char **argv) {
    if (argc != 5)
        return 2;
    size_t words = ((size_t)atol(argv[1]) << 20) / 8;
    uint64_t seed = strtoul(argv[3], NULL, 10), rng = seed;
    keep_one_in = strcmp(argv[4], "noise") ? 3 : 1;
    uint64_t *array = mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (array == MAP_FAILED)
        return 2;
    for (size_t i = 0; i < words; i++)
        array[i] = word(seed, i);
    for (double end = now() + atof(argv[2]); now() < end;) {
        if (!strcmp(argv[4], "busy")) {
            for (int i = 0; i < 100; i++) {
                rng = rng * 6364136223846793005u + 1442695040888963407u;
                look(array, seed, (rng >> 20) % words);
            }
        } else {
            usleep(50000);
        }
    }
    for (size_t i = 0; i < words; i += WORDS / 8)
        look(array, seed, i);
    printf("hog %lu is well\n", (unsigned long)seed);
    return 0;
}
