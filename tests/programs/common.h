/* What the small programs share: a size from the command line, a mixing function, a clock, and a
 * page's worth of bytes that compress well but are different in every page. */
#ifndef COMMON_H
#define COMMON_H
#define _GNU_SOURCE
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul

static inline uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* Word `i` of page `n`: 32 words repeated, so about 10 to 1. */
static inline uint64_t page_word(uint64_t n, unsigned i) {
    return n * 0x9e3779b97f4a7c15ull + (i & 31);
}

static inline double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* The size in argument `i`, such as 64M. */
static inline size_t size_argument(int argc, char **argv, int i) {
    char *end = NULL;
    size_t n = argc > i ? strtoull(argv[i], &end, 0) : 0;
    if (n && *end)
        n <<= *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 63;
    if (!n) {
        fprintf(stderr, "usage: %s SIZE, as 256M\n", argv[0]);
        exit(2);
    }
    return n & ~(PAGE - 1);
}

static inline void *map(size_t size, int flags) {
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (p == MAP_FAILED) {
        perror("mmap");
        exit(2);
    }
    return p;
}

static inline _Noreturn void wrong(const void *at, uint64_t expected, uint64_t found) {
    fprintf(stderr, "wrong bytes at %p: expected %016lx found %016lx\n", at, expected, found);
    exit(1);
}

/* Writes all words of a page. */
static inline void fill_page(char *page, uint64_t id) {
    for (unsigned i = 0; i < PAGE / 8; i++)
        ((uint64_t *)page)[i] = page_word(id, i);
}

/* Whether it still has them; else that is the end. */
static inline void check_page(const char *page, uint64_t id) {
    const uint64_t *w = (const uint64_t *)page;
    for (unsigned i = 0; i < PAGE / 8; i++)
        if (w[i] != page_word(id, i))
            wrong(&w[i], page_word(id, i), w[i]);
}

/* How many mappings there are. */
static inline unsigned mappings(void) {
    FILE *f = fopen("/proc/self/maps", "re");
    unsigned lines = 0;
    for (int c; f && (c = getc(f)) != EOF;)
        lines += c == '\n';
    return lines;
}
#endif
