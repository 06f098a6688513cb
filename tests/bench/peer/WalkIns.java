package bench;

import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * Walk-ins by the rule of jobs/presence/walk_ins.py: a device that is heard at a business at or above its threshold, at
 * two times the dwell or more and no more than a bound apart, once until it was away.
 */
final class WalkIns {
    private static final long DWELL = Duration.ofMinutes(2).toMillis();
    private static final long WITHIN = Duration.ofMinutes(10).toMillis();
    private static final long AWAY = Duration.ofHours(4).toMillis();
    private static final long LATE = Duration.ofMinutes(10).toMillis();
    private static final long NEVER = Long.MIN_VALUE;
    private static final String VISITS = "visits";
    private static final String BUSINESSES = "businesses";

    private WalkIns() {}

    private record Probe(String device, String business, int signal, long timestamp) {}

    /** A presence; told: when its walk-in was, NEVER if it has none. */
    private record Span(long began, long ended, long told) {
        Span with(Span other) {
            long first = told == NEVER || other.told != NEVER && other.told < told ? other.told : told;
            return new Span(Math.min(began, other.began), Math.max(ended, other.ended), first);
        }
    }

    /** Of a device at a business: its presences in order, and the times that a walk-in may yet be made of. */
    private record Visits(Span[] spans, long[] times) {
        byte[] bytes() {
            ByteBuffer buffer = ByteBuffer.allocate(Integer.BYTES + (3 * spans.length + times.length) * Long.BYTES);
            buffer.putInt(spans.length);
            for (Span span : spans) {
                buffer.putLong(span.began()).putLong(span.ended()).putLong(span.told());
            }
            for (long time : times) {
                buffer.putLong(time);
            }
            return buffer.array();
        }

        static Visits of(byte[] bytes) {
            ByteBuffer buffer = ByteBuffer.wrap(bytes);
            Span[] spans = new Span[buffer.getInt()];
            for (int n = 0; n < spans.length; n++) {
                spans[n] = new Span(buffer.getLong(), buffer.getLong(), buffer.getLong());
            }
            long[] times = new long[buffer.remaining() / Long.BYTES];
            for (int n = 0; n < times.length; n++) {
                times[n] = buffer.getLong();
            }
            return new Visits(spans, times);
        }
    }

    private static final Serde<Visits> STATE = Serdes.serdeFrom(
        (topic, visits) -> visits == null ? null : visits.bytes(), (topic, bytes) -> bytes == null ? null : Visits.of(bytes));

