package bench;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.Record;

/** Receipts in windows of their own time: at once, or in two stages through a topic of bundles. */
final class Summaries {
    private static final Duration BUNDLE = Duration.ofMinutes(5);
    private static final Duration SUMMARY = Duration.ofMinutes(10);
    private static final Duration GRACE = Duration.ofHours(1);
    /**
     * The grace of what comes after. Lateness is judged once, by the time of the partition a receipt is read from: in
     * the topic by metric all partitions mix, and where one is read an hour of its time before another, a topic read
     * from its beginning would lose a large part of the other.
     */
    private static final Duration LATER = Duration.ofDays(1);
    private static final Serde<Figures> FIGURES = Serdes.serdeFrom(
        (topic, figures) -> figures == null ? null : figures.bytes(),
        (topic, bytes) -> bytes == null ? null : new Figures(bytes));
    private static final Serde<Bundle> BUNDLES = Serdes.serdeFrom(
        (topic, bundle) -> bundle == null ? null : bundle.bytes(),
        (topic, bytes) -> bytes == null ? null : new Bundle(bytes));
    private static final Serde<Bundle[]> SLOTS = Serdes.serdeFrom(Summaries::written, Summaries::read);

    private Summaries() {}

    /** The figures of five minutes behind their start: absolute, so of two of one window the fuller one counts. */
    private record Bundle(byte[] bytes) {
        static Bundle of(long window, Figures figures) {
            byte[] held = figures.bytes();
            return new Bundle(ByteBuffer.allocate(Long.BYTES + held.length).putLong(window).put(held).array());
        }

        long window() {
            return ByteBuffer.wrap(bytes).getLong();
        }

        /** Of the figures, whose first number it is. */
        long count() {
            return ByteBuffer.wrap(bytes).getLong(Long.BYTES);
        }

        Figures figures() {
            return new Figures(Arrays.copyOfRange(bytes, Long.BYTES, bytes.length));
        }
    }

    static Peer.Job job(Peer.Arguments arguments) throws Exception {
        StreamsBuilder builder = new StreamsBuilder();
        send(byMetric(builder, SUMMARY, arguments)
            .windowedBy(TimeWindows.ofSizeAndGrace(SUMMARY, LATER))
            .aggregate(
                Figures::new, (key, value, all) -> all.add(value), Peer.stored("figures", Serdes.Bytes(), FIGURES))
            .toStream()
            .mapValues(figures -> List.of(figures)), arguments);
        return new Peer.Job(builder.build(), List.of(repartitioned(arguments)));
    }

    static Peer.Job twoStages(Peer.Arguments arguments) throws Exception {
        String bundles = arguments.text("bundles");
        try (Admin admin = Peer.admin(arguments)) {
            Peer.create(admin, bundles, Peer.partitions(admin, arguments.text("topic")).size(), Peer.KEPT);
        }
        StreamsBuilder builder = new StreamsBuilder();
        byMetric(builder, BUNDLE, arguments)
            .windowedBy(TimeWindows.ofSizeAndGrace(BUNDLE, LATER))
            .aggregate(
                Figures::new, (key, value, all) -> all.add(value), Peer.stored("bundles", Serdes.Bytes(), FIGURES))
            .toStream()
            .map((window, figures) -> KeyValue.pair(window.key(), Bundle.of(window.window().start(), figures)))
            .to(bundles, Produced.with(Serdes.Bytes(), BUNDLES));
        // A bundle keeps its key, so the topic is parted by metric already.
        send(builder
            .stream(bundles, Consumed.with(Serdes.Bytes(), BUNDLES)
                .withTimestampExtractor((bundle, before) -> ((Bundle) bundle.value()).window()))
            .groupByKey(Grouped.with(Serdes.Bytes(), BUNDLES))
            .windowedBy(TimeWindows.ofSizeAndGrace(SUMMARY, LATER))
            .aggregate(Summaries::slots, Summaries::place, Peer.stored("slots", Serdes.Bytes(), SLOTS))
            .toStream()
            .mapValues(slots -> Arrays.stream(slots).filter(Objects::nonNull).map(Bundle::figures).toList()),
            arguments);
        return new Peer.Job(builder.build(), List.of(repartitioned(arguments), bundles));
    }

