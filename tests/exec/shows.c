/* What a program that was started finds of Octavo: "managed" or "plain", whether our object is mapped;
 * then "visible" if our names stand in the environment by any way to read it; then LD_PRELOAD, if set,
 * the variable X, and the arguments. With `-e N` for its first argument it exits with N. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

static int has(const char *file, const char *what) {
    static char text[1 << 22];
    FILE *f = fopen(file, "r");
    size_t n = fread(text, 1, sizeof text, f);
    fclose(f);
    return memmem(text, n, what, strlen(what)) != NULL;
}

static int is_ours(char **list) {
    for (; *list; list++)
        if (strstr(*list, "liboctavo") || strstr(*list, "OCTAVO_RUN")) return 1;
    return 0;
}

int main(int argc, char **argv, char **envp) {
    printf(has("/proc/self/maps", "liboctavo_preload.so") ? "managed" : "plain");
    if (is_ours(envp) || is_ours(environ) || has("/proc/self/environ", "OCTAVO_RUN") ||
        has("/proc/self/environ", "liboctavo"))
        printf(" visible");
    if (getenv("LD_PRELOAD")) printf(" LD_PRELOAD=%s", getenv("LD_PRELOAD"));
    if (getenv("X")) printf(" X=%s", getenv("X"));
    for (int i = 1; i < argc; i++) printf(" %s", argv[i]);
    printf("\n");
    fflush(stdout);
    return argc > 2 && !strcmp(argv[1], "-e") ? atoi(argv[2]) : 0;
}
