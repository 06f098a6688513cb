package penstock;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/**
 * Writes files of checkpoints on a disk, and sets their permissions by a call of the system.
 *
 * Hadoop does that by its native library, which pyspark does not have, and else runs `chmod` three times a file.
 */
public final class LocalCheckpointFileManager extends FileSystemBasedCheckpointFileManager {
    public LocalCheckpointFileManager(Path path, Configuration conf) {
        super(path, withLocalFiles(conf));
    }

    private static Configuration withLocalFiles(Configuration conf) {
        Configuration own = new Configuration(conf);
        own.setClass("fs.file.impl", Local.class, LocalFileSystem.class);
        own.setBoolean("fs.file.impl.disable.cache", true);
        return own;
    }

    /** The local file system with checksums. */
    public static final class Local extends LocalFileSystem {
        public Local() {
            super(new Raw());
        }
    }

    private static final class Raw extends RawLocalFileSystem {
        @Override
        public void setPermission(Path path, FsPermission permission) throws IOException {
            if (permission.getStickyBit()) {
                super.setPermission(path, permission);
                return;
            }
            Files.setPosixFilePermissions(
                pathToFile(path).toPath(), PosixFilePermissions.fromString(permission.toString()));
        }
    }
}
