package bench;

import com.google.protobuf.CodedInputStream;
import com.google.protobuf.CodedOutputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import org.apache.kafka.common.serialization.Deserializer;

/** Receipts in Protobuf behind the header of a schema registry, read as the classes that protoc generates do it. */
final class ProtobufReceipts implements ReceiptFormat {
    private static final byte MAGIC = 0;
    /** Behind the schema's id, one zero byte names the first message of its file. */
    private static final int HEADER = 1 + Integer.BYTES + 1;
    /** The numbers of the fields in receipt.proto, with their wire types. */
    private static final int ENVIRONMENT = 1 << 3 | 2;
    private static final int METRIC = 2 << 3 | 2;
    private static final int VALUE = 3 << 3 | 1;
    private static final int TIMESTAMP = 4 << 3;

    private final int id;

    /** id: of the schema in the registry. */
    ProtobufReceipts(int id) {
        this.id = id;
    }

    @Override
    public byte[] write(Receipts.Receipt receipt) throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream(64);
        bytes.write(ByteBuffer.allocate(HEADER).put(MAGIC).putInt(id).put((byte) 0).array());
        CodedOutputStream message = CodedOutputStream.newInstance(bytes);
        message.writeString(ENVIRONMENT >>> 3, receipt.environment());
        message.writeString(METRIC >>> 3, receipt.metric());
        message.writeDouble(VALUE >>> 3, receipt.value());
        message.writeInt64(TIMESTAMP >>> 3, receipt.timestamp());
        message.flush();
        return bytes.toByteArray();
    }

    @Override
    public Deserializer<Receipts.Receipt> reader() {
        return (topic, bytes) -> {
            Peer.seen();
            try {
                if (bytes != null && bytes.length >= HEADER && bytes[0] == MAGIC
                        && ByteBuffer.wrap(bytes).getInt(1) == id && bytes[HEADER - 1] == 0) {
                    return parse(CodedInputStream.newInstance(bytes, HEADER, bytes.length - HEADER));
                }
            } catch (IOException e) {
                // Counted below.
            }
            Receipts.REJECTED.increment();
            return null;
        };
    }

    private static Receipts.Receipt parse(CodedInputStream message) throws IOException {
        String environment = "";
        String metric = "";
        double value = 0;
        long timestamp = 0;
        for (int tag = message.readTag(); tag != 0; tag = message.readTag()) {
            switch (tag) {
                case ENVIRONMENT -> environment = message.readStringRequireUtf8();
                case METRIC -> metric = message.readStringRequireUtf8();
                case VALUE -> value = message.readDouble();
                case TIMESTAMP -> timestamp = message.readInt64();
                default -> message.skipField(tag);
            }
        }
        return new Receipts.Receipt(environment, metric, value, timestamp);
    }
}
