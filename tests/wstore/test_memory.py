"""The memory store: nobody's memory is aliased, and one name is one store."""

from __future__ import annotations

import os
import threading

import pytest

from wstore import errors
from wstore.stores.base import Expect
from wstore.stores.memory import MemoryStore, memory_store

WHOLE = 1 << 40


def test_one_name_is_one_store() -> None:
    memory_store("one").write("k", memoryview(b"x"))
    assert memory_store("one").stat("k").size == 1
    assert memory_store("one") is memory_store("one")
    assert memory_store("one").url == "memory://one"
    with pytest.raises(errors.NotFound, match="memory://two/k"):
        memory_store("two").stat("k")


def test_the_first_use_from_many_threads_makes_one_store() -> None:
    barrier = threading.Barrier(16)
    found: list[MemoryStore] = []

    def look() -> None:
        barrier.wait()
        found.append(memory_store("contended"))

    threads = [threading.Thread(target=look) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert len(set(map(id, found))) == 1


def test_writes_copy_and_reads_are_read_only() -> None:
    store, data = MemoryStore(), bytearray(b"abc")
    store.write("k", memoryview(data))
    upload = store.upload("u")
    upload.put(0, 0, memoryview(data))
    data[:] = b"xyz"
    upload.complete()
    for key in ("k", "u"):
        read = store.read(key, 0, WHOLE)
        assert bytes(read.data) == b"abc"
        assert read.data.readonly
    view = store.read("k", 0, WHOLE).data
    store.write("k", memoryview(b"new"))
    assert bytes(view) == b"abc"


def test_a_swept_upload_cannot_complete() -> None:
    store = MemoryStore()
    upload = store.upload("p/k")
    assert store.sweep("q/", older_than_s=0) == []
    assert store.sweep("p/", older_than_s=3600) == []
    (removed,) = store.sweep("p/", older_than_s=0)
    assert removed.startswith("p/k (")
    with pytest.raises(errors.NotFound):
        upload.complete()
    upload.abort()


def test_a_copy_is_not_the_write_it_copies() -> None:
    store = MemoryStore()
    store.write("a", memoryview(b"x"), expect=Expect.ABSENT, write_id="id")
    store.copy("a", "b")
    assert store.wrote("a", "id")
    assert not store.wrote("b", "id")
    assert not store.wrote("absent", "id")


def test_a_child_forked_under_the_lock_goes_on() -> None:
    store = MemoryStore()
    store.write("k", memoryview(b"x"))
    with store._lock:  # as another thread would hold it
        child = os.fork()
        if child == 0:
            os._exit(store.stat("k").size)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
