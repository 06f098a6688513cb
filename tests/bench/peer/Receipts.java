package bench;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonFactoryBuilder;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.json.JsonReadFeature;
import java.io.IOException;
import java.io.StringWriter;
import java.util.concurrent.atomic.LongAdder;
import java.util.regex.Pattern;
import org.apache.kafka.common.serialization.Deserializer;

/** Reads receipts as Spark's from_json reads them, and judges them by the rule of sql/quality/receipts.sql. */
final class Receipts {
    record Receipt(String environment, String metric, double value, long timestamp) {}

    static final JsonFactory JSON = new JsonFactoryBuilder()
        .enable(JsonReadFeature.ALLOW_SINGLE_QUOTES)
        .enable(JsonReadFeature.ALLOW_NON_NUMERIC_NUMBERS)
        .build();
    /** Records that are no receipts. */
    static final LongAdder REJECTED = new LongAdder();
    /** Receipts that came too late for their window. */
    static final LongAdder LATE = new LongAdder();
    private static final Pattern METRIC = Pattern.compile("^[a-z][A-Za-z0-9._:-]*$");
    private static final byte[] ENVIRONMENT_IS = Generate.bytes("{\"environment\":\"");
    private static final byte[] METRIC_IS = Generate.bytes("\",\"metric\":\"");
    private static final byte[] VALUE_IS = Generate.bytes("\",\"value\":");
    private static final byte[] TIMESTAMP_IS = Generate.bytes(",\"timestamp\":");

    private Receipts() {}

    /** A receipt, or null if the record is none. */
    static Deserializer<Receipt> reader(Peer.Arguments arguments) {
        ReceiptFormat format = ReceiptFormat.of(arguments);
        if (format != null) {
            return format.reader();
        }
        return (topic, bytes) -> {
            Peer.seen();
            Receipt found = bytes == null ? null : parse(bytes);
            if (found == null) {
                REJECTED.increment();
            }
            return found;
        };
    }

    /** Whether a record is valid. guarded: the usual layout of bytes is recognised without a parser. */
    static Deserializer<Boolean> judge(boolean guarded) {
        return (topic, bytes) -> {
            Peer.seen();
            return bytes == null || guarded && isUsual(bytes) || isValid(parse(bytes));
        };
    }

    private static boolean isValid(Receipt receipt) {
        return receipt != null
            && !receipt.environment().isEmpty()
            && receipt.timestamp() > 0
            && METRIC.matcher(receipt.metric()).find();
    }

    /** Null if it is no JSON object, or a field is missing or of another type. What follows the object is not read. */
    static Receipt parse(byte[] bytes) {
        try (JsonParser parser = JSON.createParser(bytes)) {
            if (parser.nextToken() != JsonToken.START_OBJECT) {
                return null;
            }
            String environment = null;
            String metric = null;
            double value = 0;
            long timestamp = 0;
            boolean hasValue = false;
            boolean hasTimestamp = false;
            for (String name = parser.nextFieldName(); name != null; name = parser.nextFieldName()) {
                JsonToken token = parser.nextToken();
                switch (name) {
                    case "environment" -> environment = text(parser, token);
                    case "metric" -> metric = text(parser, token);
                    case "value" -> {
                        hasValue = token != JsonToken.VALUE_NULL;
                        if (hasValue) {
                            value = number(parser, token);
                        }
                    }
                    case "timestamp" -> {
                        hasTimestamp = token == JsonToken.VALUE_NUMBER_INT;
                        if (hasTimestamp) {
                            timestamp = parser.getLongValue();
                        } else if (token != JsonToken.VALUE_NULL) {
                            return null;
                        }
                    }
                    default -> parser.skipChildren();
                }
            }
            boolean whole = parser.currentToken() == JsonToken.END_OBJECT;
            return whole && environment != null && metric != null && hasValue && hasTimestamp
                ? new Receipt(environment, metric, value, timestamp)
                : null;
        } catch (IOException | NumberFormatException e) {
            return null;
        }
    }

    private static String text(JsonParser parser, JsonToken token) throws IOException {
        return switch (token) {
            case VALUE_STRING -> parser.getText();
            case VALUE_NULL -> null;
            default -> {
                StringWriter copy = new StringWriter();
                try (JsonGenerator generator = JSON.createGenerator(copy)) {
                    generator.copyCurrentStructure(parser);
                }
                yield copy.toString();
            }
        };
    }

    private static double number(JsonParser parser, JsonToken token) throws IOException {
        return switch (token) {
            case VALUE_NUMBER_INT, VALUE_NUMBER_FLOAT -> parser.getDoubleValue();
            case VALUE_STRING -> switch (parser.getText()) {
                case "NaN" -> Double.NaN;
                case "+INF", "+Infinity", "Infinity" -> Double.POSITIVE_INFINITY;
                case "-INF", "-Infinity" -> Double.NEGATIVE_INFINITY;
                default -> throw new NumberFormatException();
            };
            default -> throw new NumberFormatException();
        };
    }

    /**
     * Whether the bytes are a valid receipt in the layout most producers write. It only ever says yes: of anything
     * it does not know, escapes, white space, exponents, other characters than ASCII, the parser judges.
     */
    static boolean isUsual(byte[] b) {
        int at = after(b, 0, ENVIRONMENT_IS);
        int start = at;
        while (at > 0 && at < b.length && b[at] >= ' ' && b[at] != '"' && b[at] != '\\' && b[at] != 127) {
            at++;
        }
        if (at == start || (at = after(b, at, METRIC_IS)) < 0 || at == b.length || b[at] < 'a' || b[at] > 'z') {
            return false;
        }
        while (at < b.length && isName(b[at])) {
            at++;
        }
        if ((at = after(b, at, VALUE_IS)) < 0) {
            return false;
        }
        if (at < b.length && b[at] == '-') {
            at++;
        }
        if ((at = integer(b, at, '0')) < 0) {
            return false;
        }
        if (at < b.length && b[at] == '.') {
            int point = at++;
            while (at < b.length && isDigit(b[at]) && at - point <= 18) {
                at++;
            }
            if (at == point + 1) {
                return false;
            }
        }
        at = after(b, at, TIMESTAMP_IS);
        return at > 0 && (at = integer(b, at, '1')) > 0 && at == b.length - 1 && b[at] == '}';
    }

    /** The place after a text that starts here; -1 if it does not, or `at` is none. */
    private static int after(byte[] b, int at, byte[] text) {
        int end = at + text.length;
        if (at < 0 || end > b.length) {
            return -1;
        }
        for (int i = 0; i < text.length; i++) {
            if (b[at + i] != text[i]) {
                return -1;
            }
        }
        return end;
    }

    /** The place after a whole number of at most 18 digits whose first is at least `least`; -1 if there is none. */
    private static int integer(byte[] b, int at, char least) {
        if (at >= b.length || b[at] < least || b[at] > '9') {
            return -1;
        }
        if (b[at] == '0') {
            return at + 1;
        }
        int start = at;
        while (at < b.length && isDigit(b[at])) {
            at++;
        }
        return at - start <= 18 ? at : -1;
    }

    private static boolean isDigit(byte c) {
        return c >= '0' && c <= '9';
    }

    private static boolean isName(byte c) {
        return c >= 'a' && c <= 'z' || c >= '-' && c <= ':' && c != '/' || c >= 'A' && c <= 'Z' || c == '_';
    }
}
