package penstock;

import java.io.Serializable;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.codegen.CodegenContext;
import org.apache.spark.sql.catalyst.expressions.codegen.ExprCode;
import org.apache.spark.sql.catalyst.expressions.codegen.JavaCode$;
import org.apache.spark.sql.types.DataType;
import scala.collection.Iterable;
import scala.collection.immutable.ArraySeq;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;

/**
 * A TIMESTAMP that is the same for all rows of a batch, and another one in the next batch.
 *
 * Spark writes such a value into the code that it generates, so it compiles that code for each batch. This expression
 * hands the value to the code.
 */
public final class BatchConstant extends Expression implements Serializable {
    private final Expression child;

    /** @param child the time of the batch, not NULL */
    public BatchConstant(Expression child) {
        this.child = child;
    }

    @Override
    public Seq<Expression> children() {
        return ArraySeq.unsafeWrapArray(new Expression[] {child});
    }

    @Override
    public DataType dataType() {
        return child.dataType();
    }

    @Override
    public boolean nullable() {
        return false;
    }

    @Override
    public Object eval(InternalRow row) {
        return child.eval(row);
    }

    @Override
    public ExprCode doGenCode(CodegenContext context, ExprCode code) {
        String value = context.addReferenceObj("time", child.eval(null), "java.lang.Long");
        return ExprCode.forNonNullValue(JavaCode$.MODULE$.expression(value + ".longValue()", dataType()));
    }

    @Override
    public Expression withNewChildrenInternal(IndexedSeq<Expression> newChildren) {
        return new BatchConstant(((Iterable<Expression>) newChildren).head());
    }

    @Override
    public int productArity() {
        return 1;
    }

    @Override
    public Object productElement(int position) {
        return child;
    }

    @Override
    public boolean canEqual(Object other) {
        return other instanceof BatchConstant;
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof BatchConstant && child.equals(((BatchConstant) other).child);
    }

    @Override
    public int hashCode() {
        return super.hashCode();
    }
}
