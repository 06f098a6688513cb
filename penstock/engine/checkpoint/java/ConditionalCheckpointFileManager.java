package penstock;

import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.AbstractFileContextBasedCheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;

/**
 * Writes files of checkpoints into an object store: each is there whole or not at all, and one that may not be written
 * over is a conditional write, so that of two writers the store refuses the second.
 *
 * Spark's own manager for such stores, of spark-hadoop-cloud, looks whether a file is there and then writes over it.
 */
public final class ConditionalCheckpointFileManager extends AbstractFileContextBasedCheckpointFileManager {
    private final FileSystem files;

    public ConditionalCheckpointFileManager(Path path, Configuration conf) throws IOException {
        super(path, conf);
        files = path.getFileSystem(conf);
    }

    @Override
    public CheckpointFileManager.CancellableFSDataOutputStream createAtomic(Path path, boolean overwrite) {
        try {
            FSDataOutputStreamBuilder<?, ?> file = files.createFile(path).overwrite(overwrite).recursive();
            if (overwrite) {
                // Nothing is asked before.
                file.opt("fs.s3a.create.performance", true);
            } else {
                file.must("fs.option.create.conditional.overwrite", true);
            }
            return new Whole(path, file.build(), overwrite);
        } catch (IOException e) {
            throw Whole.<RuntimeException>as(e);
        }
    }

    private final class Whole extends CheckpointFileManager.CancellableFSDataOutputStream {
        private final Path path;
        private final FSDataOutputStream out;
        private final boolean overwrite;
        private boolean ended;

        Whole(Path path, FSDataOutputStream out, boolean overwrite) {
            super(out);
            this.path = path;
            this.out = out;
            this.overwrite = overwrite;
        }

        @Override
        public synchronized void close() throws IOException {
            if (ended) {
                return;
            }
            ended = true;
            try {
                out.close();
            } catch (IOException e) {
                if (!overwrite && exists(path)) {
                    throw (IOException) new FileAlreadyExistsException(path + " is there already").initCause(e);
                }
                throw e;
            }
        }

        @Override
        public synchronized void cancel() {
            if (ended) {
                return;
            }
            ended = true;
            try {
                out.abort();
                out.close();
            } catch (IOException e) {
                // Nothing of it is to be seen, and why it is given up is said by whoever does.
            }
        }

        /** An exception as whoever calls from Scala takes it, undeclared. */
        @SuppressWarnings("unchecked")
        static <E extends Throwable> E as(Throwable e) throws E {
            throw (E) e;
        }
    }
}
