"""An object store's bucket, as an archive uses it: whole objects under new names, lists, deletions.

There are three kinds of errors. `Wait`: the store is down, slow or asks to back off. `ObjectNotFound`: the object does
not exist. `SinkError`: an operator must correct something; the error has the bucket and the key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

import pyarrow as pa
from pyarrow import fs

from penstock.errors import SinkError, Wait
from penstock.object_store.endpoint import AWS, Endpoint

# Seconds until it is asked again.
RETRY_AFTER = 2.0
# Seconds for a connection, and for an answer.
CONNECT_TIMEOUT, REQUEST_TIMEOUT = 3.0, 8.0
MAX_ATTEMPTS = 2
NO_BUCKET = re.compile("NO_SUCH_BUCKET|NoSuchBucket|Bucket '.*' not found")
ACCESS_DENIED = re.compile(
    "ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|INVALID_CLIENT_TOKEN_ID|MISSING_AUTHENTICATION_TOKEN"
    "|UNRECOGNIZED_CLIENT|INVALID_SIGNATURE|HTTP status 40[13]|REQUEST_TIME_TOO_SKEWED|InvalidAccessKeyId"
    "|ExpiredToken|InvalidToken|TokenRefreshRequired"
    # An expired token; the client does not always read the rest of the answer.
    r"|HTTP status 400\) during (Head|Get)"
)
UNAVAILABLE = re.compile(
    "NETWORK_CONNECTION|SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|REQUEST_TIMEOUT|THROTTLING|REQUEST_EXPIRED"
    "|HTTP status (5..|429)|curlCode|Unable to connect|Timeout"
)
# s3proxy writes an object under such a name first, and lists it; if it is killed meanwhile, for ever.
UNFINISHED = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


class ObjectNotFound(SinkError):
    """The object does not exist."""


class ObjectInfo(NamedTuple):
    """An object of a bucket; key relative to the prefix, size in bytes, and when it was written."""

    key: str
    size: int
    changed_at: datetime


class Bucket:
    """Objects below a prefix of a bucket. Connects at the first call."""

    def __init__(self, endpoint: Endpoint, bucket: str, prefix: str = "") -> None:
        self.endpoint, self.bucket, self.prefix = endpoint, bucket, prefix
        self._root = "/".join(filter(None, (bucket, prefix)))
        self._fs = filesystem(endpoint)

    def url(self, key: str) -> str:
        """Returns the object's S3 URL, for messages."""
        return f"s3://{self._root}/{key}"

    def ensure_exists(self) -> None:
        """Checks that the bucket exists; creates it where that is allowed."""
        with self.errors(""):
            exists = self._fs.get_file_info(self.bucket).type == fs.FileType.Directory
        if exists:
            return
        if not self.endpoint.create_buckets:
            raise self._no_bucket()
        with self.errors(""):
            self._fs.create_dir(self.bucket, recursive=False)

    def put(self, key: str, data: bytes) -> None:
        """Writes an object atomically."""
        with self.open_output(key) as out:
            out.write(data)

    @contextmanager
    def open_output(self, key: str) -> Iterator[Any]:
        """Writes an object in parts; after a failure a partial object may exist."""
        with self.errors(key):
            with self._fs.open_output_stream(f"{self._root}/{key}", compression=None) as out:
                yield out

    def get(self, key: str) -> bytes:
        with self.open_input(key) as source:
            return bytes(source.read())

    @contextmanager
    def open_input(self, key: str) -> Iterator[Any]:
        with self.errors(key):
            with self._fs.open_input_file(f"{self._root}/{key}") as source:
                yield source

    def input_stream(self, key: str) -> Any:
        """Opens an object, to be closed by the caller. What is read from it later may raise OSError."""
        with self.errors(key):
            return self._fs.open_input_file(f"{self._root}/{key}")

    def size(self, key: str) -> int | None:
        """The bytes of an object; None if it does not exist."""
        with self.errors(key):
            info = self._fs.get_file_info(f"{self._root}/{key}")
        return info.size if info.type == fs.FileType.File else None

    def list_objects(self, folder: str) -> list[ObjectInfo]:
        """Returns the objects below a folder that are written completely, ordered by key."""
        selector = fs.FileSelector(f"{self._root}/{folder}", allow_not_found=True, recursive=True)
        with self.errors(folder):
            infos = self._fs.get_file_info(selector)
        skip = len(self._root) + 1
        return sorted(
            ObjectInfo(info.path[skip:], info.size, info.mtime or datetime.now(UTC))
            for info in infos
            if info.type == fs.FileType.File and not UNFINISHED.search(info.path)
        )

    def copy(self, key: str, to: str) -> None:
        """Copies an object on the server."""
        with self.errors(key):
            self._fs.copy_file(f"{self._root}/{key}", f"{self._root}/{to}")

    def delete(self, key: str) -> None:
        """Deletes an object if it exists."""
        with suppress(ObjectNotFound), self.errors(key):
            self._fs.delete_file(f"{self._root}/{key}")

    @contextmanager
    def errors(self, key: str) -> Iterator[None]:
        """Raises what a call of the store within the block raises as one of the errors of this module."""
        url = self.url(key)
        try:
            yield
        except pa.ArrowInvalid:
            # Of what an object says, not of the store.
            raise
        except FileNotFoundError as e:
            raise ObjectNotFound(
                "an object does not exist", got=url, hint="restore it from a version or backup of the bucket"
            ) from e
        except OSError as e:
            message = str(e)
            if NO_BUCKET.search(message):
                raise self._no_bucket() from e
            if UNAVAILABLE.search(message):
                raise Wait(f"the object store of {url} does not answer", got=message[:300], seconds=RETRY_AFTER) from e
            if ACCESS_DENIED.search(message):
                raise SinkError(
                    f"the object store refuses the access key for {url}",
                    got=message[:300],
                    hint="check PENSTOCK_S3_ACCESS_KEY and PENSTOCK_S3_SECRET_KEY, which may have expired, the "
                    "region, or the key's rights to list, read, write and delete in the bucket",
                ) from e
            raise SinkError(f"the object store fails at {url}", got=message[:300], hint="see its message") from e

    def _no_bucket(self) -> SinkError:
        return SinkError(
            f"there is no bucket {self.bucket}",
            got=self.url(""),
            hint="make it, or let it be made: PENSTOCK_S3_MAKE_BUCKETS=1",
        )


