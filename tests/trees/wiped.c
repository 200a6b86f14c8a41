/* What a child gets as zeros (MADV_WIPEONFORK) is what was so when it was made, whatever its parent says a moment
 * later, and what it does with that memory.
 *
 *   wiped SIZE     MiB that are written each time, so that a part is evicted
 *
 * Each time one range is advised before the fork, and one is not; then the parent goes on at once: it takes both
 * back, or it unmaps what was advised. The child, of libc's fork, looks at both.
 */
#define _GNU_SOURCE
#include "map.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, RANGE = 64 * PAGE, TIMES = 120 };

static void fill(char *memory, size_t size, int seed) {
    for (size_t at = 0; at < size; at += 64)
        memset(memory + at, (int)((at / 64 + (size_t)seed) % 251 + 1), 16);
}

static int is_filled(const char *memory, size_t size, int seed) {
    for (size_t at = 0; at < size; at += 64)
        if (memory[at] != (char)((at / 64 + (size_t)seed) % 251 + 1))
            return 0;
    return 1;
}

static int is_zero(const char *memory, size_t size) {
    for (size_t at = 0; at < size; at++)
        if (memory[at])
            return 0;
    return 1;
}

static void advise(char *memory, int advice) {
    if (madvise(memory, RANGE, advice)) {
        perror("madvise");
        exit(2);
    }
}

int main(int argc, char **argv) {
    size_t size = (size_t)(argc > 1 ? atoi(argv[1]) : 96) << 20;
    char *others = map(size), *stays = map(RANGE);
    for (int n = 0; n < TIMES; n++) {
        int status;
        char *wiped = map(RANGE);
        fill(wiped, RANGE, n);
        fill(stays, RANGE, n + 1);
        fill(others, size, n);
        advise(wiped, MADV_WIPEONFORK);
        pid_t child = fork();
        if (child == 0)
            _exit((is_zero(wiped, RANGE) ? 0 : 1) | (is_filled(stays, RANGE, n + 1) ? 0 : 2));
        advise(stays, MADV_WIPEONFORK);
        if (n % 2)
            advise(wiped, MADV_KEEPONFORK);
        else
            munmap(wiped, RANGE);
        if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status)) {
            printf("child %d: %s%s\n", n, WEXITSTATUS(status) & 1 ? "not zeros " : "", WEXITSTATUS(status) & 2 ? "lost" : "");
            return 1;
        }
        advise(stays, MADV_KEEPONFORK);
        if (n % 2)
            munmap(wiped, RANGE);
    }
    puts("whole");
    return 0;
}
