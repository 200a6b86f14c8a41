/* What there is to see when a thread stands still: how long each worker has, and what all threads of this address
 * space wait for, twice, three seconds apart. `schedstat` is the time a thread ran, the time it was ready and waited for
 * a processor, both in ns, and how often it got one: who is slow, who starves and who was not woken look different. */
#include "torture.h"
#include <dirent.h>

/* The text of a file in /proc, in one line. */
static const char *text_of(const char *task, const char *name) {
    static char text[1024];
    char path[96];
    snprintf(path, sizeof path, "/proc/%s/%s", task, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    text[size > 0 ? size : 0] = 0;
    text[strcspn(text, "\n")] = 0;
    return text;
}

/* A field of `stat`, from the third on, as proc(5) numbers them. */
static unsigned long stat_field(const char *task, int number) {
    const char *at = strrchr(text_of(task, "stat"), ')');
    for (int n = 2; at && n < number; n++)
        at = strchr(at + 1, ' ');
    return at ? strtoul(at + 1, NULL, 10) : 0;
}

static void tell_task(const char *task) {
    fprintf(stderr, "  %s %s,", task, text_of(task, "comm"));
    fprintf(stderr, " schedstat %s,", text_of(task, "schedstat"));
    fprintf(stderr, " %lu faults, cpu %lu,", stat_field(task, 10), stat_field(task, 39));
    fprintf(stderr, " nice %ld, policy %lu,", (long)stat_field(task, 19), stat_field(task, 41));
    fprintf(stderr, " in %s,", text_of(task, "wchan"));
    fprintf(stderr, " call %s\n", text_of(task, "syscall"));
}

static void tell_process(const char *process) {
    char path[300];
    snprintf(path, sizeof path, "/proc/%s/task", process);
    DIR *tasks = opendir(path);
    for (struct dirent *entry; tasks && (entry = readdir(tasks));) {
        char task[600];
        snprintf(task, sizeof task, "%s/task/%s", process, entry->d_name);
        if (entry->d_name[0] != '.')
            tell_task(task);
    }
    if (tasks)
        closedir(tasks);
}

/* Ours, and the helpers that have this address space: their arguments lie where ours do. */
static void tell_address_space(void) {
    enum { ARG_START = 48 };
    unsigned long ours = stat_field("self", ARG_START);
    fprintf(stderr, "load %s\n", text_of(".", "loadavg"));
    DIR *processes = opendir("/proc");
    for (struct dirent *entry; processes && (entry = readdir(processes));)
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && stat_field(entry->d_name, ARG_START) == ours)
            tell_process(entry->d_name);
    if (processes)
        closedir(processes);
}

void tell_stall(const uint64_t since[]) {
    for (unsigned i = 0; i < MAX_WORKERS + 2; i++)
        if (worker[i] && !worker[i]->done)
            fprintf(stderr, "worker %u: no progress for %lu ms\n", i, (now_ns() - since[i]) / 1000000);
    tell_address_space();
    sleep(3);
    fputs("and then:\n", stderr);
    tell_address_space();
}
