"""Processes whose clock of the day is wrong: a shim between them and the C library.

Only the time of day moves, by `CHASQUI_SKEW_S` seconds; the monotonic clock stays the machine's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

DAY_S = 86_400
SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long skew_s(void) {
  const char *text = getenv("CHASQUI_SKEW_S");
  return text ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int answer = real(clock, now);
  int is_time_of_day = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
  if (answer == 0 && is_time_of_day) now->tv_sec += skew_s();
  return answer;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  static int (*real)(struct timeval *, void *);
  if (!real) real = dlsym(RTLD_NEXT, "gettimeofday");
  int answer = real(now, zone);
  if (answer == 0 && now) now->tv_sec += skew_s();
  return answer;
}

time_t time(time_t *out) {
  static time_t (*real)(time_t *);
  if (!real) real = dlsym(RTLD_NEXT, "time");
  time_t now = real(NULL) + skew_s();
  if (out) *out = now;
  return now;
}

/* The kernel knows nothing of the skew, so a deadline by the wrong clock is put right again. */
int sem_timedwait(sem_t *restrict lock, const struct timespec *restrict until) {
  static int (*real)(sem_t *, const struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "sem_timedwait");
  struct timespec right = *until;
  right.tv_sec -= skew_s();
  return real(lock, &right);
}
"""


def skewed_environment(folder: Path, skew_s: int) -> dict[str, str]:
    """What to add to a process's environment; the shim is built in the folder once."""
    return {"LD_PRELOAD": str(_shim(folder)), "CHASQUI_SKEW_S": str(skew_s)}


def _shim(folder: Path) -> Path:
    library = folder / f"clock_skew_{sha256(SOURCE.encode()).hexdigest()[:16]}.so"
    if library.exists():
        return library
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("a C compiler builds the wrong clock, and there is none here")
    # Several test processes may build at once; whoever is last replaces the same bytes.
    draft = library.with_suffix(f".{os.getpid()}")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-xc", "-", "-o", str(draft), "-ldl"],
        input=SOURCE.encode(), check=True, capture_output=True,
    )  # fmt: skip
    return draft.replace(library)
