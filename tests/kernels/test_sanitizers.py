"""The kernel of a CPU under AddressSanitizer and UndefinedBehaviorSanitizer: tests and random fits."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedlap.kernels import cpp_compiler

HERE = Path(__file__).parent
SUPPORT = HERE.parent / "support"
FLAGS = "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -D_GLIBCXX_ASSERTIONS"
PROBE = "int main(int n, char **) { int a[2] = {}; return a[n - 1]; }"

pytestmark = pytest.mark.slow


def _find(compiler, name):
    """Return the path of a compiler's library, if it has one."""
    command = [*compiler, f"-print-file-name={name}"]
    path = Path(subprocess.run(command, capture_output=True, text=True).stdout.strip())
    return str(path) if path.is_absolute() and path.exists() else None


@pytest.fixture(scope="module")
def sanitizer_environment(tmp_path_factory):
    """The environment of a process whose library is compiled with sanitizers."""
    folder, compiler = tmp_path_factory.mktemp("sanitized"), cpp_compiler._find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler")
    (folder / "probe.cpp").write_text(PROBE)
    built = subprocess.run(
        [*compiler, *FLAGS.split(), "-o", folder / "probe", folder / "probe.cpp"], capture_output=True
    )
    # With the library of C++ loaded first, too, its exceptions are found by AddressSanitizer.
    runtime = [_find(compiler, name) for name in ("libasan.so", "libstdc++.so")]
    if built.returncode or None in runtime:
        pytest.skip("this compiler has no sanitizers")
    return {
        **os.environ,
        "XDG_CACHE_HOME": str(folder),
        cpp_compiler.EXTRA_FLAGS_VARIABLE: FLAGS,
        "LD_PRELOAD": ":".join(runtime),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "OMP_NUM_THREADS": "1",
    }


def run(environment, *words):
    """Run a process in which the sanitizers find nothing; return its output."""
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-6000:]
    for found in ("Sanitizer", "runtime error"):
        assert found not in output, output[-6000:]
    return done.stdout


def test_sanitizers_are_on(sanitizer_environment):
    """A write behind a model is found: without this the other tests could not fail."""
    script = SUPPORT / "out_of_bounds.py"
    done = subprocess.run([sys.executable, script], env=sanitizer_environment, capture_output=True, text=True)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr, done.stdout + done.stderr


def test_random_valid_fits_are_clean(sanitizer_environment):
    printed = run(sanitizer_environment, SUPPORT / "random_fits.py", "500")
    assert int(printed.split("rounds by the kernel:")[1]) > 700


def test_the_kernel_s_own_tests_are_clean(sanitizer_environment):
    words = ("-p", "no:cacheprovider", "-m", "not slow", "-k", "not once and not without and not memory")
    printed = run(
        sanitizer_environment,
        "-m",
        "pytest",
        HERE / "test_cpp_library.py",
        HERE / "test_cpp_checks.py",
        *words,
    )
    assert "skipped" not in printed


def test_invalid_fits_are_clean(sanitizer_environment):
    run(sanitizer_environment, SUPPORT / "invalid_fits.py", "2")
