/* Threads that end long after they last touched anything: the kernel notes each end in the thread's
 * own block, which may have left memory by then, and who joins must still be told.
 *
 * A thread waits inside a system call while the main thread goes through a large array, and then
 * ends by another system call, without a look at its own memory in between. Restartable sequences
 * are switched off: with them the kernel looks there itself whenever the thread goes on. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { THREADS = 32, BYTES = 128 << 20, PAGE = 4096 };

static int gate[2];

/* Reads one byte, then ends: nothing but registers in between. */
static void *waits(void *unused) {
    (void)unused;
    register long number __asm__("rax") = SYS_read;
    register long fd __asm__("rdi") = gate[0];
    register long to __asm__("rsi") = 0; /* into nowhere: the call fails with EFAULT once it may go */
    register long n __asm__("rdx") = 1;
    __asm__ volatile("syscall\n\tmov %[end], %%eax\n\txor %%edi, %%edi\n\tsyscall"
                     : "+r"(number), "+r"(fd)
                     : "r"(to), "r"(n), [end] "i"(SYS_exit)
                     : "rcx", "r11", "memory");
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        setenv("GLIBC_TUNABLES", "glibc.pthread.rseq=0", 1);
        execl("/proc/self/exe", argv[0], "go", (char *)NULL);
        return 1;
    }
    pthread_t thread[THREADS];
    uint64_t sum = 0;
    char *array = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (array == MAP_FAILED || pipe(gate))
        return 1;
    for (size_t i = 0; i < BYTES; i += 64)
        *(uint64_t *)(array + i) = i * 0x9e3779b97f4a7c15u >> 40;
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&thread[i], NULL, waits, NULL))
            return 1;
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < BYTES; i += PAGE)
            sum += (unsigned char)array[i];
    close(gate[1]); /* the end of the file: every read returns */
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    printf("%d threads ended, sum %lu\n", THREADS, (unsigned long)sum);
    return 0;
}
