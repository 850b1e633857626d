"""A wall clock that is wrong in some processes, for Python and for foreign code in them alike.

A small library in C stands before the system's, and asks an environment variable how wrong the clock is. No
clock of the machine is touched, and the monotonic clock of a process stays right.
"""

import shutil
import subprocess

CLOCK = "FEDLAP_TEST_CLOCK"  # two numbers of hours, and the seconds after which the other one is in force
SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

typedef int (*Clock)(clockid_t, struct timespec *);

static int read_clock(clockid_t id, struct timespec *now) {
    static Clock real;
    if (!real) real = (Clock)dlsym(RTLD_NEXT, "clock_gettime");
    return real(id, now);
}

static long find_skew(void) {
    double first, second, period;
    struct timespec now;
    const char *text = getenv("FEDLAP_TEST_CLOCK");
    if (!text || sscanf(text, "%lf %lf %lf", &first, &second, &period) != 3) return 0;
    read_clock(CLOCK_MONOTONIC, &now);
    long part = (long)((now.tv_sec + 1e-9 * now.tv_nsec) / period);
    return (long)(3600 * (part % 2 ? second : first));
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int failed = read_clock(id, now);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += find_skew();
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *to) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (to) *to = found.tv_sec;
    return found.tv_sec;
}
"""


def find_compiler():
    """Return the path of a C compiler, or None."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build_clock(folder):
    """Compile the library; return the command that runs another one with it."""
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(SOURCE)
    words = [find_compiler(), "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    return ["env", f"LD_PRELOAD={library}"]
