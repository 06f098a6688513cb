package bench;

import java.io.IOException;
import org.apache.kafka.common.serialization.Deserializer;

/** A format of a schema registry. */
interface ReceiptFormat {
    /** The record of a receipt. One thread. */
    byte[] write(Receipts.Receipt receipt) throws IOException;

    /** Reads a receipt, or null if the record is none. */
    Deserializer<Receipts.Receipt> reader();

    /** The format of the arguments; null if receipts are JSON. */
    static ReceiptFormat of(Peer.Arguments arguments) {
        int id = (int) arguments.number("schema");
        return switch (arguments.text("layout")) {
            case "avro" -> new AvroReceipts(id);
            case "protobuf" -> new ProtobufReceipts(id);
            default -> null;
        };
    }
}
