"""The other S3 clients, each used as its documentation says is fast, with the same requests in flight."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import boto3
import obstore
import s3fs
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

from benchmarks.common import CONCURRENCY, REQUEST
from wstore.fsspec import WStoreFileSystem
from wstore.stores.base import MiB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fsspec import AbstractFileSystem

    Ranges = Sequence[tuple[int, int]]


class Boto3:
    """boto3: `get_object` in 8 threads; `upload_fileobj` in pieces. Connections are kept."""

    name = "boto3"

    def __init__(self, bucket: str, key: str) -> None:
        self._place = {"Bucket": bucket, "Key": key}
        self._client = boto3.client("s3", config=Config(max_pool_connections=2 * CONCURRENCY))
        self._pool = ThreadPoolExecutor(CONCURRENCY)

    def read(self, ranges: Ranges) -> list[memoryview]:
        return list(self._pool.map(self._read_one, ranges))

    def _read_one(self, span: tuple[int, int]) -> memoryview:
        offset, length = span
        asked = f"bytes={offset}-{offset + length - 1}"
        return memoryview(self._client.get_object(**self._place, Range=asked)["Body"].read())

    def write(self, data: memoryview) -> None:
        transfer = TransferConfig(
            multipart_threshold=REQUEST, multipart_chunksize=REQUEST, max_concurrency=CONCURRENCY
        )
        self._client.upload_fileobj(io.BytesIO(data), *self._place.values(), Config=transfer)


class Boto3Objects:
    """boto3: whole objects by `get_object` in 8 threads."""

    name = "boto3"

    def __init__(self, urls: Sequence[str]) -> None:
        self._places = [url.removeprefix("s3://").split("/", 1) for url in urls]
        self._client = boto3.client("s3", config=Config(max_pool_connections=CONCURRENCY))
        self._pool = ThreadPoolExecutor(CONCURRENCY)

    def read(self) -> list[bytes]:
        return list(self._pool.map(self._read_one, self._places))

    def _read_one(self, place: Sequence[str]) -> bytes:
        bucket, key = place
        found: bytes = self._client.get_object(Bucket=bucket, Key=key)["Body"].read()
        return found


class S3fs:
    """s3fs: `cat_ranges` and `pipe_file`, both parallel in its own event loop."""

    name = "s3fs"

    def __init__(self, bucket: str, key: str) -> None:
        self._path = f"{bucket}/{key}"
        self._files = s3fs.S3FileSystem(use_listings_cache=False, max_concurrency=CONCURRENCY)

    def read(self, ranges: Ranges) -> list[memoryview]:
        starts = [offset for offset, _ in ranges]
        ends = [offset + length for offset, length in ranges]
        paths = [self._path] * len(ranges)
        found = self._files.cat_ranges(paths, starts, ends, batch_size=CONCURRENCY)
        return [memoryview(data) for data in found]

    def write(self, data: memoryview) -> None:
        self._files.pipe_file(
            self._path, bytes(data), chunksize=REQUEST, max_concurrency=CONCURRENCY
        )

    def stream(self, data: memoryview) -> None:
        with self._files.open(self._path, "wb", block_size=REQUEST) as file:
            for start in range(0, len(data), MiB):
                file.write(data[start : start + MiB])


class WStoreFsspec:
    """wstore by the same calls as s3fs: its fsspec file system, without tuning."""

    name = "wstore fsspec"

    def __init__(self, bucket: str, key: str) -> None:
        self._path = f"s3://{bucket}/{key}"
        self._files: AbstractFileSystem = WStoreFileSystem()

    def read(self, ranges: Ranges) -> list[memoryview]:
        starts = [offset for offset, _ in ranges]
        ends = [offset + length for offset, length in ranges]
        paths = [self._path] * len(ranges)
        found = self._files.cat_ranges(paths, starts, ends, on_error="raise")
        return [memoryview(data) for data in found if isinstance(data, bytes)]

    def write(self, data: memoryview) -> None:
        self._files.pipe_file(self._path, data)

    def stream(self, data: memoryview) -> None:
        with self._files.open(self._path, "wb") as file:
            for start in range(0, len(data), MiB):
                file.write(data[start : start + MiB])


class Obstore:
    """obstore alone: `get_range` in 8 threads; `put` in pieces."""

    name = "obstore"

    def __init__(self, bucket: str, key: str) -> None:
        self._key = key
        self._store = obstore.store.S3Store(bucket)
        self._pool = ThreadPoolExecutor(CONCURRENCY)

    def read(self, ranges: Ranges) -> list[memoryview]:
        return list(self._pool.map(self._read_one, ranges))

    def _read_one(self, span: tuple[int, int]) -> memoryview:
        return memoryview(obstore.get_range(self._store, self._key, start=span[0], length=span[1]))

    def write(self, data: memoryview) -> None:
        obstore.put(
            self._store,
            self._key,
            data,
            use_multipart=True,
            chunk_size=REQUEST,
            max_concurrency=CONCURRENCY,
        )
