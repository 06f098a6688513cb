package bench;

import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.function.Function;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.TopicConfig;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.RocksDBConfigSetter;
import org.apache.kafka.streams.state.WindowStore;
import org.rocksdb.BlockBasedTableConfig;
import org.rocksdb.Cache;
import org.rocksdb.LRUCache;
import org.rocksdb.Options;
import org.rocksdb.RocksDB;
import org.rocksdb.WriteBufferManager;

/**
 * Kafka Streams beside Penstock: the same jobs over the same topics. `job=quality bootstrap=host:port topic=receipts …`
 *
 * A streaming job ends by itself when all that was in its input at the start is read, counted and committed.
 */
public final class Peer {
    static final int MIB = 1024 * 1024;
    /** Records are as old as their event time, so a retention would remove those of long ago at once. */
    static final Map<String, String> KEPT = Map.of(TopicConfig.RETENTION_MS_CONFIG, "-1");
    static final Map<String, String> COMPACTED = Map.of(TopicConfig.CLEANUP_POLICY_CONFIG, "compact");
    private static final int POLL_MS = 100;

    static volatile long firstRecord;

    /** A topology, and the topics between its stages in the order records pass through them. */
    record Job(Topology topology, List<String> between) {}

    public static void main(String[] given) throws Exception {
        Arguments arguments = new Arguments(given);
        String job = arguments.text("job");
        switch (job) {
            case "generate" -> Generate.run(arguments);
            case "consume" -> Consume.run(arguments);
            case "quality" -> run(arguments, Quality.job(arguments));
            case "summaries" -> run(arguments, Summaries.job(arguments));
            case "summaries2" -> run(arguments, Summaries.twoStages(arguments));
            case "walk-ins" -> run(arguments, WalkIns.job(arguments));
            default -> throw new IllegalArgumentException("there is no job " + job);
        }
    }

    /** Called for each record of the input, so it costs one read of a field. */
    static void seen() {
        if (firstRecord == 0) {
            firstRecord = System.currentTimeMillis();
        }
    }

    static void say(Map<String, Object> figures) {
        System.out.println(figures.entrySet().stream()
            .map(e -> "\"" + e.getKey() + "\": " + e.getValue())
            .collect(Collectors.joining(", ", "{", "}")));
        System.out.flush();
    }

    static long startMs() {
        return ManagementFactory.getRuntimeMXBean().getStartTime();
    }

    static Admin admin(Arguments arguments) {
        return Admin.create(Map.of("bootstrap.servers", arguments.text("bootstrap")));
    }

    static void create(Admin admin, String topic, int partitions, Map<String, String> config) throws Exception {
        try {
            admin.createTopics(Set.of(new NewTopic(topic, partitions, (short) 1).configs(config))).all().get();
        } catch (ExecutionException e) {
            if (!(e.getCause() instanceof TopicExistsException)) {
                throw e;
            }
        }
    }

    static List<TopicPartition> partitions(Admin admin, String topic) throws Exception {
        int count = admin.describeTopics(Set.of(topic)).allTopicNames().get().get(topic).partitions().size();
        return IntStream.range(0, count).mapToObj(p -> new TopicPartition(topic, p)).toList();
    }

    static Map<TopicPartition, Long> offsets(Admin admin, List<TopicPartition> partitions, OffsetSpec spec)
        throws Exception {
        var found = admin.listOffsets(partitions.stream().collect(Collectors.toMap(Function.identity(), p -> spec)));
        Map<TopicPartition, Long> offsets = new HashMap<>();
        for (TopicPartition partition : partitions) {
            offsets.put(partition, found.partitionResult(partition).get().offset());
        }
        return offsets;
    }

    /** A cached window store in RocksDB. */
    static <K, V> Materialized<K, V, WindowStore<Bytes, byte[]>> stored(String name, Serde<K> key, Serde<V> value) {
        return Materialized.<K, V, WindowStore<Bytes, byte[]>>as(name)
            .withKeySerde(key).withValueSerde(value).withCachingEnabled();
    }

    private static void run(Arguments arguments, Job job) throws Exception {
        try (Admin admin = admin(arguments)) {
            List<TopicPartition> input = partitions(admin, arguments.text("topic"));
            Map<TopicPartition, Long> starts = offsets(admin, input, OffsetSpec.earliest());
            Map<TopicPartition, Long> ends = offsets(admin, input, OffsetSpec.latest());
            KafkaStreams streams = new KafkaStreams(job.topology(), settings(arguments));
            streams.setUncaughtExceptionHandler(e -> {
                e.printStackTrace();
                return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
            });
            streams.start();
            Done done = new Done(admin, streams, arguments);
            done.await(ends, starts);
            // Streams flushes what it made before it commits what that was made from. So once a topic's records are
            // committed, all they led to is in the next topic, and its end moves no more.
            for (String topic : job.between()) {
                List<TopicPartition> partitions = partitions(admin, topic);
                done.await(
                    offsets(admin, partitions, OffsetSpec.latest()), offsets(admin, partitions, OffsetSpec.earliest()));
            }
            Map<String, Object> figures = new TreeMap<>();
            figures.put("done_ms", System.currentTimeMillis());
            figures.put("start_ms", startMs());
            figures.put("first_record_ms", firstRecord);
            figures.put("records", sum(ends) - sum(starts));
            figures.put("rejected", Receipts.REJECTED.sum());
            figures.put("late", Receipts.LATE.sum() + streams.metrics().entrySet().stream()
                .filter(m -> m.getKey().name().equals("dropped-records-total"))
                .mapToLong(m -> ((Number) m.getValue().metricValue()).longValue())
                .sum());
            say(figures);
            streams.close(Duration.ofSeconds(30));
        }
    }

