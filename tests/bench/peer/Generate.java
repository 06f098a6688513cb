package bench;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Fills a topic with receipts. The same seed gives the same records in the same order in each partition, in all
 * layouts the same receipts.
 */
final class Generate {
    private static final int JITTER_MS = 2000;
    private static final byte[][] NAMES = {
        bytes("\"environment\":"), bytes("\"metric\":"), bytes("\"value\":"), bytes("\"timestamp\":"),
    };
    private static final byte[] SPACE = bytes(" \n\t ");
    private static final int[] CANONICAL = {0, 1, 2, 3};
    private static final int[][] ORDERS = orders();
    private static final int BAD_KINDS = 8;
    /** Of these kinds only the rule of sql/quality/receipts.sql disapproves; for summaries they are receipts. */
    private static final int PARSED_KINDS = 2;

    private Generate() {}

    private record Made(long valid, long parsed, long bytes) {}

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.ISO_8859_1);
    }

    static void run(Peer.Arguments arguments) throws Exception {
        String topic = arguments.text("topic");
        int partitions = (int) arguments.number("partitions");
        try (Admin admin = Peer.admin(arguments)) {
            Peer.create(admin, topic, partitions, Peer.KEPT);
            int found = Peer.partitions(admin, topic).size();
            if (found != partitions) {
                throw new IllegalStateException(topic + " has " + found + " partitions");
            }
        }
        int threads = (int) Math.min(partitions, arguments.number("threads"));
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        List<Callable<Made>> writers = new ArrayList<>();
        for (int thread = 0; thread < threads; thread++) {
            int mine = thread;
            writers.add(() -> write(arguments, mine, threads));
        }
        long valid = 0;
        long parsed = 0;
        long bytes = 0;
        for (Future<Made> writer : pool.invokeAll(writers)) {
            valid += writer.get().valid();
            parsed += writer.get().parsed();
            bytes += writer.get().bytes();
        }
        pool.shutdown();
        Map<String, Object> figures = new TreeMap<>();
        figures.put("done_ms", System.currentTimeMillis());
        figures.put("start_ms", Peer.startMs());
        figures.put("first_record_ms", Peer.firstRecord);
        figures.put("records", arguments.number("records"));
        figures.put("valid", valid);
        figures.put("parsed", parsed);
        figures.put("bytes", bytes);
        Peer.say(figures);
    }

    private static Made write(Peer.Arguments arguments, int thread, int threads) throws IOException {
        Map<String, Object> settings = new HashMap<>();
        settings.put(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, arguments.text("bootstrap"));
        settings.put(ProducerConfig.COMPRESSION_TYPE_CONFIG, "lz4");
        settings.put(ProducerConfig.LINGER_MS_CONFIG, 20);
        settings.put(ProducerConfig.BATCH_SIZE_CONFIG, Peer.MIB / 2);
        settings.put(ProducerConfig.BUFFER_MEMORY_CONFIG, 64L * Peer.MIB);
        settings.put(ProducerConfig.MAX_REQUEST_SIZE_CONFIG, 4 * Peer.MIB);
        String topic = arguments.text("topic");
        int partitions = (int) arguments.number("partitions");
        long records = arguments.number("records");
        AtomicReference<Exception> failed = new AtomicReference<>();
        long valid = 0;
        long parsed = 0;
        long bytes = 0;
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            Source[] sources = new Source[partitions];
            for (int p = thread; p < partitions; p += threads) {
                sources[p] = new Source(arguments, p, records / partitions + (p < records % partitions ? 1 : 0));
            }
            long most = records / partitions + 1;
            for (long i = 0; i < most && failed.get() == null; i++) {
                for (int p = thread; p < partitions; p += threads) {
                    Source source = sources[p];
                    if (i < source.count) {
                        byte[] value = source.next(i);
                        Peer.seen();
                        producer.send(new ProducerRecord<>(topic, p, source.timestamp, null, value), (done, error) -> {
                            if (error != null) {
                                failed.compareAndSet(null, error);
                            }
                        });
                        bytes += value.length;
                    }
                }
            }
            producer.flush();
            for (int p = thread; p < partitions; p += threads) {
                valid += sources[p].valid;
                parsed += sources[p].parsed;
            }
        }
        if (failed.get() != null) {
            throw new IllegalStateException(failed.get());
        }
        return new Made(valid, parsed, bytes);
    }

    private static int[][] orders() {
        List<int[]> found = new ArrayList<>();
        for (int code = 0; code < 256; code++) {
            int[] order = {code & 3, code >> 2 & 3, code >> 4 & 3, code >> 6};
            if (Arrays.stream(order).distinct().count() == order.length) {
                found.add(order);
            }
        }
        return found.toArray(int[][]::new);
    }

    /** The records of one partition. */
    private static final class Source {
        final long count;
        long timestamp;
        long valid;
        long parsed;

        private final SplittableRandom random;
        private final SplittableRandom looks;
        private final boolean anyLayout;
        private final ReceiptFormat format;
        private final double bad;
        private final long end;
        private final long span;
        private final byte[][] metrics;
        private final byte[] line = new byte[1024];
        private int length;
        private int decimals;

        Source(Peer.Arguments arguments, int partition, long count) {
            this.count = count;
            random = new SplittableRandom(arguments.number("seed") * 1_000_003 + partition);
            looks = new SplittableRandom(arguments.number("seed") * 1_000_003 + partition + 500_000);
            anyLayout = arguments.text("layout").equals("any");
            format = ReceiptFormat.of(arguments);
            bad = Double.parseDouble(arguments.text("bad"));
            end = arguments.number("end");
            span = arguments.number("span");
            metrics = new byte[(int) arguments.number("keys")][];
            for (int key = 0; key < metrics.length; key++) {
                metrics[key] = bytes("\"m" + key / 2 + '"');
            }
        }

        /** The record at a place, of which `timestamp` is then the time; each place is asked for once, in order. */
        byte[] next(long place) throws IOException {
            int key = random.nextInt(metrics.length);
            timestamp = end - span + (long) (span * ((place + 1.0) / count)) - random.nextInt(JITTER_MS);
            double value = Math.exp(4 + random.nextGaussian());
            decimals = 2 + random.nextInt(3);
            boolean isBad = bad > 0 && random.nextDouble() < bad;
            int kind = isBad ? random.nextInt(BAD_KINDS) : -1;
            valid += isBad ? 0 : 1;
            parsed += isBad && kind >= PARSED_KINDS ? 0 : 1;
            length = 0;
            int[] order = anyLayout ? ORDERS[looks.nextInt(ORDERS.length)] : CANONICAL;
            put('{');
            for (int field : order) {
                if (kind == 2 && field == 2) {
                    continue;
                }
                if (length > 1) {
                    put(',');
                }
                space();
                put(NAMES[field]);
                space();
                switch (field) {
                    case 0 -> put(kind == 0 ? EMPTY : kind == 3 ? NULL : key % 2 == 0 ? PROD : TEST);
                    case 1 -> put(kind == 0 ? METRIC_0 : kind == 1 ? WRONG : metrics[key]);
                    case 2 -> {
                        if (kind == 4) {
                            put(TEXT);
                        } else {
                            putNumber(value);
                        }
                    }
                    default -> {
                        if (kind == 5) {
                            put(TEXT);
                        } else {
                            putWhole(timestamp);
                        }
                    }
                }
                space();
            }
            put('}');
            if (kind == 6) {
                length /= 2;
            }
            byte[] json = kind == 7 ? NO_JSON : Arrays.copyOf(line, length);
            Receipts.Receipt receipt = format == null ? null : Receipts.parse(json);
            return receipt == null ? json : format.write(receipt);
        }

        private static final byte[] PROD = bytes("\"prod\"");
        private static final byte[] TEST = bytes("\"test\"");
        private static final byte[] EMPTY = bytes("\"\"");
        private static final byte[] NULL = bytes("null");
        private static final byte[] METRIC_0 = bytes("\"m0\"");
        private static final byte[] WRONG = bytes("\"9 lives\"");
        private static final byte[] TEXT = bytes("\"n/a\"");
        private static final byte[] NO_JSON = bytes("receipt m0 12.34");

        private void put(char c) {
            line[length++] = (byte) c;
        }

        private void put(byte[] text) {
            System.arraycopy(text, 0, line, length, text.length);
            length += text.length;
        }

        private void space() {
            if (anyLayout) {
                for (int left = looks.nextInt(3); left > 0; left--) {
                    line[length++] = SPACE[looks.nextInt(SPACE.length)];
                }
            }
        }

        private void putNumber(double value) {
            long scale = decimals == 2 ? 100 : decimals == 3 ? 1000 : 10_000;
            long scaled = (long) (value * scale);
            putWhole(scaled / scale);
            put('.');
            long rest = scaled % scale;
            for (long digit = scale / 10; digit > 0; digit /= 10) {
                put((char) ('0' + rest / digit % 10));
            }
        }

        private void putWhole(long number) {
            int digits = 1;
            for (long rest = number / 10; rest > 0; rest /= 10) {
                digits++;
            }
            length += digits;
            int place = length;
            do {
                line[--place] = (byte) ('0' + number % 10);
                number /= 10;
            } while (number > 0);
        }
    }
}
