package bench;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import org.apache.avro.AvroRuntimeException;
import org.apache.avro.Schema;
import org.apache.avro.SchemaBuilder;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.EncoderFactory;
import org.apache.kafka.common.serialization.Deserializer;

/** Receipts in Avro behind the header of a schema registry, by generic records, as registries' serialisers do it. */
final class AvroReceipts implements ReceiptFormat {
    private static final Schema SCHEMA = SchemaBuilder.record("Receipt").fields()
        .requiredString("environment").requiredString("metric").requiredDouble("value").requiredLong("timestamp")
        .endRecord();
    private static final byte MAGIC = 0;
    private static final int HEADER = 1 + Integer.BYTES;

    private final int id;
    private final GenericDatumWriter<GenericRecord> writer = new GenericDatumWriter<>(SCHEMA);
    private BinaryEncoder encoder;

    /** id: of the schema in the registry. */
    AvroReceipts(int id) {
        this.id = id;
    }

    @Override
    public byte[] write(Receipts.Receipt receipt) throws IOException {
        GenericRecord record = new GenericData.Record(SCHEMA);
        record.put("environment", receipt.environment());
        record.put("metric", receipt.metric());
        record.put("value", receipt.value());
        record.put("timestamp", receipt.timestamp());
        ByteArrayOutputStream bytes = new ByteArrayOutputStream(64);
        bytes.write(ByteBuffer.allocate(HEADER).put(MAGIC).putInt(id).array());
        encoder = EncoderFactory.get().binaryEncoder(bytes, encoder);
        writer.write(record, encoder);
        encoder.flush();
        return bytes.toByteArray();
    }

    @Override
    public Deserializer<Receipts.Receipt> reader() {
        GenericDatumReader<GenericRecord> reader = new GenericDatumReader<>(SCHEMA);
        return (topic, bytes) -> {
            Peer.seen();
            try {
                if (bytes != null && bytes.length > HEADER && bytes[0] == MAGIC && ByteBuffer.wrap(bytes).getInt(1) == id) {
                    GenericRecord record = reader.read(
                        null, DecoderFactory.get().binaryDecoder(bytes, HEADER, bytes.length - HEADER, null));
                    return new Receipts.Receipt(
                        record.get("environment").toString(),
                        record.get("metric").toString(),
                        (Double) record.get("value"),
                        (Long) record.get("timestamp"));
                }
            } catch (IOException | AvroRuntimeException e) {
                // Counted below.
            }
            Receipts.REJECTED.increment();
            return null;
        };
    }
}
