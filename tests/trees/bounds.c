/* What a program may do before it forks, so that its child has less than others.
 *
 *     bounds MIB root DIRECTORY    has that for a root, without /proc (takes CAP_SYS_CHROOT)
 *     bounds MIB descriptors N     may have no more descriptors open
 *     bounds MIB hole 0            has memory that children do not get, and the child maps something else there
 *
 * The child looks at all of its parent's memory, writes it, and looks again. Prints "bounds: all well". */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pages.h"

enum { HOLE = 16 << 20 };

static char *hole;

static int is_right_all(unsigned of) {
    for (unsigned long page = 0; page < pages; page++)
        if (!is_right(page, of))
            return 0;
    return 1;
}

static void bound(const char *what, const char *by) {
    if (strcmp(what, "root") == 0) {
        if (chroot(by) != 0 || chdir("/") != 0) {
            perror("bounds: chroot, which takes CAP_SYS_CHROOT");
            exit(2);
        }
    } else if (strcmp(what, "descriptors") == 0) {
        struct rlimit few = {atoi(by), atoi(by)};
        setrlimit(RLIMIT_NOFILE, &few);
    } else {
        hole = mmap(NULL, HOLE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        madvise(hole, HOLE, MADV_DONTFORK);
    }
}

static int child(unsigned was) {
    if (!is_right_all(was))
        return 3;
    fill_all(was + 1);
    if (hole != NULL) {
        usleep(100000); /* what is to be made for it is there by then */
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
        if (mmap(hole, HOLE, PROT_READ | PROT_WRITE, flags, -1, 0) != hole)
            return 4;
        memset(hole, 1, HOLE);
    }
    return is_right_all(was + 1) ? 0 : 5;
}

int main(int count, char **words) {
    if (count != 4)
        return 2;
    pages = strtoul(words[1], NULL, 10) << 8;
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 2;
    /* Of a hole: what is stored before the fork is little, and the child's own pager is made later. */
    int is_small = strcmp(words[2], "hole") == 0;
    if (!is_small)
        fill_all(0);
    bound(words[2], words[3]);
    if (is_small)
        for (unsigned long page = 0; page < pages / 16; page++)
            fill(page, 0);
    int status = -1;
    pid_t pid = fork();
    if (pid == 0) {
        if (is_small)
            fill_all(0);
        _exit(child(0));
    }
    if (waitpid(pid, &status, 0) != pid || status != 0) {
        printf("bounds: the child ended with status %#x\n", status);
        return 1;
    }
    puts("bounds: all well");
    return 0;
}
