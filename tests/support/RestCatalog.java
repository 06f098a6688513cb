import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.net.URI;
import java.util.Map;
import org.apache.iceberg.exceptions.NotFoundException;
import org.apache.iceberg.inmemory.InMemoryInputFile;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.OutputFile;
import org.apache.iceberg.io.PositionOutputStream;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.core.checksums.RequestChecksumCalculation;
import software.amazon.awssdk.core.sync.RequestBody;
import software.amazon.awssdk.http.urlconnection.UrlConnectionHttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.s3.S3Client;
import software.amazon.awssdk.services.s3.model.NoSuchKeyException;

/** Serves Iceberg's REST protocol on loopback: port, URL of a database, and an object store's URL, region and key. */
public class RestCatalog {
    /** Metadata files in an object store; Iceberg's own S3FileIO needs the clients of AWS's other services too. */
    static class Store implements FileIO {
        private final S3Client client;

        Store(String url, String region, String key, String secret) {
            client = S3Client.builder()
                    .endpointOverride(URI.create(url))
                    .forcePathStyle(true)
                    .region(Region.of(region))
                    .requestChecksumCalculation(RequestChecksumCalculation.WHEN_REQUIRED)
                    .serviceConfiguration(c -> c.chunkedEncodingEnabled(false))
                    .credentialsProvider(StaticCredentialsProvider.create(AwsBasicCredentials.create(key, secret)))
                    .httpClientBuilder(UrlConnectionHttpClient.builder())
                    .build();
        }

        private static String bucket(String location) {
            return URI.create(location).getHost();
        }

        private static String key(String location) {
            return URI.create(location).getPath().substring(1);
        }

        @Override
        public InputFile newInputFile(String location) {
            try {
                byte[] found = client.getObjectAsBytes(r -> r.bucket(bucket(location)).key(key(location))).asByteArray();
                return new InMemoryInputFile(location, found);
            } catch (NoSuchKeyException e) {
                throw new NotFoundException(e, "Location does not exist: %s", location);
            }
        }

        @Override
        public OutputFile newOutputFile(String location) {
            return new OutputFile() {
                @Override
                public PositionOutputStream create() {
                    return createOrOverwrite();
                }

                @Override
                public PositionOutputStream createOrOverwrite() {
                    ByteArrayOutputStream written = new ByteArrayOutputStream();
                    return new PositionOutputStream() {
                        @Override
                        public long getPos() {
                            return written.size();
                        }

                        @Override
                        public void write(int one) {
                            written.write(one);
                        }

                        @Override
                        public void close() throws IOException {
                            client.putObject(
                                    r -> r.bucket(bucket(location)).key(key(location)),
                                    RequestBody.fromBytes(written.toByteArray()));
                        }
                    };
                }

                @Override
                public String location() {
                    return location;
                }

                @Override
                public InputFile toInputFile() {
                    return newInputFile(location);
                }
            };
        }

        @Override
        public void deleteFile(String location) {
            client.deleteObject(r -> r.bucket(bucket(location)).key(key(location)));
        }
    }

    public static void main(String[] given) throws Exception {
        JdbcCatalog catalog =
                new JdbcCatalog(some -> new Store(given[2], given[3], given[4], given[5]), null, true);
        catalog.initialize(
                "penstock", Map.of("uri", given[1], "warehouse", "s3://lake/warehouse", "jdbc.schema-version", "V1"));
        Server server = new Server();
        ServerConnector connector = new ServerConnector(server);
        connector.setHost("127.0.0.1");
        connector.setPort(Integer.parseInt(given[0]));
        server.addConnector(connector);
        ServletContextHandler context = new ServletContextHandler();
        context.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
        server.setHandler(context);
        server.start();
        server.join();
    }
}
