/* Damages what the pager keeps of this program, then looks at all of it: every page must read as it
 * was written, or raise SIGBUS; never as something else.
 *
 * Under Octavo the pool lies in the program's own address space, in a mapping of POOL bytes at least.
 * Prints "lost N, wrong N, right N"; exits 0 when some were lost and none was wrong. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, PAGES = 50000 };
static const size_t POOL = (size_t)1 << 30;

static sigjmp_buf back;

static void lost(int signal) {
    (void)signal;
    siglongjmp(back, 1);
}

static const uint64_t MAGIC = 0x4F6374617600FEED;

/* A page of its own, which compresses well, and whose first bytes any codec of the LZ77 kind that does
 * not code literals keeps as they are. */
static void fill(uint64_t *page, uint64_t number) {
    for (uint64_t i = 0; i < PAGE / 8; i++)
        page[i] = i % 64 ? number : i * number;
    page[0] = MAGIC;
    page[1] = number * 0x9E3779B97F4A7C15;
}

/* Changes one byte of every hundredth page found in `len` bytes from `start` on. */
static void damage_in(unsigned char *start, size_t len) {
    unsigned char *present = malloc(len / PAGE);
    long found = 0;
    mincore(start, len, present);
    for (size_t at = 0; at + PAGE < len; at++) {
        if (at % PAGE == 0 && !(present[at / PAGE] & 1)) {
            at += PAGE - 1;
            continue;
        }
        if (!memcmp(start + at, &MAGIC, 7) && found++ % 100 == 0)
            start[at + 12] ^= 0x10;
    }
    free(present);
}

static void damage(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long start, end, inode;
    char line[512];
    while (fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %*s %*s %*s %lu", &start, &end, &inode) == 3 && end - start >= POOL && !inode)
            damage_in((unsigned char *)start, end - start);
    fclose(maps);
}

int main(void) {
    unsigned char *memory =
        mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (uint64_t n = 0; n < PAGES; n++)
        fill((uint64_t *)(memory + n * PAGE), n);
    damage();
    signal(SIGBUS, lost);
    volatile long counts[3] = {0};
    for (volatile uint64_t n = 0; n < PAGES; n++) {
        uint64_t expected[PAGE / 8];
        fill(expected, n);
        if (sigsetjmp(back, 1))
            counts[0]++;
        else
            counts[memcmp(memory + n * PAGE, expected, PAGE) ? 1 : 2]++;
    }
    printf("lost %ld, wrong %ld, right %ld\n", counts[0], counts[1], counts[2]);
    return counts[0] && !counts[1] ? 0 : 1;
}
