/* Forks in a signal's handler, also in the middle of another fork.
 *
 *     alarms MIB SECONDS
 *
 * A handler forks some milliseconds after it last did, while main forks all the time. A child looks at some pages and
 * writes some; it and its parent look whether they can be interrupted as before. Prints "alarms: all well". */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "pages.h"

static volatile sig_atomic_t wrong, alarms;

static int is_open(int in_handler) {
    sigset_t blocked;
    sigprocmask(SIG_SETMASK, NULL, &blocked);
    for (int number = 1; number < SIGRTMAX; number++)
        if (sigismember(&blocked, number) > 0 && !(in_handler && number == SIGALRM))
            return 0;
    return 1;
}

static void child(int in_handler) {
    unsigned long state = getpid();
    if (!is_open(in_handler))
        _exit(3);
    for (int i = 0; i < 100; i++) {
        unsigned long page = draw(&state) % pages;
        if (!is_right(page, 0))
            _exit(2);
        if (page % 4 == 0)
            fill(page, 0);
    }
    _exit(0);
}

static void fork_one(int in_handler) {
    int status = -1;
    pid_t pid = fork();
    if (pid == 0)
        child(in_handler);
    wrong += !is_open(in_handler) || waitpid(pid, &status, 0) != pid || status != 0;
}

/* Not at an interval: nothing but the handler would run where a fork takes as long. */
static void rouse(void) {
    static unsigned long state;
    struct itimerval once = {{0, 0}, {0, 500 + draw(&state) % 4000}};
    setitimer(ITIMER_REAL, &once, NULL);
}

static void on_alarm(int number) {
    int error = errno;
    (void)number;
    alarms++;
    fork_one(1);
    rouse();
    errno = error;
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 64;
    pages = strtoul(argv[1], NULL, 10) << 8;
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill_all(0);
    struct sigaction act = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &act, NULL);
    rouse();
    for (time_t end = time(NULL) + atoi(argv[2]); time(NULL) < end;)
        fork_one(0);
    printf("alarms: %s\n", wrong || !alarms ? "not well" : "all well");
    return wrong != 0;
}