def parse_endpoint(endpoint: Endpoint) -> SplitResult:
    """Parses the endpoint's URL. SinkError if it is invalid."""
    where = urlsplit(endpoint.url)
    if endpoint.url != AWS and (where.scheme not in ("http", "https") or not where.netloc):
        raise SinkError(
            "this is no endpoint of an object store",
            got=endpoint.url,
            hint="write https://host:port as PENSTOCK_S3_URL or as endpoint_url of its Connection; for AWS itself, "
            "s3:// or no endpoint_url",
        )
    return where


def filesystem(endpoint: Endpoint) -> fs.S3FileSystem:
    """Returns an S3 client. SinkError if the endpoint is invalid."""
    where = parse_endpoint(endpoint)
    if bool(endpoint.access_key) != bool(endpoint.secret_key):
        missing = "PENSTOCK_S3_SECRET_KEY" if endpoint.access_key else "PENSTOCK_S3_ACCESS_KEY"
        raise SinkError(
            "an access key and a secret key of the object store go together",
            got=f"no {missing}",
            hint="set both, or neither where the machine's role has access",
        )
    more: dict[str, Any] = {"allow_delayed_open": True}
    if endpoint.url != AWS:
        more |= {"scheme": where.scheme, "endpoint_override": where.netloc}
    return fs.S3FileSystem(
        access_key=endpoint.access_key or None, secret_key=endpoint.secret_key or None, region=endpoint.region,
        connect_timeout=CONNECT_TIMEOUT, request_timeout=REQUEST_TIMEOUT, background_writes=False,
        allow_bucket_creation=endpoint.create_buckets,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=MAX_ATTEMPTS), **more,
    )  # fmt: skip
