/* A copy of a managed process, made by a bare clone, which nobody announces to the pager. It maps
 * memory, where the pager had some of its own in the parent; its grandchild must have all of it.
 *
 *   strays SIZE     MiB written first, so that there is a pager
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHUNKS = 400 };
static const size_t CHUNK = 64u << 20;
static char *chunk[CHUNKS];

static char *map(size_t size) {
    char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        perror("mmap");
        exit(2);
    }
    return at;
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
    char *memory = map(size);
    for (size_t i = 0; i < size; i += 64)
        memory[i] = (char)(i / 64 * 7);
    usleep(200000);
    pid_t copy = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (copy == 0) {
        for (int i = 0; i < CHUNKS; i++)
            *(chunk[i] = map(CHUNK)) = (char)i;
        _exit(in_child(has_a_child));
    }
    int status = status_of(copy);
    puts(status ? "memory is missing" : "whole");
    return status;
}
