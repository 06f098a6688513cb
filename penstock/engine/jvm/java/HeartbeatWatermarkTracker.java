package penstock;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution;
import org.apache.spark.sql.execution.streaming.runtime.MultipleWatermarkPolicy$;
import org.apache.spark.sql.execution.streaming.runtime.StreamExecutionContext;
import org.apache.spark.sql.execution.streaming.runtime.WatermarkPropagator;
import org.apache.spark.sql.execution.streaming.runtime.WatermarkTracker;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The watermark of a query, which a batch of heartbeats alone moves before it is planned.
 *
 * Spark moves the watermark when a batch ends, and runs another batch, without records, for the windows that it closes.
 * A query asks for the watermark after it has chosen the offsets of a batch and before it writes them to its log: so what
 * is returned there is logged with them, and a batch that runs again has the same watermark.
 */
public final class HeartbeatWatermarkTracker extends WatermarkTracker {
    private final MicroBatchExecution query;
    private final Function<String, Number> heartbeatTime;
    private final long delayMs;
    private final WatermarkPropagator propagator;
    private long asked;

    /**
     * @param query a query that runs a batch
     * @param policy the policy for several inputs
     * @param delayMs the delay of the watermark
     * @param heartbeatTime the time of a batch's heartbeats in epoch ms, and 0 if it has other records; its argument is a
     *     JSON array of the first and next offsets of each source
     */
    public HeartbeatWatermarkTracker(
            MicroBatchExecution query, String policy, long delayMs, Function<String, Number> heartbeatTime)
            throws ReflectiveOperationException {
        super(MultipleWatermarkPolicy$.MODULE$.apply(policy), query.logicalPlan());
        this.query = query;
        this.delayMs = delayMs;
        this.heartbeatTime = heartbeatTime;
        Field field = MicroBatchExecution.class.getDeclaredField("watermarkPropagator");
        field.setAccessible(true);
        this.propagator = (WatermarkPropagator) field.get(query);
        this.asked = query.getLatestExecutionContext().batchId();
        setWatermark(query.watermarkTracker().currentWatermark());
    }

    @Override
    public synchronized long currentWatermark() {
        StreamExecutionContext batch = query.getLatestExecutionContext();
        if (batch.batchId() != asked && !batch.endOffsets().equals(batch.startOffsets())) {
            asked = batch.batchId();
            long at = Math.min(heartbeatTime.apply(offsets(batch)).longValue(), query.triggerClock().getTimeMillis());
            if (at - delayMs > super.currentWatermark()) {
                setWatermark(at - delayMs);
                // It has the watermark that earlier polls, which found no records, expected of this batch.
                propagator.purge(batch.batchId());
            }
        }
        return super.currentWatermark();
    }

    private static String offsets(StreamExecutionContext batch) {
        List<String> sources = new ArrayList<>();
        CollectionConverters.asJava(batch.endOffsets()).forEach((source, end) -> {
            Option<Offset> start = batch.startOffsets().get(source);
            sources.add("[" + (start.isDefined() ? start.get().json() : "{}") + "," + end.json() + "]");
        });
        return "[" + String.join(",", sources) + "]";
    }
}
