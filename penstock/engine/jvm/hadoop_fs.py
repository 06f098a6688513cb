"""Files on any file system that Hadoop supports, through Spark's JVM."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JJavaError

from penstock.engine.checkpoint.s3a import is_object_store, store_below

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Concurrent requests to an object store.
PARALLEL_COPIES = 8
# A file of a folder that is copied whole and is being deleted: it names the copy, and is deleted last.
COPIED = "penstock-copied"


class HadoopFolder:
    """A folder on any file system that Hadoop supports. On a disk each file has a checksum file of Hadoop.

    In an object store a file is there whole or not at all, and nothing is renamed: that would be a copy.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark._jvm
        self.path = path
        self._spark = spark
        self._jvm = jvm
        # Of a dotted name, Py4J asks Java for each part, which searches all jars for a class `org`.
        self._path_of = getattr(jvm, "org.apache.hadoop.fs.Path")
        self._gateway: Any = spark.sparkContext._gateway
        self._folder = self._path_of(path)
        self._fs = self._folder.getFileSystem(spark._jsc.hadoopConfiguration())
        self._far = is_object_store(path)

    @property
    def uri(self) -> str:
        """The folder with its scheme, as Spark names it."""
        return str(self._fs.makeQualified(self._folder).toString())

    def exists(self) -> bool:
        return bool(self._fs.exists(self._folder))

    def move(self, to: str) -> None:
        """Move the folder to a sibling path, and replace what is there.

        An object store copies it, then deletes it. A move that was interrupted must be repeated; it never replaces a
        whole copy by what was not deleted yet.
        """
        if self._far and self.read_verified(COPIED) == to:
            self._delete_copied()
            return
        target = self._path_of(to)
        self._fs.delete(target, True)
        if self._far:
            self._copy(to)
            self.replace(COPIED, to)
            self._delete_copied()
        elif not self._fs.rename(self._folder, target):
            raise OSError(f"{self._folder.toString()} could not be moved to {to}")

    def _delete_copied(self) -> None:
        for name in self.list_names("."):
            if name != COPIED:
                self.delete_folder(name)
        self.remove()

    def _copy(self, to: str) -> None:
        # Hadoop's client would also copy empty folders, which have no ETag in a store that keeps objects in files.
        parent, _, name = self.path.rpartition("/")
        store, target = store_below(parent), to.rpartition("/")[2]
        keys = [info.key for info in store.list_objects(name)]
        with ThreadPoolExecutor(PARALLEL_COPIES, "copies") as pool:
            for _ in pool.map(lambda key: store.copy(key, f"{target}{key.removeprefix(name)}"), keys):
                pass

    def list_names(self, name: str) -> list[str]:
        """Names in a folder below this one; none if it does not exist."""
        if not self._fs.exists(self._at(name)):
            return []
        return [status.getPath().getName() for status in self._fs.listStatus(self._at(name))]

    def list_files(self, name: str) -> list[str]:
        """All files in a folder below this one, recursively; none if it does not exist."""
        if not self._fs.exists(self._at(name)):
            return []
        root, files, names = self._fs.makeQualified(self._folder).toUri(), self._fs.listFiles(self._at(name), True), []
        while files.hasNext():
            names.append(str(root.relativize(files.next().getPath().toUri()).getPath()))
        return names

    def list_numbers(self, name: str) -> list[int]:
        """Numbers of the entries of a log in a folder below this one, sorted."""
        return sorted(int(entry) for entry in self.list_names(name) if entry.isdecimal())

    def read(self, name: str) -> str:
        stream = self._fs.open(self._at(name))
        try:
            return str(getattr(self._jvm, "org.apache.commons.io.IOUtils").toString(stream, "UTF-8"))
        finally:
            stream.close()

    def read_verified(self, name: str) -> str | None:
        """The text of a file; empty if its checksum does not match, None if there is no file."""
        if not self._far and not self._fs.exists(self._at(name)):
            return None
        try:
            return self.read(name)
        except Py4JJavaError as e:
            if self._far and is_instance_of(self._gateway, e.java_exception, "java.io.FileNotFoundException"):
                return None
            # A store that does not answer does not say that a file is damaged.
            if self._far or not is_instance_of(self._gateway, e.java_exception, "java.io.IOException"):
                raise
            return ""

    def remove(self) -> None:
        """Delete the folder and its content."""
        self._fs.delete(self._folder, True)

    def delete(self, name: str) -> None:
        self._fs.delete(self._at(name), False)

    def delete_folder(self, name: str) -> None:
        """Delete a folder below this one and its content."""
        self._fs.delete(self._at(name), True)

    def replace(self, name: str, text: str) -> None:
        """Write a file atomically, and replace an older one."""
        self._write(name, text, overwrite=True)

    def create(self, name: str, text: str) -> bool:
        """Write a file atomically, as Spark writes entries of its logs, unless it exists; whether it did not exist."""
        try:
            self._write(name, text, overwrite=False)
        except Py4JJavaError as e:
            if is_instance_of(self._gateway, e.java_exception, "org.apache.hadoop.fs.FileAlreadyExistsException"):
                return False
            raise
        return True

    def _write(self, name: str, text: str, *, overwrite: bool) -> None:
        out = self._manager.createAtomic(self._at(name), overwrite)
        try:
            out.write(text.encode())
            out.close()
        finally:
            out.cancel()

    @cached_property
    def _manager(self) -> Any:
        session: Any = self._spark._jsparkSession
        package = "org.apache.spark.sql.execution.streaming.checkpointing"
        return getattr(self._jvm, f"{package}.CheckpointFileManager").create(
            self._folder, session.sessionState().newHadoopConf()
        )

    def _at(self, name: str) -> Any:
        return self._path_of(self._folder, name)
