/* Fills memory with noise, which a limit below sends to the file; says "filled" and waits for a line; then
 * looks at all of it while the file fails: every page must read as it was written, or raise SIGBUS, never
 * anything else. Writes all of it anew and looks again.
 *
 * Prints "lost N, wrong N, right N" for each look; exits 0 when nothing was wrong. */
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, PAGES = 10000, WORDS = PAGE / 8 };

static sigjmp_buf back;

static void lost(int signal) {
    (void)signal;
    siglongjmp(back, 1);
}

static void fill(uint64_t *page, uint64_t seed) {
    for (int i = 0; i < WORDS; i++) {
        uint64_t x = seed * WORDS + i + 1;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
        x = (x ^ x >> 27) * 0x94d049bb133111eb;
        page[i] = x ^ x >> 31;
    }
}

static long look(unsigned char *memory, uint64_t seed) {
    volatile long counts[3] = {0};
    for (volatile uint64_t n = 0; n < PAGES; n++) {
        uint64_t expected[WORDS];
        fill(expected, seed + n);
        if (sigsetjmp(back, 1))
            counts[0]++;
        else
            counts[memcmp(memory + n * PAGE, expected, PAGE) ? 1 : 2]++;
    }
    printf("lost %ld, wrong %ld, right %ld\n", counts[0], counts[1], counts[2]);
    fflush(stdout);
    return counts[1];
}

int main(void) {
    unsigned char *memory =
        mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    signal(SIGBUS, lost);
    for (uint64_t n = 0; n < PAGES; n++)
        fill((uint64_t *)(memory + n * PAGE), n);
    puts("filled");
    fflush(stdout);
    char line[16];
    if (!fgets(line, sizeof line, stdin))
        return 2;
    long wrong = look(memory, 0);
    madvise(memory, (size_t)PAGES * PAGE, MADV_DONTNEED); // what is lost can be had anew
    for (uint64_t n = 0; n < PAGES; n++)
        fill((uint64_t *)(memory + n * PAGE), PAGES + n);
    return wrong + look(memory, PAGES) ? 1 : 0;
}
