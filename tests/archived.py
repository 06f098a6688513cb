"""An object store of one's own: the embedded one, started in a folder; and a way to it that breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

from penstock.archive.place import ACCESS_KEY, Endpoint
from penstock.archive.store import Object, Store
from penstock.errors import Wait
from penstock.local.s3 import S3
from penstock.machine.process import free_port

T = TypeVar("T")
Cut = Literal["before", "after"]


@contextmanager
def server(folder: Path) -> Iterator[S3]:
    with S3(folder, port=free_port()) as part:
        yield part


def where(part: S3) -> Endpoint:
    """How a client reaches it."""
    return Endpoint(part.url, "us-east-1", ACCESS_KEY, part.secret_key, True)


class Failing(Store):
    """A store that fails for good from the n-th call on: before it does what was asked, or after."""

    def __init__(self, endpoint: Endpoint, bucket: str, prefix: str, at: int, effect: Cut) -> None:
        super().__init__(endpoint, bucket, prefix)
        self.calls, self._at, self._effect = 0, at, effect

    def put(self, key: str, data: bytes) -> None:
        self._call(lambda: Store.put(self, key, data))

    def get(self, key: str) -> bytes:
        return self._call(lambda: Store.get(self, key))

    def objects(self, folder: str) -> list[Object]:
        return self._call(lambda: Store.objects(self, folder))

    def delete(self, key: str) -> None:
        self._call(lambda: Store.delete(self, key))

    @contextmanager
    def stream(self, key: str) -> Iterator[Any]:
        # What is cut off in the middle may leave a part of itself.
        if self.inside:
            with super().stream(key) as out:
                yield out
            return
        self._call(lambda: None)
        with super().stream(key) as out:
            yield out

    inside = False

    def _call(self, what: Callable[[], T]) -> T:
        self.calls += 1
        if self.calls > self._at or (self.calls == self._at and self._effect == "before"):
            raise Wait("cut off", seconds=0.0)
        self.inside = True
        try:
            done = what()
        finally:
            self.inside = False
        if self.calls == self._at:
            raise Wait("cut off", seconds=0.0)
        return done
