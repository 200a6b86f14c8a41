/* Sweeps over a matrix of doubles, as numpy makes them: sums and updates in order, sums in strides of four pages
 * and along columns. With two threads each has half of the rows. Checksum on stdout, times on stderr.
 *
 *   sweep SIZE THREADS
 */
#include "common.h"
#include <pthread.h>

#define COLUMNS 2048ul /* 16 KiB a row */
#define ROUNDS 2

struct half {
    pthread_t thread;
    double *rows;
    size_t count, first;
    double sum;
};

/* Measurements with two digits after the point: slow waves, and noise. */
static double measured(size_t n) {
    return (double)(n / 512 % 4096) * 0.25 + (double)(mix(n) & 63) * 0.01;
}

static void *sweep(void *argument) {
    struct half *half = argument;
    size_t words = half->count * COLUMNS;
    double *a = half->rows, sum = 0;
    for (size_t i = 0; i < words; i++)
        a[i] = measured(half->first * COLUMNS + i);
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < words; i++) /* a.sum() */
            sum += a[i];
        for (size_t page = 0; page < 4; page++) /* a.flat[page::2048].sum(), and the words beside */
            for (size_t i = page * 512; i < words; i += COLUMNS)
                sum += a[i] + a[i + 1];
        for (size_t column = 7; column < COLUMNS; column += COLUMNS / 4) /* a[:, column].sum() */
            for (size_t row = 0; row < half->count; row++)
                sum += a[row * COLUMNS + column];
        for (size_t i = 0; i < words; i++) /* a *= 0.5 */
            a[i] *= 0.5;
    }
    half->sum = sum;
    return NULL;
}

int main(int argc, char **argv) {
    size_t rows = size_argument(argc, argv, 1) / COLUMNS / sizeof(double);
    size_t threads = argc > 2 && argv[2][0] == '2' ? 2 : 1;
    double *a = map(rows * COLUMNS * sizeof(double), 0), begin = seconds();
    struct half halves[2];
    for (size_t n = 0; n < threads; n++) {
        size_t first = rows * n / threads, next = rows * (n + 1) / threads;
        halves[n] = (struct half){.rows = a + first * COLUMNS, .count = next - first, .first = first};
        if (pthread_create(&halves[n].thread, NULL, sweep, &halves[n]))
            return 2;
    }
    for (size_t n = 0; n < threads; n++) {
        pthread_join(halves[n].thread, NULL);
        printf("%.2f\n", halves[n].sum);
    }
    fprintf(stderr, "sweep %.3f s\n", seconds() - begin);
    return 0;
}
