-- Enriched walk-ins are counted for each business and contact, on top of a base count.
STREAM INTO walk-in-counts
READ enriched-walk-ins
    EVENT TIME timestamp_millis(timestamp)
READ base-counts
    -- A base count below zero, or so large that its sum with later walk-ins overflows, is a dead letter.
    EVENT TIME CASE WHEN count BETWEEN 0 AND 9007199254740992 THEN timestamp_millis(as_of) END
KEY (business, contact)
-- The topic contains all of the state, so that the state can be restored from it.
VALUE (business, contact, count, base, as_of, walks)
-- A base count covers all walk-ins up to and at `as_of`; later ones are kept one by one in `walks`. So neither the
-- order of base counts and walk-ins matters, nor repetitions.
FOLD counts
    FROM (
        SELECT business, contact, device, timestamp, CAST(NULL AS BIGINT) AS count, event_time
        FROM `enriched-walk-ins`
        UNION ALL
        SELECT business, contact, CAST(NULL AS STRING) AS device, as_of AS timestamp, count, event_time
        FROM `base-counts`
    )
    BY (business, contact)
    STATE (base BIGINT, as_of BIGINT, walks ARRAY<STRUCT<moment: BIGINT, device: STRING>>)
    UPDATE AS (
        WITH base_counts AS (
          SELECT business, contact, max(struct_pack(as_of := as_of, count := count)) AS base_count
          FROM (
            SELECT business, contact, timestamp AS as_of, count
            FROM records
            WHERE device IS NULL
            UNION ALL
            SELECT business, contact, as_of, base
            FROM state
            WHERE as_of IS NOT NULL
          )
          GROUP BY business, contact
        ), walk_ins AS (
          SELECT DISTINCT business, contact, timestamp AS moment, device
          FROM records
          WHERE device IS NOT NULL
          UNION
          SELECT business, contact, walk.moment, walk.device
          FROM (SELECT business, contact, unnest(walks) AS walk FROM state)
        ), later_walk_ins AS (
          SELECT business, contact, list(struct_pack(moment := moment, device := device) ORDER BY moment, device) AS walks
          FROM walk_ins
          LEFT JOIN base_counts USING (business, contact)
          WHERE base_count IS NULL OR moment > base_count.as_of
          GROUP BY business, contact
        ), keys AS (
          SELECT business, contact FROM base_counts
          UNION
          SELECT business, contact FROM walk_ins
        )
        SELECT
          business,
          contact,
          base_count.count AS base,
          base_count.as_of AS as_of,
          later_walk_ins.walks,
          state.base AS previous_base,
          state.as_of AS previous_as_of,
          state.walks AS previous_walks
        FROM keys
        LEFT JOIN base_counts USING (business, contact)
        LEFT JOIN later_walk_ins USING (business, contact)
        LEFT JOIN state USING (business, contact)
    )
    ROWS (
        business STRING, contact STRING, count BIGINT, base BIGINT, as_of BIGINT,
        walks ARRAY<STRUCT<moment: BIGINT, device: STRING>>
    )
    EMIT AS (
        SELECT business, contact, coalesce(base, 0) + coalesce(len(walks), 0) AS count, base, as_of, walks
        FROM folded
        WHERE (walks, base, as_of) IS DISTINCT FROM (previous_walks, previous_base, previous_as_of)
    )
    RESTORE AS (SELECT business, contact, base, as_of, walks FROM output)
STATE PARTITIONS 2
APP presence
AS
SELECT business, contact, count, base, as_of, walks
FROM counts
