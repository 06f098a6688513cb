package bench;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.Record;

/**
 * Valid and invalid records per second of their own time.
 *
 * Grouping by status would send every record through another topic, to two of its partitions. Instead each partition
 * is counted where it is read, under one key that the deserializer gives to all records, so no repartition is needed.
 * Only these counts, a few for each second and commit, go on to be added up. They are absolute and kept by partition,
 * so one that comes twice changes nothing.
 */
final class Quality {
    private static final Duration SECOND = Duration.ofSeconds(1);
    private static final Duration GRACE = Duration.ofHours(1);
    /** What the first stage let in is in time, also if one partition is read long before another. */
    private static final Duration LATER = Duration.ofDays(1);
    private static final byte[] NOTHING = {0};

    private Quality() {}

    static Peer.Job job(Peer.Arguments arguments) throws Exception {
        String topic = arguments.text("topic");
        String output = arguments.text("output");
        try (Admin admin = Peer.admin(arguments)) {
            Peer.create(admin, output, 2, Peer.COMPACTED);
        }
        Serde<Boolean> one = Serdes.serdeFrom((t, key) -> NOTHING, (t, bytes) -> true);
        Serde<Boolean> judged = Serdes.serdeFrom((t, v) -> null, Receipts.judge(arguments.flag("guarded")));
        Serde<long[]> longs = Serdes.serdeFrom(Quality::written, Quality::read);
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(topic, Consumed.with(one, judged))
            .groupByKey(Grouped.with(one, judged))
            .windowedBy(TimeWindows.ofSizeAndGrace(SECOND, GRACE))
            .aggregate(() -> new long[2], Quality::count, Peer.stored("seconds", one, longs))
            .toStream()
            .process(Part::new)
            .repartition(Repartitioned.<Long, long[]>as("parts")
                .withKeySerde(Serdes.Long()).withValueSerde(longs).withNumberOfPartitions(2))
            .groupByKey(Grouped.with(Serdes.Long(), longs))
            .windowedBy(TimeWindows.ofSizeAndGrace(SECOND, LATER))
            .aggregate(() -> new long[0], Quality::place, Peer.stored("sums", Serdes.Long(), longs))
            .toStream()
            .flatMap((window, parts) -> counts(topic, window.key(), parts))
            .to(output, Produced.with(Serdes.String(), Serdes.String()));
        return new Peer.Job(builder.build(), List.of(arguments.text("app") + "-parts-repartition"));
    }

    private static long[] count(boolean key, boolean valid, long[] counts) {
        counts[valid ? 0 : 1]++;
        return counts;
    }

    /** Puts {partition, valid, invalid} into its place, unless what is there counted more records. */
    private static long[] place(long window, long[] part, long[] parts) {
        int at = 2 * (int) part[0];
        long[] placed = Arrays.copyOf(parts, Math.max(parts.length, at + 2));
        if (part[1] + part[2] >= placed[at] + placed[at + 1]) {
            placed[at] = part[1];
            placed[at + 1] = part[2];
        }
        return placed;
    }

    private static List<KeyValue<String, String>> counts(String topic, long window, long[] parts) {
        List<KeyValue<String, String>> found = new ArrayList<>(2);
        String[] statuses = {"valid", "invalid"};
        for (int status = 0; status < 2; status++) {
            long count = 0;
            for (int at = status; at < parts.length; at += 2) {
                count += parts[at];
            }
            if (count > 0) {
                String key = String.format(
                    "{\"topic\":\"%s\",\"window\":%d,\"status\":\"%s\"}", topic, window, statuses[status]);
                found.add(KeyValue.pair(key, Long.toString(count)));
            }
        }
        return found;
    }

    private static byte[] written(String topic, long[] numbers) {
        if (numbers == null) {
            return null;
        }
        ByteBuffer buffer = ByteBuffer.allocate(numbers.length * Long.BYTES);
        buffer.asLongBuffer().put(numbers);
        return buffer.array();
    }

    private static long[] read(String topic, byte[] bytes) {
        if (bytes == null) {
            return null;
        }
        long[] numbers = new long[bytes.length / Long.BYTES];
        ByteBuffer.wrap(bytes).asLongBuffer().get(numbers);
        return numbers;
    }

    /** A partition's counts of a second, under that second. */
    private static final class Part extends ContextualProcessor<Windowed<Boolean>, long[], Long, long[]> {
        @Override
        public void process(Record<Windowed<Boolean>, long[]> counted) {
            long[] counts = counted.value();
            context().forward(counted
                .withKey(counted.key().window().start())
                .withValue(new long[] {context().taskId().partition(), counts[0], counts[1]}));
        }
    }
}
