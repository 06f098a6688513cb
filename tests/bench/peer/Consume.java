package bench;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** The ceiling: reads a topic to its end and counts records and bytes, nothing else. */
final class Consume {
    private Consume() {}

    private record Read(long records, long bytes) {}

    static void run(Peer.Arguments arguments) throws Exception {
        Map<TopicPartition, Long> ends;
        List<TopicPartition> partitions;
        try (Admin admin = Peer.admin(arguments)) {
            partitions = Peer.partitions(admin, arguments.text("topic"));
            ends = Peer.offsets(admin, partitions, OffsetSpec.latest());
        }
        int threads = (int) arguments.number("threads");
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        List<Callable<Read>> readers = new ArrayList<>();
        for (int thread = 0; thread < threads; thread++) {
            int mine = thread;
            List<TopicPartition> own = partitions.stream().filter(p -> p.partition() % threads == mine).toList();
            readers.add(() -> read(arguments, own, ends));
        }
        long records = 0;
        long bytes = 0;
        for (Future<Read> reader : pool.invokeAll(readers)) {
            records += reader.get().records();
            bytes += reader.get().bytes();
        }
        pool.shutdown();
        Map<String, Object> figures = new TreeMap<>();
        figures.put("done_ms", System.currentTimeMillis());
        figures.put("start_ms", Peer.startMs());
        figures.put("first_record_ms", Peer.firstRecord);
        figures.put("records", records);
        figures.put("bytes", bytes);
        Peer.say(figures);
    }

    private static Read read(Peer.Arguments arguments, List<TopicPartition> own, Map<TopicPartition, Long> ends) {
        Map<String, Object> settings = Map.of(
            ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, arguments.text("bootstrap"),
            ConsumerConfig.MAX_POLL_RECORDS_CONFIG, 10_000,
            ConsumerConfig.MAX_PARTITION_FETCH_BYTES_CONFIG, 4 * Peer.MIB);
        long records = 0;
        long bytes = 0;
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(own);
            consumer.seekToBeginning(own);
            List<TopicPartition> left = new ArrayList<>(own);
            left.removeIf(p -> consumer.position(p) >= ends.get(p));
            while (!left.isEmpty()) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                    Peer.seen();
                    records++;
                    bytes += record.value() == null ? 0 : record.value().length;
                }
                left.removeIf(p -> consumer.position(p) >= ends.get(p));
            }
        }
        return new Read(records, bytes);
    }
}