    private static KGroupedStream<Bytes, Double> byMetric(
        StreamsBuilder builder, Duration window, Peer.Arguments arguments) {
        Serde<byte[]> key = Serdes.ByteArray();
        Serde<Receipts.Receipt> receipt = Serdes.serdeFrom((topic, none) -> null, Receipts.reader(arguments));
        return builder
            .stream(arguments.text("topic"), Consumed.with(key, receipt).withTimestampExtractor(
                (r, before) -> r.value() instanceof Receipts.Receipt found ? found.timestamp() : r.timestamp()))
            .process(() -> new Keyed(window.toMillis()))
            .repartition(Repartitioned.<Bytes, Double>as("by-metric")
                .withKeySerde(Serdes.Bytes()).withValueSerde(Serdes.Double()))
            .groupByKey(Grouped.with(Serdes.Bytes(), Serdes.Double()));
    }

    /** The receipts that are in time, by metric. */
    private static final class Keyed extends ContextualProcessor<byte[], Receipts.Receipt, Bytes, Double> {
        private final long window;

        Keyed(long window) {
            this.window = window;
        }

        @Override
        public void process(Record<byte[], Receipts.Receipt> read) {
            Receipts.Receipt receipt = read.value();
            if (receipt == null) {
                return;
            }
            long end = read.timestamp() - read.timestamp() % window + window;
            if (end + GRACE.toMillis() <= context().currentStreamTimeMs()) {
                Receipts.LATE.increment();
            } else {
                context().forward(
                    read.withKey(key(receipt.environment(), receipt.metric())).withValue(receipt.value()));
            }
        }
    }

    private static String repartitioned(Peer.Arguments arguments) {
        return arguments.text("app") + "-by-metric-repartition";
    }

    private static void send(KStream<Windowed<Bytes>, List<Figures>> figures, Peer.Arguments arguments)
        throws Exception {
        String output = arguments.text("output");
        try (Admin admin = Peer.admin(arguments)) {
            Peer.create(admin, output, 2, Peer.COMPACTED);
        }
        figures
            .map((window, parts) -> {
                byte[] key = window.key().get();
                int length = ByteBuffer.wrap(key).getShort();
                String environment = new String(key, Short.BYTES, length, StandardCharsets.UTF_8);
                int start = Short.BYTES + length;
                String metric = new String(key, start, key.length - start, StandardCharsets.UTF_8);
                long from = window.window().start();
                return KeyValue.pair(
                    Figures.json(environment, metric, from, List.of()), Figures.json(environment, metric, from, parts));
            })
            .to(output, Produced.with(Serdes.String(), Serdes.String()));
    }

    /** The environment behind its length, then the metric. */
    private static Bytes key(String environment, String metric) {
        byte[] first = environment.getBytes(StandardCharsets.UTF_8);
        byte[] second = metric.getBytes(StandardCharsets.UTF_8);
        return Bytes.wrap(ByteBuffer.allocate(Short.BYTES + first.length + second.length)
            .putShort((short) first.length).put(first).put(second).array());
    }

    private static Bundle[] slots() {
        return new Bundle[(int) SUMMARY.dividedBy(BUNDLE)];
    }

    private static Bundle[] place(Bytes key, Bundle bundle, Bundle[] slots) {
        int slot = (int) (bundle.window() % SUMMARY.toMillis() / BUNDLE.toMillis());
        if (slots[slot] == null || bundle.count() >= slots[slot].count()) {
            slots[slot] = bundle;
        }
        return slots;
    }

    private static byte[] written(String topic, Bundle[] slots) {
        if (slots == null) {
            return null;
        }
        int size = 0;
        for (Bundle slot : slots) {
            size += Integer.BYTES + (slot == null ? 0 : slot.bytes().length);
        }
        ByteBuffer buffer = ByteBuffer.allocate(size);
        for (Bundle slot : slots) {
            buffer.putInt(slot == null ? 0 : slot.bytes().length).put(slot == null ? new byte[0] : slot.bytes());
        }
        return buffer.array();
    }

    private static Bundle[] read(String topic, byte[] bytes) {
        if (bytes == null) {
            return null;
        }
        ByteBuffer buffer = ByteBuffer.wrap(bytes);
        Bundle[] slots = slots();
        for (int slot = 0; slot < slots.length; slot++) {
            byte[] held = new byte[buffer.getInt()];
            buffer.get(held);
            slots[slot] = held.length == 0 ? null : new Bundle(held);
        }
        return slots;
    }
}
