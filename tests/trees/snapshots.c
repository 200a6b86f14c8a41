/* Takes snapshots by fork, as a database does: each child checks that it has what was there at its fork,
 * while the parent goes on writing.
 *
 *     snapshots MIB TIMES WRITES WAY
 *
 * WAY is what the children do: "exit", when they are done; "again", leave the work to one more child, and
 * end at once; "chain", have a child that does the same, six deep; "kill", end by SIGKILL at some moment,
 * every second one. Prints "N snapshots are well" and, on
 * stderr, how long the forks took.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "pages.h"

static unsigned *generation; /* of each page, in memory that is never evicted for long */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void check_all(const char *who) {
    for (unsigned long page = 0; page < pages; page++)
        if (!is_right(page, generation[page])) {
            fprintf(stderr, "snapshots: %s %d: page %lu is not of generation %u: %lx\n", who, (int)getpid(), page,
                    generation[page], memory[page * WORDS]);
            _exit(2);
        }
}

static void child(const char *way, int depth) {
    pid_t pid = 0;
    int status = 0;
    if (!strcmp(way, "again")) {
        pid = fork();
        if (pid)
            _exit(pid < 0);
    }
    if (!strcmp(way, "chain") && depth < 6) {
        pid = fork();
        if (pid == 0) {
            child(way, depth + 1);
            _exit(0);
        }
    }
    /* Its own writes are its own. */
    for (unsigned long page = depth; page < pages; page += 7)
        fill(page, ++generation[page]);
    check_all("child");
    if (pid && (waitpid(pid, &status, 0) != pid || status))
        _exit(3);
}

int main(int argc, char **argv) {
    if (argc != 5)
        return 64;
    unsigned long seed = 1;
    pages = strtoul(argv[1], NULL, 10) << 8;
    int times = atoi(argv[2]), writes = atoi(argv[3]), done[2];
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    generation = calloc(pages, sizeof *generation);
    fill_all(0);
    double longest = 0, sum = 0;
    for (int i = 0; i < times; i++) {
        int kills = !strcmp(argv[4], "kill") && i % 2;
        if (pipe(done))
            return 1;
        double begin = now();
        pid_t pid = fork();
        if (pid == 0) {
            close(done[0]);
            child(argv[4], 0);
            _exit(write(done[1], "k", 1) != 1);
        }
        double took = now() - begin;
        sum += took;
        longest = took > longest ? took : longest;
        close(done[1]);
        for (int n = 0; n < writes; n++) {
            unsigned long page = draw(&seed) % pages;
            fill(page, ++generation[page]);
        }
        if (kills) {
            usleep(draw(&seed) % 20000);
            kill(pid, SIGKILL);
        }
        char well = 0;
        long got = read(done[0], &well, 1);
        int status;
        waitpid(pid, &status, 0);
        if (!kills && (got != 1 || status != 0)) {
            fprintf(stderr, "snapshots: child %d: status %x\n", i, status);
            return 1;
        }
        close(done[0]);
    }
    check_all("parent");
    fprintf(stderr, "fork: mean %.2f ms, longest %.2f ms\n", sum / times * 1e3, longest * 1e3);
    printf("%d snapshots are well\n", times);
    return 0;
}
