package bench;

import java.io.IOException;
import java.io.StringWriter;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.List;

/**
 * The figures of one group of receipts, held as the bytes that are stored: reading and writing them costs nothing.
 *
 * A head (count, mean, sum of squared differences, min, max, lowest cut value), then how often each cut value occurs,
 * in ascending order: the difference to the one before and the count, seven bits a byte. Cut values are hundredths.
 */
final class Figures {
    private static final VarHandle LONG = MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.BIG_ENDIAN);
    private static final VarHandle DOUBLE = MethodHandles.byteArrayViewVarHandle(double[].class, ByteOrder.BIG_ENDIAN);
    private static final int COUNT = 0;
    private static final int MEAN = 8;
    private static final int M2 = 16;
    private static final int MIN = 24;
    private static final int MAX = 32;
    private static final int LOW = 40;
    private static final int TABLE = 48;
    /** Beyond it a double has no decimals left to cut. */
    private static final long EXACT = 1L << 53;
    private static final long LARGE = Double.doubleToLongBits(9e13);

    private byte[] bytes;
    private int at;
    private long value;
    private long times;

    Figures() {
        this(new byte[TABLE]);
    }

    /** Takes the array over. */
    Figures(byte[] bytes) {
        this.bytes = bytes;
    }

    byte[] bytes() {
        return bytes;
    }

    long count() {
        return (long) LONG.get(bytes, COUNT);
    }

    Figures add(double v) {
        long n = count() + 1;
        double mean = real(MEAN);
        double difference = v - mean;
        mean += difference / n;
        tally(cut(v), n == 1);
        LONG.set(bytes, COUNT, n);
        DOUBLE.set(bytes, MEAN, mean);
        DOUBLE.set(bytes, M2, real(M2) + difference * (v - mean));
        // NaN counts as greater than every number.
        DOUBLE.set(bytes, MIN, n == 1 || Double.compare(v, real(MIN)) < 0 ? v : real(MIN));
        DOUBLE.set(bytes, MAX, n == 1 || Double.compare(v, real(MAX)) > 0 ? v : real(MAX));
        return this;
    }

    private double real(int place) {
        return (double) DOUBLE.get(bytes, place);
    }

    private void tally(long cut, boolean first) {
        if (first) {
            LONG.set(bytes, LOW, cut);
            splice(TABLE, TABLE, 0, 1);
            return;
        }
        // The hot loop of the job: the same as next(), over local variables only.
        byte[] b = bytes;
        long last = (long) LONG.get(b, LOW);
        int place = TABLE;
        while (place < b.length) {
            int entry = place;
            long found = b[place++];
            if (found < 0) {
                found &= 0x7f;
                byte more;
                int shift = 7;
                do {
                    more = b[place++];
                    found |= (long) (more & 0x7f) << shift;
                    shift += 7;
                } while (more < 0);
            }
            found += last;
            int count = place;
            if (found >= cut) {
                raise(entry, count, last, found, cut);
                return;
            }
            while (b[place++] < 0) {}
            last = found;
        }
        splice(place, place, cut - last, 1);
    }

    /** Counts a cut value at the first entry that is not below it; count: where that entry's count is. */
    private void raise(int entry, int count, long last, long found, long cut) {
        if (found == cut) {
            at = count;
            long more = read() + 1;
            splice(count, at, more);
        } else if (entry == TABLE) {
            splice(TABLE, count, 0, 1, found - cut);
            LONG.set(bytes, LOW, cut);
        } else {
            splice(entry, count, cut - last, 1, found - cut);
        }
    }

    private void rewind() {
        at = TABLE;
        value = (long) LONG.get(bytes, LOW);
    }

    /** Moves on to the next entry of the table: `value` and `times`. False if there is none. */
    private boolean next() {
        if (at == bytes.length) {
            return false;
        }
        value += read();
        times = read();
        return true;
    }

    private long read() {
        long number = bytes[at++];
        if (number < 0) {
            number &= 0x7f;
            byte more;
            int shift = 7;
            do {
                more = bytes[at++];
                number |= (long) (more & 0x7f) << shift;
                shift += 7;
            } while (more < 0);
        }
        return number;
    }

    /** Puts numbers in the place of some bytes. */
    private void splice(int from, int to, long... numbers) {
        int size = 0;
        for (long number : numbers) {
            size += (70 - Long.numberOfLeadingZeros(number | 1)) / 7;
        }
        byte[] made = bytes;
        if (size != to - from) {
            made = new byte[bytes.length + size - (to - from)];
            System.arraycopy(bytes, 0, made, 0, from);
            System.arraycopy(bytes, to, made, from + size, bytes.length - to);
        }
        int place = from;
        for (long number : numbers) {
            while (number > 0x7f) {
                made[place++] = (byte) (number | 0x80);
                number >>>= 7;
            }
            made[place++] = (byte) number;
        }
        bytes = made;
    }

    /** The value in hundredths, cut towards zero; values too large to have any follow in their own order. */
    private static long cut(double v) {
        double scaled = v * 100;
        if (Math.abs(scaled) < EXACT) {
            return (long) scaled;
        }
        long beyond = EXACT + Double.doubleToLongBits(Math.abs(v)) - LARGE;
        return v < 0 ? -beyond : beyond;
    }

    private static double uncut(long cut) {
        if (Math.abs(cut) < EXACT) {
            return cut / 100.0;
        }
        double v = Double.longBitsToDouble(Math.abs(cut) - EXACT + LARGE);
        return cut < 0 ? -v : v;
    }

    /** The nearest rank over all parts: the first value that at least q of all values do not exceed. */
    private static double quantile(List<Figures> parts, long n, double q) {
        parts.forEach(Figures::rewind);
        List<Figures> left = new ArrayList<>(parts);
        left.removeIf(part -> !part.next());
        long seen = 0;
        while (true) {
            Figures least = left.get(0);
            for (Figures part : left) {
                least = part.value < least.value ? part : least;
            }
            seen += least.times;
            if ((double) seen / n >= q) {
                return uncut(least.value);
            }
            if (!least.next()) {
                left.remove(least);
            }
        }
    }

    /** The figures of all parts together, or without parts the key alone; moments as Chan, Golub and LeVeque merge. */
    static String json(String environment, String metric, long window, List<Figures> parts) {
        StringWriter text = new StringWriter(256);
        try (var json = Receipts.JSON.createGenerator(text)) {
            json.writeStartObject();
            json.writeStringField("environment", environment);
            json.writeStringField("metric", metric);
            json.writeNumberField("window", window);
            if (!parts.isEmpty()) {
                long n = parts.stream().mapToLong(Figures::count).sum();
                double mean = parts.stream().mapToDouble(p -> p.real(MEAN) * ((double) p.count() / n)).sum();
                double m2 = 0;
                double min = parts.get(0).real(MIN);
                double max = parts.get(0).real(MAX);
                for (Figures part : parts) {
                    m2 += part.real(M2) + part.count() * Math.pow(part.real(MEAN) - mean, 2);
                    min = Double.compare(part.real(MIN), min) < 0 ? part.real(MIN) : min;
                    max = Double.compare(part.real(MAX), max) > 0 ? part.real(MAX) : max;
                }
                json.writeNumberField("count", n);
                json.writeNumberField("average", mean);
                json.writeNumberField("min", min);
                json.writeNumberField("max", max);
                json.writeNumberField("stddev", Math.sqrt(m2 / n));
                json.writeNumberField("p90", quantile(parts, n, 0.9));
            }
            json.writeEndObject();
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
        return text.toString();
    }
}