    static Peer.Job job(Peer.Arguments arguments) throws Exception {
        StreamsBuilder builder = new StreamsBuilder();
        builder.addGlobalStore(
            Stores.keyValueStoreBuilder(
                Stores.inMemoryKeyValueStore(BUSINESSES), Serdes.String(), Serdes.Integer()).withLoggingDisabled(),
            arguments.text("businesses"),
            Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()),
            Known::new);
        builder.addStateStore(Stores.keyValueStoreBuilder(
            Stores.persistentKeyValueStore(VISITS), Serdes.Bytes(), STATE).withCachingEnabled());
        String output = arguments.text("output");
        try (Admin admin = Peer.admin(arguments)) {
            Peer.create(admin, output, 4, Peer.KEPT);
        }
        builder
            .stream(arguments.text("topic"), Consumed.with(Serdes.ByteArray(), Serdes.serdeFrom((t, p) -> null, reader()))
                .withTimestampExtractor((r, before) -> r.value() instanceof Probe p ? p.timestamp() : r.timestamp()))
            .process(Detector::new, VISITS)
            .to(output, Produced.with(Serdes.String(), Serdes.String()));
        return new Peer.Job(builder.build(), List.of());
    }

    /** Keeps the thresholds of the businesses. */
    private static final class Known implements Processor<byte[], byte[], Void, Void> {
        private KeyValueStore<String, Integer> thresholds;

        @Override
        public void init(ProcessorContext<Void, Void> context) {
            thresholds = context.getStateStore(BUSINESSES);
        }

        @Override
        public void process(Record<byte[], byte[]> read) {
            String id = null;
            Integer threshold = null;
            if (read.value() == null) {
                return;
            }
            try (JsonParser parser = Receipts.JSON.createParser(read.value())) {
                parser.nextToken();
                for (String name = parser.nextFieldName(); name != null; name = parser.nextFieldName()) {
                    parser.nextToken();
                    switch (name) {
                        case "id" -> id = parser.getText();
                        case "threshold" -> threshold = parser.getIntValue();
                        default -> parser.skipChildren();
                    }
                }
            } catch (IOException e) {
                throw new IllegalStateException(e);
            }
            thresholds.put(id, threshold);
        }
    }

    private static final class Detector extends ContextualProcessor<byte[], Probe, String, String> {
        private KeyValueStore<String, Integer> thresholds;
        private KeyValueStore<Bytes, Visits> visits;

        @Override
        public void init(ProcessorContext<String, String> context) {
            super.init(context);
            thresholds = context.getStateStore(BUSINESSES);
            visits = context.getStateStore(VISITS);
            context.schedule(Duration.ofMillis(AWAY), PunctuationType.STREAM_TIME, this::forget);
        }

        @Override
        public void process(Record<byte[], Probe> read) {
            Probe probe = read.value();
            Integer threshold = probe == null ? null : thresholds.get(probe.business());
            if (threshold == null || probe.signal() < threshold) {
                return;
            }
            long mark = context().currentStreamTimeMs() - LATE;
            long at = probe.timestamp();
            if (at < mark) {
                Receipts.LATE.increment();
                return;
            }
            Bytes key = Bytes.wrap((probe.device() + '|' + probe.business()).getBytes(StandardCharsets.UTF_8));
            Visits old = visits.get(key);
            if (old == null) {
                visits.put(key, new Visits(new Span[] {new Span(at, at, NEVER)}, new long[] {at}));
                return;
            }
            Span last = old.spans()[old.spans().length - 1];
            if (old.spans().length == 1 && last.told() != NEVER && at >= last.began() && at < last.ended() + AWAY) {
                if (at > last.ended()) {
                    visits.put(key, new Visits(new Span[] {new Span(last.began(), at, last.told())}, old.times()));
                }
                return;
            }
            visits.put(key, met(probe, old, mark));
        }

        private Visits met(Probe probe, Visits old, long mark) {
            long at = probe.timestamp();
            Span mine = new Span(at, at, NEVER);
            Span[] spans = new Span[old.spans().length + 1];
            int count = 0;
            int place = 0;
            for (Span span : old.spans()) {
                if (span.ended() < mark - AWAY) {
                    continue;
                }
                if (at - span.ended() < AWAY && span.began() - at < AWAY) {
                    mine = mine.with(span);
                } else {
                    spans[count++] = span;
                    place += span.began() < at ? 1 : 0;
                }
            }
            Span whole = mine;
            long[] times = old.times();
            if (whole.told() == NEVER) {
                times = with(times, at, mark);
                long[] found = walkIn(times, whole);
                if (found != null) {
                    tell(probe, found[0], found[1]);
                    whole = new Span(whole.began(), whole.ended(), found[1]);
                }
            }
            if (whole.told() != NEVER) {
                Span told = whole;
                times = Arrays.stream(times).filter(t -> t < told.began() || t > told.ended()).toArray();
            }
            System.arraycopy(spans, place, spans, place + 1, count - place);
            spans[place] = whole;
            return new Visits(Arrays.copyOf(spans, count + 1), times);
        }

        /** In order, without those that no probe may be near enough to any more. */
        private static long[] with(long[] times, long at, long mark) {
            long[] more = new long[times.length + 1];
            int count = 0;
            boolean placed = false;
            for (long time : times) {
                if (!placed && at <= time) {
                    more[count++] = at;
                    placed = true;
                }
                if (time != at && time >= mark - WITHIN) {
                    more[count++] = time;
                }
            }
            if (!placed) {
                more[count++] = at;
            }
            return Arrays.copyOf(more, count);
        }

        /** The earliest time of a presence that lies the dwell behind another, and the earliest such other one. */
        private static long[] walkIn(long[] times, Span span) {
            for (long at : times) {
                for (long since : times) {
                    if (since >= span.began() && at <= span.ended() && at - since >= DWELL && at - since <= WITHIN) {
                        return new long[] {since, at};
                    }
                }
            }
            return null;
        }

        private void tell(Probe probe, long since, long at) {
            String who = "{\"device\":\"" + probe.device() + "\",\"business\":\"" + probe.business() + '"';
            context().forward(new Record<>(
                who + '}', who + ",\"since\":" + since + ",\"timestamp\":" + at + '}', context().currentStreamTimeMs()));
        }

        private void forget(long now) {
            try (KeyValueIterator<Bytes, Visits> all = visits.all()) {
                while (all.hasNext()) {
                    KeyValue<Bytes, Visits> one = all.next();
                    Span[] spans = one.value.spans();
                    if (spans[spans.length - 1].ended() < now - LATE - AWAY) {
                        visits.delete(one.key);
                    }
                }
            }
        }
    }

    /** A probe, or null if the record is none. */
    private static Deserializer<Probe> reader() {
        return (topic, bytes) -> {
            Peer.seen();
            Probe found = bytes == null ? null : parse(bytes);
            if (found == null) {
                Receipts.REJECTED.increment();
            }
            return found;
        };
    }

    private static Probe parse(byte[] bytes) {
        try (JsonParser parser = Receipts.JSON.createParser(bytes)) {
            if (parser.nextToken() != JsonToken.START_OBJECT) {
                return null;
            }
            String device = null;
            String business = null;
            long signal = 0;
            long timestamp = 0;
            int numbers = 0;
            for (String name = parser.nextFieldName(); name != null; name = parser.nextFieldName()) {
                JsonToken token = parser.nextToken();
                switch (name) {
                    case "device" -> device = token == JsonToken.VALUE_STRING ? parser.getText() : null;
                    case "business" -> business = token == JsonToken.VALUE_STRING ? parser.getText() : null;
                    case "signal" -> {
                        signal = parser.getIntValue();
                        numbers++;
                    }
                    case "timestamp" -> {
                        timestamp = parser.getLongValue();
                        numbers++;
                    }
                    default -> parser.skipChildren();
                }
            }
            boolean whole = parser.currentToken() == JsonToken.END_OBJECT;
            return whole && device != null && business != null && numbers == 2
                ? new Probe(device, business, (int) signal, timestamp)
                : null;
        } catch (IOException e) {
            return null;
        }
    }
}
