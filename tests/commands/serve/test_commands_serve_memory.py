"""A serving process first makes its threads share one memory arena."""

import platform
import subprocess
import sys

import pytest

ARENAS = """
import ctypes, threading
from proxy.commands.serve.memory import share_one_arena

share_one_arena()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
together = threading.Barrier(5)

def allocate():
    libc.malloc(1000)
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads:
    thread.start()
together.wait()
for thread in threads:
    thread.join()
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has arenas")
@pytest.mark.parametrize(
    ("env", "arenas"),
    [
        ({}, 1),
        ({"MALLOC_ARENA_MAX": "2"}, 2),
        ({"GLIBC_TUNABLES": "glibc.malloc.tcache_count=7:glibc.malloc.arena_max=2"}, 2),
        ({"GLIBC_TUNABLES": "glibc.malloc.tcache_count=7"}, 1),
    ],
)
def test_threads_share_an_arena_unless_the_operator_says_otherwise(env: dict[str, str], arenas: int) -> None:
    """All threads share one arena unless the operator sets a number of arenas."""
    said = subprocess.run([sys.executable, "-c", ARENAS], env=env, capture_output=True, text=True, check=True)
    assert said.stdout.count("<heap nr=") == arenas


@pytest.mark.parametrize("module", ["_ctypes", "ctypes"])
def test_a_python_without_ctypes_starts_all_the_same(module: str) -> None:
    """If ctypes is missing, ``share_one_arena`` does nothing and raises nothing."""
    asked = f"import sys; sys.modules[{module!r}] = None\n"
    asked += "from proxy.commands.serve.memory import share_one_arena; share_one_arena()"
    subprocess.run([sys.executable, "-c", asked], env={}, check=True)


def test_a_python_that_is_linked_statically_starts_all_the_same() -> None:
    """If the C library cannot be opened by name, ``share_one_arena`` raises nothing."""
    asked = """
import ctypes
from proxy.commands.serve.memory import share_one_arena

def refuse(name):
    raise OSError("Dynamic loading not supported")

ctypes.CDLL = refuse
share_one_arena()
"""
    subprocess.run([sys.executable, "-c", asked], env={}, check=True)
