"""Azure (on Azurite) and obstore's memory: keys it cannot carry, forks, secrets, uploads, environment."""

from __future__ import annotations

import os
import pickle
import traceback
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import obstore
import pytest
from obstore.store import AzureStore

from wstore import StoragePath
from wstore.errors import (
    AccessDenied,
    AlreadyExists,
    ConnectionFailed,
    ForkedProcess,
    InvalidArgument,
    InvalidPath,
    NotFound,
    StoreError,
    WStoreError,
)
from wstore.stores.base import Expect, Multipart
from wstore.stores.objects.azure import EMULATOR_KEY, AzureConfig, open_azure
from wstore.stores.objects.memory import client_of, open_memory
from wstore.stores.registry import bare_store
from wstore.testing import azurite as emulator

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstore.stores.base import Store
    from wstore.testing.azurite import AzureEndpoint


@pytest.fixture
def azure_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Without any AZURE_* variable."""
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    return monkeypatch


@pytest.fixture
def container(azurite: AzureEndpoint, azure_environment: pytest.MonkeyPatch) -> str:
    """A container of its own; the environment leads to it."""
    for name, value in azurite.environment().items():
        azure_environment.setenv(name, value)
    name = f"objects-{os.urandom(6).hex()}"
    emulator.create_container(azurite, name)
    return name


# Keys


@pytest.mark.parametrize(
    "key",
    ["a//b", "/a", "a/", "a/./b", "../a", "a/..", "tab\t", "bell\x07", "\udc80", "", "a" * 2000],
)
def test_a_key_that_cannot_be_carried_is_refused_by_name(key: str) -> None:
    store = open_memory("refused-keys")
    for call in (
        partial(store.stat, key),
        partial(store.read, key, 0, 1),
        partial(store.write, key, memoryview(b"x")),
    ):
        if key:
            with pytest.raises(InvalidPath, match="memory://refused-keys"):
                call()
    multipart = store.feature(Multipart)
    assert multipart is not None
    with pytest.raises(InvalidPath):
        multipart.upload(key)


def test_a_foreign_key_that_cannot_be_carried_fails_the_listing(
    azurite: AzureEndpoint, container: str
) -> None:
    path = StoragePath(f"az://{container}/folder")
    (path / "good").write_bytes(b"x")
    assert [child.name for child in path.iterdir()] == ["good"]
    emulator.put_blob(azurite, container, "folder/odd//name", b"x")
    with pytest.raises(InvalidPath, match="obstore cannot carry"):
        list(path.store.list("folder/", recursive=True))


# Paths, as users type them


def test_azure_paths_work_whole(container: str) -> None:
    for url in (
        f"az://{container}/run/a b",
        f"abfss://{container}/run/a b",
        f"abfs://{container}@devstoreaccount1.dfs.core.windows.net/run/a b",
    ):
        path = StoragePath(url)
        path.write_bytes(b"0123456789")
        assert path.read_range(3, 4) == b"3456"
        assert path.stat().size == 10
        assert path.parent.is_dir()
        assert not path.with_name("none").exists()
        assert [found.name for found in path.parent.glob("a*")] == ["a b"]
        copy = path.copy(path.with_name("copy"))
        assert copy.size == 10
        path.remove()
        assert pickle.loads(pickle.dumps(path)) == path
        with pytest.raises(AlreadyExists):
            path.with_name("copy").write_file(b"other", if_absent=True)
        path.with_name("copy").remove()
        path.store.close()


def test_a_large_object_goes_in_blocks(azurite: AzureEndpoint, container: str) -> None:
    data = os.urandom(5 << 20)
    path = StoragePath(f"az://{container}/large object +%")
    path.write_file(iter([data]), piece_size=1 << 20, concurrency=3)
    assert emulator.get_blob(azurite, container, path.key) == data
    assert path.read_bytes() == data
    path.store.close()


def test_a_missing_container_says_so(container: str) -> None:
    gone = StoragePath(f"az://{container}-gone/key")
    with pytest.raises(NotFound, match="container"):
        gone.write_bytes(b"x")
    with pytest.raises(NotFound, match="container"):
        list(gone.store.list("", recursive=True))
    assert not gone.exists()


def test_an_upload_whose_blocks_are_gone_publishes_nothing(container: str) -> None:
    store = open_azure("az", container)
    multipart = store.feature(Multipart)
    assert multipart is not None
    upload = multipart.upload("key")
    upload.put(0, 0, memoryview(b"pieces"))
    other = multipart.upload("key")
    other.put(0, 0, memoryview(b"between"))
    other.complete()
    with pytest.raises(StoreError, match="pieces are gone"):
        upload.complete()
    assert bytes(store.read("key", 0, 100).data) == b"between"
    store.close()


def test_blocks_go_with_a_shared_access_signature(
    azurite: AzureEndpoint, container: str, azure_environment: pytest.MonkeyPatch
) -> None:
    store = open_azure("az", container)
    store.write("plain", memoryview(b"x"))
    client = AzureStore(
        container,
        account_name=emulator.ACCOUNT,
        account_key=emulator.KEY,
        endpoint=azurite.url,
        client_options={"allow_http": True},
    )
    signed = obstore.sign(client, "PUT", "plain", timedelta(hours=1)).partition("?")[2]
    azure_environment.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    azure_environment.setenv("AZURE_STORAGE_SAS_TOKEN", signed)
    path = StoragePath(f"az://{container}/plain")
    path.write_file(iter([b"a" * 3000, b"b"]), piece_size=1000)
    assert emulator.get_blob(azurite, container, "plain") == b"a" * 3000 + b"b"
    store.close()
    path.store.close()


# Secrets, environment


def test_no_error_or_repr_holds_a_secret(
    container: str, azure_environment: pytest.MonkeyPatch
) -> None:
    secret = "c2VjcmV0LXNlY3JldC1zZWNyZXQ="
    azure_environment.setenv("AZURE_STORAGE_ACCOUNT_KEY", secret)
    path = StoragePath(f"az://{container}/key")
    store = bare_store(path.location)
    multipart = store.feature(Multipart)
    assert multipart is not None
    calls: list[Callable[[], object]] = [
        partial(store.stat, "key"),
        partial(store.read, "key", 0, 5),
        partial(store.write, "key", memoryview(b"x"), expect=Expect.ABSENT),
        lambda: multipart.upload("key").put(0, 0, memoryview(b"x")),
    ]
    for call in calls:
        with pytest.raises(AccessDenied) as caught:
            call()
        text = "".join(traceback.format_exception(caught.value))
        assert secret not in text
        assert secret not in repr(pickle.dumps(caught.value))
    for shown in (repr(store), repr(path), repr(AzureConfig.from_environment())):
        assert secret not in shown
    store.close()


def test_a_service_that_is_not_there_is_worth_another_try(
    azure_environment: pytest.MonkeyPatch,
) -> None:
    azure_environment.setenv("AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:9/account")
    azure_environment.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    azure_environment.setenv("AZURE_STORAGE_ACCOUNT_KEY", EMULATOR_KEY)
    store = open_azure("az", "container")
    with pytest.raises(ConnectionFailed) as caught:
        store.stat("key")
    assert caught.value.retryable
    store.close()


def test_the_environment_says_which_account(azure_environment: pytest.MonkeyPatch) -> None:
    read = AzureConfig.from_environment
    emulated = read({"AZURE_STORAGE_USE_EMULATOR": "true"})
    assert emulated.base == "http://127.0.0.1:10000/devstoreaccount1"
    assert emulated.key == EMULATOR_KEY
    plain = read({"AZURE_STORAGE_ACCOUNT_NAME": "weights", "AZURE_STORAGE_ACCESS_KEY": "a2V5"})
    assert (plain.base, plain.key) == ("https://weights.blob.core.windows.net", "a2V5")
    assert read({"AZURE_CLIENT_ID": "one"}) != read({"AZURE_CLIENT_ID": "two"})
    for bad in ("weights.blob", "ftp://host", "https://key:secret@host"):
        with pytest.raises(InvalidArgument) as caught:
            read({"AZURE_STORAGE_ENDPOINT": bad})
        assert "secret" not in str(caught.value)
    with pytest.raises(InvalidArgument, match="AZURE_STORAGE_ACCOUNT_NAME"):
        open_azure("az", "container")


def test_obstore_serves_what_it_says() -> None:
    assert StoragePath("memory://by-obstore/x", client="obstore").scheme == "memory"
    for url in ("s3://bucket/x", "gs://bucket/x", "/local"):
        path = "file:///local" if url == "/local" else url
        with pytest.raises(InvalidPath, match="az, http"):
            StoragePath(path, client="obstore")


# Forks


def in_child(call: Callable[[], object]) -> str:
    """The name of what `call` raises in a forked child, "" where it returns."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            call()
            name = ""
        except WStoreError as error:
            name = type(error).__name__
        os.write(writer, name.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        name = pipe.read().decode()
    os.waitpid(child, 0)
    return name


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_is_told_at_once() -> None:
    store: Store = open_memory("forked")
    store.write("key", memoryview(b"x"))
    expected = ForkedProcess.__name__
    assert in_child(partial(store.stat, "key")) == expected
    assert in_child(partial(store.write, "key", memoryview(b"y"))) == expected
    assert in_child(partial(open_memory("other").stat, "key")) == expected
    assert in_child(lambda: list(store.list("", recursive=True))) == expected
    assert bytes(store.read("key", 0, 5).data) == b"x"


def test_objects_of_one_name_are_shared() -> None:
    open_memory("shared").write("key", memoryview(b"x"))
    assert bytes(obstore.get(client_of("shared"), "key").bytes()) == b"x"
    assert StoragePath("memory://shared/key", client="obstore").read_bytes() == b"x"
    assert not StoragePath("memory://shared/key").exists()
