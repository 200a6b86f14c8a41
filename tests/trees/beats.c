/* Works through its memory, while a timer's handler forks all the time.
 *
 *     beats MIB EVERY_MS LIVES_MS SECONDS
 *
 * Each child looks at some pages and lives a while: it has most pages of its parent's, which has few milliseconds of
 * its own until the next one. Prints "beats: all well". */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "pages.h"

static unsigned long every, lives;
static volatile unsigned long done; /* pages worked on, in all */
static volatile sig_atomic_t wrong;

/* How often that page was worked on. */
static unsigned times(unsigned long page) {
    return done / pages + (page < done % pages);
}

static void child(void) {
    unsigned long state = getpid();
    for (int i = 0; i < 20; i++) {
        unsigned long page = draw(&state) % pages;
        if (page != done % pages && !is_right(page, times(page)))
            _exit(2);
    }
    usleep(lives * 1000);
    _exit(0);
}

static void reap(int options) {
    int status;
    while (waitpid(-1, &status, options) > 0)
        wrong += status != 0;
}

static void on_alarm(int number) {
    int error = errno;
    (void)number;
    reap(WNOHANG);
    pid_t pid = fork();
    if (pid == 0)
        child();
    wrong += pid < 0;
    errno = error;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

int main(int count, char **words) {
    if (count != 5)
        return 2;
    pages = strtoul(words[1], NULL, 10) << 8;
    every = strtoul(words[2], NULL, 10);
    lives = strtoul(words[3], NULL, 10);
    double end = now() + atof(words[4]);
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 2;
    fill_all(0);
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct itimerval beat = {{every / 1000, every % 1000 * 1000}, {every / 1000, every % 1000 * 1000}};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &beat, NULL);
    for (; done % pages || now() < end; done++) {
        unsigned long page = done % pages;
        wrong += !is_right(page, times(page));
        fill(page, times(page) + 1);
    }
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 0}}, NULL);
    reap(0);
    if (wrong)
        printf("beats: %d times wrong\n", (int)wrong);
    else
        puts("beats: all well");
    return wrong != 0;
}
