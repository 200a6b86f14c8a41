/* A program that answers faults of its own by userfaultfd. What it registered early stays its own, though memory is
 * managed around it. What it maps and registers once all is managed the kernel refuses with EBUSY, for one mapping
 * has one userfaultfd: then it uses that as it is. What cannot be written before it is registered is its own, too.
 *
 * Needs CAP_SYS_PTRACE, as Octavo does, or vm.unprivileged_userfaultfd=1. */
#include "common.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

enum { OWN = 32 << 20, LATE = 4 << 20 };

static int uffd;
static char *first, *late, *closed;
static size_t served; /* only the serving thread counts, until all faults are over */

static _Noreturn void fail(const char *what) {
    perror(what);
    exit(2);
}

/* What a page begins with, by its address in what it belongs to. */
static uint64_t id_of(const char *page) {
    const struct { const char *at; size_t size; } areas[] = {{first, OWN}, {late, LATE}, {closed, LATE}};
    uint64_t area = 0;
    while ((size_t)(page - areas[area].at) >= areas[area].size)
        area++;
    return area << 32 | (size_t)(page - areas[area].at) / PAGE;
}

static void *serve(void *page) {
    for (struct uffd_msg fault; read(uffd, &fault, sizeof fault) == sizeof fault;) {
        char *at = (char *)(fault.arg.pagefault.address & ~(PAGE - 1));
        fill_page(page, id_of(at));
        struct uffdio_copy copy = {.dst = (uintptr_t)at, .src = (uintptr_t)page, .len = PAGE};
        if (ioctl(uffd, UFFDIO_COPY, &copy) != 0)
            fail("UFFDIO_COPY");
        __atomic_fetch_add(&served, 1, __ATOMIC_RELEASE);
    }
    fail("read");
}

static bool registers(char *at, size_t size) {
    struct uffdio_register range = {.range = {(uintptr_t)at, size}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    return ioctl(uffd, UFFDIO_REGISTER, &range) == 0;
}

static void check(const char *at, size_t size) {
    for (size_t page = 0; page < size / PAGE; page++)
        check_page(at + page * PAGE, id_of(at + page * PAGE));
}

static void fill(char *at, size_t size, uint64_t from) {
    for (size_t page = 0; page < size / PAGE; page++)
        fill_page(at + page * PAGE, from + page);
}

static bool is_managed(void) {
    FILE *maps = fopen("/proc/self/maps", "re");
    bool found = false;
    for (char line[512]; maps && fgets(line, sizeof line, maps);)
        found |= strstr(line, "liboctavo") != NULL;
    fclose(maps);
    return found;
}

int main(int argc, char **argv) {
    size_t size = size_argument(argc, argv, 1);
    struct uffdio_api api = {.api = UFFD_API};
    uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api) != 0)
        fail("userfaultfd");
    first = map(OWN, 0);
    if (!registers(first, OWN))
        fail("UFFDIO_REGISTER");
    pthread_t server;
    if (pthread_create(&server, NULL, serve, map(PAGE, 0)) != 0)
        fail("pthread_create");

    check(first, OWN / 2); /* by its own server, before there is much */
    char *other = map(size, 0);
    fill(other, size, 7ul << 32);
    check(first, OWN); /* and the rest after that */
    for (size_t page = 0; page < size / PAGE; page++)
        check_page(other + page * PAGE, (7ul << 32) + page);

    late = map(LATE, 0);
    if (!registers(late, LATE)) {
        if (errno != EBUSY || !is_managed())
            fail("UFFDIO_REGISTER, late");
        fill(late, LATE, 1ul << 32);
        served += LATE / PAGE; /* as many as it would have been */
    }
    check(late, LATE);
    closed = mmap(NULL, LATE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (closed == MAP_FAILED || !registers(closed, LATE) || mprotect(closed, LATE, PROT_READ | PROT_WRITE) != 0)
        fail("UFFDIO_REGISTER, of what cannot be written");
    check(closed, LATE);
    fill(other, size, 8ul << 32);
    check(first, OWN);
    check(late, LATE);
    check(closed, LATE);
    printf("%zu pages are what was served, the others what was written\n", __atomic_load_n(&served, __ATOMIC_ACQUIRE));
    return 0;
}
