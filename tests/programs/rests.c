/* A program that rests, and while it rests looks at a page now and then, and changes it.
 *
 * What is left alone for a while is stored anew, more densely. A page that comes back, is changed and leaves
 * again amid that has the new contents, whatever was read of the old ones. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, PAGES = 32768, RESTS = 2, LOOKS = 120, EVERY_US = 20000 };

static uint64_t (*page)[WORDS];
static unsigned version[PAGES];

/* Words of a small alphabet: LZ4 makes half of it, an entropy coder less. */
static uint64_t word(size_t n, size_t at) {
    uint64_t x = (n + ((uint64_t)version[n] << 32)) * 0x9e3779b97f4a7c15u + at / 2 + 1;
    x ^= x >> 29, x *= 0xbf58476d1ce4e5b9u, x ^= x >> 32;
    return (x & 0x0f0f0f0f) | 1;
}

static void write_page(size_t n) {
    for (size_t at = 0; at < WORDS; at++)
        page[n][at] = word(n, at);
}

static void check_page(size_t n) {
    for (size_t at = 0; at < WORDS; at++)
        if (page[n][at] != word(n, at)) {
            printf("page %zu, word %zu is %lx, not %lx\n", n, at, (unsigned long)page[n][at], (unsigned long)word(n, at));
            exit(1);
        }
}

int main(void) {
    page = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        perror("mmap");
        return 2;
    }
    for (size_t n = 0; n < PAGES; n++)
        write_page(n);
    uint64_t random = 88172645463325252u;
    for (int rest = 0; rest < RESTS; rest++) {
        for (int look = 0; look < LOOKS; look++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            size_t n = random % PAGES;
            check_page(n);
            version[n]++;
            write_page(n);
            usleep(EVERY_US);
        }
        for (size_t n = 0; n < PAGES; n++)
            check_page(n);
    }
    puts("each page held what was written last");
    return 0;
}
