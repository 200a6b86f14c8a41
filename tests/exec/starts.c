/* Starts a program in the way that the first argument names: `starts HOW FILE`. Whatever starts runs in a
 * child, unless HOW says otherwise; at the end the child's status, or the error, is printed. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static const char *how, *file;
static char *argv_[] = {"name", "a", "b", NULL};
static char *none[] = {NULL};
static char *own[] = {"X=1", NULL};
static char *own_preload[] = {"LD_PRELOAD=libm.so.6", "X=2", NULL};
static char *own_empty[] = {"LD_PRELOAD=", NULL};
static char *many[5001];

static int is(const char *what) { return !strcmp(how, what); }

/* Makes the call that `how` names; comes back only when it fails. */
static void call(void) {
    if (is("execve")) execve(file, argv_, own);
    if (is("execve-null")) execve(file, argv_, NULL);
    if (is("execve-none")) execve(file, argv_, none);
    if (is("execve-preload")) execve(file, argv_, own_preload);
    if (is("execve-empty-preload")) execve(file, argv_, own_empty);
    if (is("execve-many")) execve(file, argv_, many);
    if (is("execv")) execv(file, argv_);
    if (is("execvp")) execvp(file, argv_);
    if (is("execvpe")) execvpe(file, argv_, own);
    if (is("execl")) execl(file, "name", "a", "b", NULL);
    if (is("execl-0")) execl(file, "name", NULL);
    if (is("execl-many")) execl(file, "name", "1", "2", "3", "4", "5", "6", "7", "8", "9", NULL);
    if (is("execle")) execle(file, "name", "a", "b", NULL, own);
    if (is("execle-many")) execle(file, "name", "1", "2", "3", "4", "5", "6", "7", NULL, own);
    if (is("execlp")) execlp(file, "name", "a", "b", NULL);
    if (is("fexecve")) fexecve(open(file, O_RDONLY), argv_, own);
    if (is("fexecve-path")) fexecve(open(file, O_PATH | O_CLOEXEC), argv_, own);
    if (is("execveat")) execveat(AT_FDCWD, file, argv_, own, 0);
    if (is("execveat-empty")) execveat(open(file, O_PATH), "", argv_, own, AT_EMPTY_PATH);
    if (is("execveat-dir")) {
        char dir[4096];
        strcpy(dir, file);
        char *slash = strrchr(dir, '/');
        *slash = 0;
        execveat(open(dir, O_PATH), slash + 1, argv_, own, 0);
    }
}

static void *in_thread(void *nothing) {
    call();
    printf("error %d\n", errno);
    return nothing;
}

static void on_signal(int number) {
    (void)number;
    call();
    _exit(errno);
}

static void tell(int status) {
    if (WIFSIGNALED(status)) printf("signal %d\n", WTERMSIG(status));
    else if (WEXITSTATUS(status)) printf("status %d\n", WEXITSTATUS(status));
}

int main(int argc, char **argv) {
    how = argv[1];
    file = argc > 2 ? argv[2] : NULL;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 0; i < 5000; i++) asprintf(&many[i], i == 2500 ? "X=%d" : "N%d=value", i);
    int status = 0;
    if (is("system")) {
        status = system(file);
        printf("%s %d\n", WIFSIGNALED(status) ? "signal" : "status",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        return 0;
    }
    if (is("system-null")) return printf("%d\n", system(NULL)), 0;
    if (is("system-cleared")) return clearenv(), setenv("X", "3", 1), system(file);
    if (is("popen-read")) {
        FILE *f = popen(file, "r");
        char line[4096];
        while (fgets(line, sizeof line, f)) printf("read %s", line);
        return tell(pclose(f)), 0;
    }
    if (is("popen-write")) {
        FILE *f = popen(file, "w");
        fprintf(f, "written\n");
        return tell(pclose(f)), 0;
    }
    if (is("popen-mode")) {
        FILE *f = popen(file, "x");
        return printf("%d %d\n", f == NULL, errno == EINVAL), 0;
    }
    if (!strncmp(how, "spawn", 5)) {
        pid_t child;
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_addclose(&actions, 0);
        int error = 0;
        int times = is("spawn-often") ? 300 : 1;
        for (int i = 0; i < times && !error; i++) {
            if (is("spawn")) error = posix_spawn(&child, file, NULL, NULL, argv_, own);
            if (is("spawn-actions")) error = posix_spawn(&child, file, &actions, NULL, argv_, environ);
            if (is("spawn-none")) error = posix_spawn(&child, file, NULL, NULL, argv_, none);
            if (is("spawn-many") || is("spawn-often"))
                error = posix_spawn(&child, file, NULL, NULL, argv_, many);
            if (is("spawnp")) error = posix_spawnp(&child, file, NULL, NULL, argv_, own);
            if (!error) waitpid(child, &status, 0);
        }
        if (error) printf("error %d\n", error);
        tell(status);
    } else if (!strncmp(how, "self-", 5)) {
        how += 5;
        call();
        printf("error %d\n", errno);
    } else if (!strncmp(how, "thread-", 7)) {
        how += 7;
        pthread_t thread;
        pthread_create(&thread, NULL, in_thread, NULL);
        pthread_join(thread, NULL);
    } else if (!strncmp(how, "signal-", 7)) {
        how += 7;
        static char stack[16384];
        stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
        sigaltstack(&other, NULL);
        struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
        sigaction(SIGUSR1, &action, NULL);
        raise(SIGUSR1);
    } else if (!strncmp(how, "vfork-", 6)) {
        /* Half of the memory that is written before has been evicted by now. */
        how += 6;
        size_t words = 16 << 20;
        unsigned long *memory = malloc(words * 8);
        for (size_t i = 0; i < words; i++) memory[i] = i / 7;
        for (int times = 0; times < 200; times++) {
            pid_t child = vfork();
            if (!child) {
                call();
                _exit(errno);
            }
            waitpid(child, &status, 0);
        }
        for (size_t i = 0; i < words; i++)
            if (memory[i] != i / 7) return printf("word %zu is lost\n", i), 1;
        tell(status);
    } else {
        pid_t child = fork();
        if (!child) {
            call();
            printf("error %d\n", errno);
            _exit(0);
        }
        waitpid(child, &status, 0);
        tell(status);
    }
    return 0;
}
