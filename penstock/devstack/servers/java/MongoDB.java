import de.bwaldvogel.mongo.MongoServer;
import de.bwaldvogel.mongo.MongoVersion;
import de.bwaldvogel.mongo.backend.h2.H2Backend;
import de.bwaldvogel.mongo.bson.Document;
import de.bwaldvogel.mongo.wire.message.MongoMessage;
import java.util.Arrays;
import java.util.List;
import org.h2.mvstore.MVStore;

/** Serves MongoDB's protocol on loopback: port, file. What a client was told is written is in the file. */
public class MongoDB {
    static class Version implements MongoVersion {
        public List getVersionArray() {
            return Arrays.asList(new Object[] {Integer.valueOf(5), Integer.valueOf(0), Integer.valueOf(0)});
        }

        public String toVersionString() {
            return "5.0.0";
        }

        // The oldest that pymongo still talks to.
        public int getWireVersion() {
            return 9;
        }
    }

    static class Backend extends H2Backend {
        private final MVStore store;

        Backend(MVStore store) {
            super(store);
            this.store = store;
        }

        public Document handleMessage(MongoMessage message) {
            try {
                return super.handleMessage(message);
            } finally {
                // The store itself writes a second later, which a killed server does not live to see.
                store.commit();
            }
        }
    }

    public static void main(String[] given) throws Exception {
        Backend backend = new Backend(new MVStore.Builder().fileName(given[1]).open());
        backend.version(new Version());
        final MongoServer server = new MongoServer(backend);
        server.bind("127.0.0.1", Integer.parseInt(given[0]));
        Runtime.getRuntime().addShutdownHook(new Thread(new Runnable() {
            public void run() {
                server.shutdownNow();
            }
        }));
        Thread.currentThread().join();
    }
}
