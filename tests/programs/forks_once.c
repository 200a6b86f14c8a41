/* A program that forks children which end at once, and goes on writing: what a fork has shared must
 * not stay in memory past the limit. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 192 << 20, PAGE = 4096, ROUNDS = 4 };

static void touch(char *array, uint64_t round) {
    for (uint64_t i = 0; i < BYTES; i += 64)
        *(uint64_t *)(array + i) = (i * 0x9e3779b97f4a7c15u >> 40) + round;
}

int main(void) {
    char *array = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t sum = 0;
    if (array == MAP_FAILED)
        return 2;
    touch(array, 0);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        pid_t child = fork();
        int status;
        if (child < 0)
            return 2;
        if (child == 0)
            _exit(*(uint64_t *)(array + BYTES / 2) == ((BYTES / 2) * 0x9e3779b97f4a7c15u >> 40) + round - 1 ? 7 : 8);
        if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 7) {
            printf("the child of round %lu found something else\n", (unsigned long)round);
            return 1;
        }
        touch(array, round);
    }
    for (uint64_t i = 0; i < BYTES; i += PAGE)
        sum += *(uint64_t *)(array + i);
    printf("%d rounds, sum %lu\n", ROUNDS, (unsigned long)sum);
    return 0;
}
