// Counts the primes up to a limit with a sieve.
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    size_t limit = argc > 1 ? strtoul(argv[1], NULL, 10) : 20000000;
    char *composite = calloc(limit + 1, 1);
    if (composite == NULL) {
        perror("calloc");
        return 1;
    }
    size_t count = 0;
    size_t last = 0;
    for (size_t n = 2; n <= limit; n++) {
        if (composite[n]) {
            continue;
        }
        count++;
        last = n;
        for (size_t multiple = n * n; multiple <= limit; multiple += n) {
            composite[multiple] = 1;
        }
    }
    printf("%zu primes up to %zu, the last is %zu\n", count, limit, last);
    free(composite);
    return 0;
}
