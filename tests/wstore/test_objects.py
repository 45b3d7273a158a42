"""Azure (on Azurite) and obstore's memory: keys it cannot carry, forks, secrets, uploads, environment."""

from __future__ import annotations

import logging
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
    OutcomeUnknown,
    StoreError,
    WStoreError,
)
from wstore.stores.base import Expect, Multipart
from wstore.stores.objects.azure import EMULATOR_KEY, AzureConfig, open_azure
from wstore.stores.objects.memory import client_of, open_memory
from wstore.stores.objects.store import ObstoreStore, Service
from wstore.stores.registry import bare_store
from wstore.stores.s3.environment import Secret
from wstore.testing import azurite as emulator
from wstore.testing.faults import LostAnswer, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstore.stores.base import Store
    from wstore.testing.azurite import AzureEndpoint
    from wstore.testing.fault_server import FaultServer


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


def test_blocks_that_are_gone_after_a_lost_answer_may_have_been_published(
    fault_server: FaultServer, azure_environment: pytest.MonkeyPatch
) -> None:
    azure_environment.setenv("AZURE_STORAGE_ENDPOINT", fault_server.endpoint.url)
    azure_environment.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    azure_environment.setenv("AZURE_STORAGE_ACCOUNT_KEY", EMULATOR_KEY)
    store = open_azure("abfss", fault_server.bucket)
    multipart = store.feature(Multipart)
    assert multipart is not None
    upload = multipart.upload("folder/key")
    named = f"abfss://{fault_server.bucket}/folder/key"
    fault_server.script(Status(201), key="folder/key")
    fault_server.script(LostAnswer(), key="folder/key")
    fault_server.script(Status(400, "InvalidBlockList"), key="folder/key")
    upload.put(0, 0, memoryview(b"pieces"))
    with pytest.raises(ConnectionFailed) as lost:
        upload.complete()
    assert lost.value.url == named
    with pytest.raises(OutcomeUnknown) as unknown:
        upload.complete()
    assert unknown.value.url == named
    store.close()


def test_blocks_go_with_a_shared_access_signature(
    azurite: AzureEndpoint,
    container: str,
    azure_environment: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
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
    with caplog.at_level(logging.DEBUG, logger="urllib3"):
        path.write_file(iter([b"a" * 3000, b"b"]), piece_size=1000)
    assert emulator.get_blob(azurite, container, "plain") == b"a" * 3000 + b"b"
    logged = [record.getMessage() + repr(record.args) for record in caplog.records]
    assert any("plain?..." in line for line in logged)
    assert not any("sig=" in line for line in logged)
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


@pytest.mark.parametrize(
    "name",
    [
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_STORAGE_TOKEN",
        "AZURE_CLIENT_SECRET",
    ],
)
def test_no_pickle_carries_a_secret(name: str) -> None:
    config = AzureConfig.from_environment({name: "c2VjcmV0\n"})
    assert "c2VjcmV0" not in repr(config)
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(config)


@pytest.mark.parametrize(
    "shown",
    [
        {"AZURE_STORAGE_TOKEN": "secret"},
        {"AZURE_STORAGE_SAS_TOKEN": "sig=secret"},
        {"AZURE_STORAGE_TOKEN": "secret", "AZURE_STORAGE_ACCOUNT_KEY": EMULATOR_KEY},
        {},
    ],
)
def test_what_can_be_read_on_its_way_goes_to_this_machine_or_by_https(
    shown: dict[str, str],
) -> None:
    read = AzureConfig.from_environment
    with pytest.raises(InvalidArgument, match="use https") as caught:
        read({"AZURE_STORAGE_ENDPOINT": "http://storage.example/account", **shown})
    assert "secret" not in str(caught.value)
    for endpoint in ("http://127.0.0.1:10000/account", "https://storage.example"):
        assert read({"AZURE_STORAGE_ENDPOINT": endpoint, **shown}).endpoint == endpoint


def test_what_shows_no_secret_may_go_by_http() -> None:
    for kept in ({"AZURE_SKIP_SIGNATURE": "true"}, {"AZURE_STORAGE_ACCOUNT_KEY": EMULATOR_KEY}):
        AzureConfig.from_environment({"AZURE_STORAGE_ENDPOINT": "http://azurite/account", **kept})


@pytest.mark.parametrize("key", ["secret key", "abcde", "ключ", "c2VjcmV0!"])
def test_a_malformed_account_key_is_named(key: str) -> None:
    with pytest.raises(InvalidArgument, match="AZURE_STORAGE_ACCOUNT_KEY") as caught:
        AzureConfig.from_environment({"AZURE_STORAGE_ACCOUNT_KEY": key})
    assert key not in "".join(traceback.format_exception(caught.value))


def test_a_client_that_does_not_open_is_an_error_of_ours() -> None:
    memory = open_memory("unopened")
    service = Service(
        "az://container",
        memory.capabilities,
        lambda: AzureStore("container", account_name="a", account_key="%secret%"),
        lambda store, key: pytest.fail("no upload was asked for"),
        lambda: None,
    )
    with pytest.raises(StoreError, match="az://container/key") as caught:
        ObstoreStore(service).stat("key")
    assert "%secret%" not in "".join(traceback.format_exception(caught.value))


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
    assert emulated.key == Secret(EMULATOR_KEY)
    plain = read({"AZURE_STORAGE_ACCOUNT_NAME": "weights", "AZURE_STORAGE_ACCESS_KEY": "a2V5"})
    assert (plain.base, plain.key) == ("https://weights.blob.core.windows.net", Secret("a2V5"))
    assert read({"AZURE_CLIENT_ID": "one"}) != read({"AZURE_CLIENT_ID": "two"})
    for bad in ("weights.blob", "ftp://host", "https://key:secret@host"):
        with pytest.raises(InvalidArgument) as caught:
            read({"AZURE_STORAGE_ENDPOINT": bad})
        assert "secret" not in str(caught.value)
    with pytest.raises(InvalidArgument, match="AZURE_STORAGE_ACCOUNT_NAME"):
        open_azure("az", "container")


@pytest.mark.parametrize(
    ("endpoint", "account", "fits"),
    [
        ("https://one.blob.core.windows.net", None, True),
        ("https://one.z01.blob.storage.azure.net", None, True),
        ("http://127.0.0.1:10000/one", None, True),
        ("https://weights.example", "one", True),
        ("https://two.blob.core.windows.net", None, False),
        ("https://two.blob.core.windows.net", "one", False),
        ("http://127.0.0.1:10000/two", "one", False),
        ("https://weights.example", "two", False),
        ("https://weights.example", None, False),
    ],
)
def test_a_url_and_an_endpoint_of_two_accounts_are_refused(
    endpoint: str, account: str | None, fits: bool, azure_environment: pytest.MonkeyPatch
) -> None:
    azure_environment.setenv("AZURE_STORAGE_ENDPOINT", endpoint)
    if account is not None:
        azure_environment.setenv("AZURE_STORAGE_ACCOUNT_NAME", account)
    root = "container@one.dfs.core.windows.net"
    if fits:
        assert open_azure("abfss", root).url == f"abfss://{root}"
        return
    with pytest.raises(InvalidArgument, match="account 'one'") as caught:
        open_azure("abfss", root)
    assert caught.value.url == f"abfss://{root}"


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
