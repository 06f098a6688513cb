-- CRM events become the contact of each device and the businesses where it logged in: the newest event counts.
STREAM INTO device-contacts
COMPACTED
-- Older values stay for a day, so that a stream that reads the topic again finds the contact of the time of a walk-in.
WITH ('min.compaction.lag.ms' = '86400000', 'max.compaction.lag.ms' = '86400000')
-- An event of another type, and a login or change without contact, is a dead letter.
READ crm-events AS JSON (
    device STRING NOT NULL, contact STRING, business STRING, type STRING NOT NULL, timestamp BIGINT NOT NULL
)
    EVENT TIME CASE
      WHEN type = 'removal' OR (type IN ('login', 'change') AND contact IS NOT NULL) THEN timestamp_millis(timestamp)
    END
READ crm-events-backfill AS JSON (
    device STRING NOT NULL, contact STRING, business STRING, type STRING NOT NULL, timestamp BIGINT NOT NULL
)
    EVENT TIME CASE
      WHEN type = 'removal' OR (type IN ('login', 'change') AND contact IS NOT NULL) THEN timestamp_millis(timestamp)
    END
KEY device
-- The topic contains all of the state, so that the state can be restored from it.
VALUE (device, contact, businesses, timestamp, rank, removed, logins)
-- The state does not depend on the order of events: the newest event, the latest removal, and the latest login at each
-- business since that removal. The removal is kept so that a backfill of older events does not restore the contact.
-- Of several events with the same time, a removal takes precedence over a change, and a change over a login; then the
-- greater contact.
FOLD contacts
    FROM (
        SELECT
          device, type, business, timestamp, event_time,
          struct(
            timestamp AS moment,
            CASE type WHEN 'removal' THEN 2 WHEN 'change' THEN 1 ELSE 0 END AS rank,
            CASE WHEN type <> 'removal' THEN contact END AS contact
          ) AS event
        FROM (FROM `crm-events` UNION ALL FROM `crm-events-backfill`)
    )
    BY (device)
    STATE (
        newest STRUCT<moment: BIGINT, rank: INT, contact: STRING>,
        removed BIGINT,
        logins ARRAY<STRUCT<business: STRING, moment: BIGINT>>
    )
    UPDATE AS (
        WITH events AS (
          SELECT
            device,
            event,
            CASE WHEN type = 'removal' THEN timestamp END AS removed,
            CASE WHEN type = 'login' THEN business END AS business,
            timestamp AS moment
          FROM records
          UNION ALL
          SELECT device, newest, removed, NULL, newest.moment
          FROM state
          UNION ALL
          SELECT device, newest, removed, login.business, login.moment
          FROM (SELECT device, newest, removed, unnest(logins) AS login FROM state)
        ), latest AS (
          SELECT device, max(event) AS newest, max(removed) AS removed
          FROM events
          GROUP BY device
        ), latest_logins AS (
          SELECT device, business, max(moment) AS moment
          FROM events
          WHERE business IS NOT NULL
          GROUP BY device, business
        ), logins_since_removal AS (
          SELECT device, list(struct_pack(business := business, moment := moment) ORDER BY business) AS logins
          FROM latest_logins
          JOIN latest USING (device)
          WHERE removed IS NULL OR moment > removed
          GROUP BY device
        )
        SELECT
          device,
          latest.newest,
          latest.removed,
          logins_since_removal.logins,
          state.newest AS previous_newest,
          state.removed AS previous_removed,
          state.logins AS previous_logins
        FROM latest
        LEFT JOIN logins_since_removal USING (device)
        LEFT JOIN state USING (device)
    )
    ROWS (
        device STRING NOT NULL, contact STRING, businesses ARRAY<STRING>, timestamp BIGINT NOT NULL,
        rank INT, removed BIGINT, logins ARRAY<STRUCT<business: STRING, moment: BIGINT>>
    )
    -- One row for each time since the newest event of the state, so that a reader finds the contact of each time.
    EMIT AS (
        WITH moments AS (
          SELECT DISTINCT device, records.timestamp AS moment
          FROM records
          JOIN folded USING (device)
          WHERE previous_newest IS NULL OR records.timestamp > previous_newest.moment
          UNION
          SELECT device, newest.moment
          FROM folded
          WHERE (newest, logins, removed) IS DISTINCT FROM (previous_newest, previous_logins, previous_removed)
        ), events AS (
          SELECT device, event FROM records
          UNION ALL
          SELECT device, newest FROM state
        ), removals AS (
          SELECT device, timestamp AS removed FROM records WHERE type = 'removal'
          UNION ALL
          SELECT device, removed FROM state WHERE removed IS NOT NULL
        ), logins AS (
          SELECT device, business, timestamp AS login_at
          FROM records
          WHERE type = 'login' AND business IS NOT NULL
          UNION ALL
          SELECT device, login.business, login.moment
          FROM (SELECT device, unnest(logins) AS login FROM state)
        ), newest_until AS (
          SELECT device, moment, max(event) AS newest
          FROM moments
          JOIN events USING (device)
          WHERE event.moment <= moments.moment
          GROUP BY device, moment
        ), removed_until AS (
          SELECT device, moment, max(removed) AS removed
          FROM moments
          JOIN removals USING (device)
          WHERE removed <= moment
          GROUP BY device, moment
        ), latest_logins_until AS (
          SELECT device, moment, business, max(login_at) AS login_at
          FROM moments
          JOIN logins USING (device)
          LEFT JOIN removed_until USING (device, moment)
          WHERE login_at <= moment AND (removed IS NULL OR login_at > removed)
          GROUP BY device, moment, business
        ), logins_until AS (
          SELECT
            device,
            moment,
            list(business ORDER BY business) AS businesses,
            list(struct_pack(business := business, moment := login_at) ORDER BY business) AS logins
          FROM latest_logins_until
          GROUP BY device, moment
        )
        SELECT
          device,
          CASE WHEN newest.rank < 2 THEN newest.contact END AS contact,
          coalesce(businesses, []) AS businesses,
          moment AS timestamp,
          newest.rank AS rank,
          removed,
          logins
        FROM newest_until
        LEFT JOIN logins_until USING (device, moment)
        LEFT JOIN removed_until USING (device, moment)
        ORDER BY device, moment
    )
    RESTORE AS (
        SELECT
          device,
          struct_pack(moment := timestamp, rank := rank, contact := contact) AS newest,
          removed,
          logins
        FROM output
    )
STATE PARTITIONS 2
APP presence
AS
SELECT device, contact, businesses, timestamp, rank, removed, logins
FROM contacts
