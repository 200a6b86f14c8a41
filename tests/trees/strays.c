/* A copy of a managed process, made by a bare clone, which nobody announces to the pager. It maps
 * memory, where the pager had some of its own in the parent; its grandchild must have all of it. And it
 * moves memory to there at once, while the parent's pager fills it: what is moved stays as it was.
 *
 *   strays SIZE     MiB written first, so that there is a pager
 */
#define _GNU_SOURCE
#include "map.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, CHUNKS = 400, PLACE = 64 * PAGE, PLACES = 256 };
static const size_t CHUNK = 64u << 20;
static char *chunk[CHUNKS];

/* The parent's mappings, and what the copy has moved to where it has none. */
static struct span { char *start, *end; } parents[1024], moved[PLACES];
static size_t parents_count, moved_count;

static void list_parents(void) {
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && parents_count < 1024 && fgets(line, sizeof line, maps)) {
        struct span *span = &parents[parents_count];
        parents_count += sscanf(line, "%p-%p", (void **)&span->start, (void **)&span->end) == 2;
    }
    if (maps)
        fclose(maps);
}

static void move_to_where_parents_are(char *blank) {
    for (size_t i = 0; i < parents_count && moved_count < PLACES; i++) {
        unsigned char there;
        size_t len = (size_t)(parents[i].end - parents[i].start);
        len = len < PLACE ? len : PLACE;
        if (mincore(parents[i].start, PAGE, &there) == 0)
            continue;
        if (mremap(blank, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, parents[i].start) != parents[i].start)
            continue; /* the kernel's own, at the end of all addresses */
        moved[moved_count++] = (struct span){parents[i].start, parents[i].start + len};
        blank += PLACE;
    }
}

/* Ends the copy unless what it has moved is still blank. */
static void check_moved(void) {
    for (size_t i = 0; i < moved_count; i++)
        for (char *at = moved[i].start; at < moved[i].end; at++)
            if (*at)
                _exit(4);
}

static int status_of(pid_t child) {
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 2;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Runs `what` in a child; gives its exit status. */
static int in_child(int (*what)(void)) {
    pid_t child = fork();
    if (child == 0)
        _exit(what());
    return status_of(child);
}

static int is_whole(void) {
    for (int i = 0; i < CHUNKS; i++)
        if (msync(chunk[i], CHUNK, MS_ASYNC) || chunk[i][0] != (char)i)
            return 1;
    return 0;
}

static int has_a_child(void) { return in_child(is_whole); }

int main(int argc, char **argv) {
    size_t size = (size_t)(argc > 1 ? atoi(argv[1]) : 96) << 20;
    char *blank = map(PLACES * PLACE), *memory = map(size);
    for (size_t i = 0; i < size; i += 64)
        memory[i] = (char)(i / 64 * 7);
    usleep(200000);
    list_parents();
    pid_t copy = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (copy == 0) {
        move_to_where_parents_are(blank);
        usleep(500000);
        check_moved();
        for (int i = 0; i < CHUNKS; i++)
            *(chunk[i] = map(CHUNK)) = (char)i;
        _exit(in_child(has_a_child));
    }
    int status = status_of(copy);
    puts(status ? "memory is missing" : "whole");
    return status;
}
