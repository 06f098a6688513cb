"""Files of Iceberg tables in the object store of `penstock.object_store`: with its access, time limits and errors."""

from __future__ import annotations

from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.io import FileIO, InputFile, OutputFile

from penstock.errors import SinkError
from penstock.object_store import endpoint
from penstock.object_store.bucket import Bucket

NAME = f"{__name__}.BucketIO"
"""As the property `py-io-impl` of a catalog has it."""


def open_bucket(bucket: str, prefix: str = "") -> Bucket:
    """A folder of a bucket in the configured object store.

    Raises:
        SinkError: No object store is configured.
    """
    s3 = endpoint.find_endpoint()
    if s3 is None:
        raise SinkError(
            "no object store is configured",
            got=f"bucket {bucket}",
            hint="set PENSTOCK_S3_URL, or start a store on this machine with `penstock up`",
        )
    return Bucket(s3, bucket, prefix)


class BucketIO(FileIO):
    """Files named `s3://bucket/key`."""

    def __init__(self, properties: dict[str, Any] | None = None) -> None:
        super().__init__(properties or {})
        self._buckets: dict[str, Bucket] = {}

    def new_input(self, location: str) -> StoredInput:
        return StoredInput(location, *self._place(location))

    def new_output(self, location: str) -> StoredOutput:
        return StoredOutput(location, *self._place(location))

    def delete(self, location: str | InputFile | OutputFile) -> None:
        bucket, key = self._place(location if isinstance(location, str) else location.location)
        bucket.delete(key)

    def _place(self, location: str) -> tuple[Bucket, str]:
        where = urlsplit(location)
        if where.scheme not in ("s3", "s3a") or not where.netloc:
            raise SinkError(
                "a file of an Iceberg table is not in an object store",
                got=location,
                hint="only tables of the configured object store are read and written: s3://bucket/...",
            )
        if where.netloc not in self._buckets:
            self._buckets[where.netloc] = open_bucket(where.netloc)
        return self._buckets[where.netloc], where.path.lstrip("/")


class StoredInput(InputFile):
    """An object that is read."""

    def __init__(self, location: str, bucket: Bucket, key: str) -> None:
        super().__init__(location)
        self._bucket, self._key = bucket, key

    def __len__(self) -> int:
        return self._bucket.size(self._key) or 0

    def exists(self) -> bool:
        return self._bucket.size(self._key) is not None

    def open(self, seekable: bool = True) -> Any:  # noqa: ARG002
        if "/metadata/" in f"/{self._key}":
            # As a whole: what is read from a stream later would raise the errors of Arrow.
            return BytesIO(self._bucket.get(self._key))
        return self._bucket.input_stream(self._key)


class StoredOutput(OutputFile):
    """An object that is written; its names are never used twice."""

    def __init__(self, location: str, bucket: Bucket, key: str) -> None:
        super().__init__(location)
        self._bucket, self._key, self._input = bucket, key, StoredInput(location, bucket, key)

    def __len__(self) -> int:
        return len(self._input)

    def exists(self) -> bool:
        return self._input.exists()

    def to_input_file(self) -> StoredInput:
        return self._input

    def create(self, overwrite: bool = False) -> Any:  # noqa: ARG002
        return WholeObject(self._bucket, self._key)


class WholeObject:
    """Keeps what is written, and puts it as one object when it is closed."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket, self._key, self._parts = bucket, key, bytearray()
        self.closed = False

    def write(self, data: bytes) -> int:
        self._parts += data
        return len(data)

    def tell(self) -> int:
        return len(self._parts)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._bucket.put(self._key, bytes(self._parts))

    def __enter__(self) -> WholeObject:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        self.closed = True
