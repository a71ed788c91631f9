/* Loaded before other libraries, this makes the wall clock of one process wrong by the nanoseconds that stand in a file.
 *
 * The file is named by WALL_CLOCK_FILE and holds one 64-bit number in the machine's byte order; it is mapped, so a
 * change counts at once. Only the wall clock is wrong. Deadlines that the process computed by it are put right before
 * the kernel gets them, so that a wait of a second is one; a wait does not end early when the clock jumps.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S 1000000000LL
/* No machine is up for as long, and no wall clock is that early: it tells whose deadline it is. */
#define WALL_CLOCK_S_MIN 500000000LL

static volatile const int64_t *wrong_by_ns;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void open_file(void) {
    const char *path = getenv("WALL_CLOCK_FILE");
    int descriptor = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return;
    void *mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (mapped != MAP_FAILED)
        wrong_by_ns = mapped;
}

static int is_wall_clock(clockid_t clock) {
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
}

static struct timespec moved(const struct timespec *time, int sign) {
    int64_t by_ns = wrong_by_ns == NULL ? 0 : sign * *wrong_by_ns;
    int64_t s = time->tv_sec + by_ns / NS_PER_S;
    int64_t ns = time->tv_nsec + by_ns % NS_PER_S;
    if (ns < 0) {
        ns += NS_PER_S;
        s -= 1;
    } else if (ns >= NS_PER_S) {
        ns -= NS_PER_S;
        s += 1;
    }
    struct timespec result = {.tv_sec = s, .tv_nsec = ns};
    return result;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (real_clock_gettime == NULL)
        real_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real_clock_gettime == NULL ? (int)syscall(SYS_clock_gettime, clock, time) : real_clock_gettime(clock, time);
    if (failed == 0 && is_wall_clock(clock))
        *time = moved(time, 1);
    return failed;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    (void)zone;
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) == 0) {
        time->tv_sec = now.tv_sec;
        time->tv_usec = now.tv_nsec / 1000;
    }
    return 0;
}

time_t time(time_t *result) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME_COARSE, &now) != 0)
        return (time_t)-1;
    if (result != NULL)
        *result = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *result, int base) {
    return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, result) == 0 ? base : 0;
}

static struct timespec right_deadline(const struct timespec *deadline) {
    return deadline->tv_sec > WALL_CLOCK_S_MIN ? moved(deadline, -1) : *deadline;
}

/* Of the functions that exist in an old and in a newer version, programs on x86-64 want the newer one. */
static void *find_real(const char *name) {
    void *found = dlvsym(RTLD_NEXT, name, "GLIBC_2.3.2");
    return found != NULL ? found : dlsym(RTLD_NEXT, name);
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict deadline) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (real == NULL)
        real = find_real("pthread_cond_timedwait");
    struct timespec right = right_deadline(deadline);
    return real(cond, mutex, &right);
}

int pthread_cond_clockwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex, clockid_t clock,
                           const struct timespec *restrict deadline) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
    if (real == NULL)
        real = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
    struct timespec right = is_wall_clock(clock) ? right_deadline(deadline) : *deadline;
    return real(cond, mutex, clock, &right);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict deadline) {
    static int (*real)(pthread_mutex_t *, const struct timespec *);
    if (real == NULL)
        real = dlsym(RTLD_NEXT, "pthread_mutex_timedlock");
    struct timespec right = right_deadline(deadline);
    return real(mutex, &right);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict deadline) {
    static int (*real)(sem_t *, const struct timespec *);
    if (real == NULL)
        real = dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec right = right_deadline(deadline);
    return real(semaphore, &right);
}

int sem_clockwait(sem_t *restrict semaphore, clockid_t clock, const struct timespec *restrict deadline) {
    static int (*real)(sem_t *, clockid_t, const struct timespec *);
    if (real == NULL)
        real = dlsym(RTLD_NEXT, "sem_clockwait");
    struct timespec right = is_wall_clock(clock) ? right_deadline(deadline) : *deadline;
    return real(semaphore, clock, &right);
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *left) {
    static int (*real)(clockid_t, int, const struct timespec *, struct timespec *);
    if (real == NULL)
        real = dlsym(RTLD_NEXT, "clock_nanosleep");
    struct timespec right = is_wall_clock(clock) && (flags & TIMER_ABSTIME) ? right_deadline(time) : *time;
    return real(clock, flags, &right, left);
}