    private static long sum(Map<TopicPartition, Long> offsets) {
        return offsets.values().stream().mapToLong(Long::longValue).sum();
    }

    private static Properties settings(Arguments arguments) {
        Properties p = new Properties();
        p.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments.text("app"));
        p.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments.text("bootstrap"));
        p.put(StreamsConfig.STATE_DIR_CONFIG, arguments.text("state"));
        p.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, arguments.text("guarantee"));
        p.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, arguments.text("commit"));
        p.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, arguments.text("threads"));
        p.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        p.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 64 * MIB);
        p.put(StreamsConfig.ROCKSDB_CONFIG_SETTER_CLASS_CONFIG, BoundedRocksDb.class);
        p.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        p.put(StreamsConfig.consumerPrefix(ConsumerConfig.MAX_POLL_RECORDS_CONFIG), 10_000);
        p.put(StreamsConfig.consumerPrefix(ConsumerConfig.MAX_PARTITION_FETCH_BYTES_CONFIG), 4 * MIB);
        p.put(StreamsConfig.producerPrefix(ProducerConfig.COMPRESSION_TYPE_CONFIG), "lz4");
        p.put(StreamsConfig.producerPrefix(ProducerConfig.BATCH_SIZE_CONFIG), MIB / 4);
        p.put(StreamsConfig.producerPrefix(ProducerConfig.MAX_REQUEST_SIZE_CONFIG), 4 * MIB);
        return p;
    }

    /** Waits until the group of the application has committed what was in a topic. */
    private record Done(Admin admin, KafkaStreams streams, Arguments arguments) {
        void await(Map<TopicPartition, Long> ends, Map<TopicPartition, Long> starts) throws Exception {
            Map<TopicPartition, Long> left = new HashMap<>(ends);
            left.keySet().removeIf(p -> ends.get(p).equals(starts.get(p)));
            while (true) {
                Map<TopicPartition, OffsetAndMetadata> committed = admin.listConsumerGroupOffsets(arguments.text("app"))
                    .partitionsToOffsetAndMetadata().get();
                left.keySet().removeIf(
                    p -> committed.get(p) != null && isPast(p, committed.get(p).offset(), ends.get(p)));
                if (left.isEmpty()) {
                    return;
                }
                if (streams.state().hasNotStarted() || streams.state().isRunningOrRebalancing()) {
                    Thread.sleep(POLL_MS);
                } else {
                    throw new IllegalStateException("the streams are " + streams.state());
                }
            }
        }

        /** With transactions a log ends in their marks, which a group commits only with its next records. */
        private boolean isPast(TopicPartition partition, long committed, long end) {
            return committed >= end
                || arguments.text("guarantee").equals("exactly_once_v2")
                && end - committed <= 64
                && !hasRecords(partition, committed, end);
        }

        private boolean hasRecords(TopicPartition partition, long from, long end) {
            Map<String, Object> settings = Map.of("bootstrap.servers", arguments.text("bootstrap"));
            try (var probe = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
                probe.assign(List.of(partition));
                probe.seek(partition, from);
                while (probe.position(partition) < end) {
                    if (!probe.poll(Duration.ofMillis(POLL_MS)).isEmpty()) {
                        return true;
                    }
                }
                return false;
            }
        }
    }

    /** One bound for all stores together: by default each segment of each store takes up to 100 MB. */
    public static final class BoundedRocksDb implements RocksDBConfigSetter {
        static {
            RocksDB.loadLibrary();
        }

        private static final Cache CACHE = new LRUCache(128L * MIB);
        private static final WriteBufferManager BUFFERS = new WriteBufferManager(96L * MIB, CACHE);

        @Override
        public void setConfig(String store, Options options, Map<String, Object> settings) {
            BlockBasedTableConfig table = (BlockBasedTableConfig) options.tableFormatConfig();
            table.setBlockCache(CACHE);
            table.setCacheIndexAndFilterBlocks(true);
            options.setTableFormatConfig(table);
            options.setWriteBufferManager(BUFFERS);
        }

        @Override
        public void close(String store, Options options) {}
    }

    /** `name=value` words of the command line. */
    static final class Arguments {
        private final Map<String, String> values = new HashMap<>();

        Arguments(String[] words) {
            for (String word : words) {
                int at = word.indexOf('=');
                if (at < 0) {
                    throw new IllegalArgumentException("not of the form name=value: " + word);
                }
                values.put(word.substring(0, at), word.substring(at + 1));
            }
        }

        String text(String name) {
            String value = values.get(name);
            if (value == null) {
                throw new IllegalArgumentException("the argument " + name + " is missing");
            }
            return value;
        }

        long number(String name) {
            return Long.parseLong(text(name));
        }

        boolean flag(String name) {
            return Boolean.parseBoolean(text(name));
        }
    }
}
