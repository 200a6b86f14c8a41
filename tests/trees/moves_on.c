/* A copy of a managed process, made by a bare clone, which moves its memory again and again while the
 * parent's pager fills it: it has every page, wherever that came to lie in the end.
 *
 *   moves_on SIZE     MiB that are written, of which a part is evicted
 *
 * Memory is moved to addresses that are no multiple of 2 MiB from where it was, so that the kernel
 * moves it page by page; what is brought meanwhile waits, and then finds nothing where the memory was.
 */
#define _GNU_SOURCE
#include "map.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, MOVES = 200 };

/* Words that differ from page to page. */
static void write_page(char *page, size_t n) {
    for (size_t i = 0; i < PAGE / 8; i++)
        ((uint64_t *)page)[i] = n * PAGE + i % 64 + 1;
}

static int wrong_pages(char *memory, size_t pages) {
    static char want[PAGE];
    int wrong = 0;
    for (size_t n = 0; n < pages; n++) {
        write_page(want, n);
        wrong += memcmp(memory + n * PAGE, want, PAGE) != 0;
    }
    return wrong;
}

static char *move(char *memory, char *to, size_t size) {
    char *at = mremap(memory, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, to);
    if (at != to) {
        perror("mremap");
        _exit(2);
    }
    return at;
}

int main(int argc, char **argv) {
    size_t size = (size_t)(argc > 1 ? atoi(argv[1]) : 96) << 20, pages = size / PAGE;
    int told[2], wrong, status;
    char *memory = map(size), *room = map(2 * size + PAGE);
    munmap(room, 2 * size + PAGE);
    for (size_t n = 0; n < pages; n++)
        write_page(memory + n * PAGE, n);
    if (pipe(told))
        return 2;
    pid_t copy = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (copy == 0) {
        for (int i = 0; i < MOVES; i++) {
            memory = move(memory, room + (i % 2 ? size + PAGE : 0), size);
            usleep(200);
        }
        wrong = wrong_pages(memory, pages);
        _exit(write(told[1], &wrong, sizeof wrong) == sizeof wrong ? 0 : 2);
    }
    if (waitpid(copy, &status, 0) != copy || status || read(told[0], &wrong, sizeof wrong) != sizeof wrong)
        printf("the copy ended with %x\n", status);
    else if (wrong)
        printf("%d pages are wrong\n", wrong);
    else
        puts("whole");
    return 0;
}
