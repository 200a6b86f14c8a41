/* Grows by small steps, half by brk and half by mmap, each step written at once.
 * A pager that registers each step for itself leaves thousands of mappings behind: their number
 * at the end is told on stderr ("mappings N"), for the runner to compare. */
#include "common.h"
#include <sys/syscall.h>

enum { STEP = 64 << 10 };

static void fill(char *p, uint64_t id) {
    uint64_t *w = (uint64_t *)p;
    for (size_t i = 0; i < STEP / 8; i++)
        w[i] = page_word(id * (STEP / PAGE) + i / 512, i % 512);
}

static void check(char *p, uint64_t id) {
    uint64_t *w = (uint64_t *)p;
    for (size_t i = 0; i < STEP / 8; i++)
        if (w[i] != page_word(id * (STEP / PAGE) + i / 512, i % 512))
            wrong(&w[i], page_word(id * (STEP / PAGE) + i / 512, i % 512), w[i]);
}

int main(int argc, char **argv) {
    size_t steps = size_argument(argc, argv, 1) / STEP;
    useconds_t pause_us = argc > 2 ? (useconds_t)atoi(argv[2]) : 100;
    char **at = map(steps * sizeof *at + PAGE, 0);
    setvbuf(stdout, NULL, _IONBF, 0); /* no heap of libc's: the break is ours */
    uintptr_t top = ((uintptr_t)syscall(SYS_brk, 0) + PAGE - 1) & ~(PAGE - 1);
    for (size_t i = 0; i < steps; i++) {
        if (i % 2) {
            at[i] = (char *)top;
            top += STEP;
            if ((uintptr_t)syscall(SYS_brk, top) != top) {
                perror("brk");
                return 2;
            }
        } else {
            at[i] = map(STEP, 0);
        }
        fill(at[i], i);
        if (pause_us && i % 4 == 0)
            usleep(pause_us);
    }
    for (size_t i = 0; i < steps; i++)
        check(at[i], i);
    printf("verified %zu steps\n", steps);
    fprintf(stderr, "mappings %u\n", mappings());
    return 0;
}
