-- Walk-ins get the contact that their device had at the time, or the first that it gets within `wait`.
STREAM INTO enriched-walk-ins
READ walk-ins
    EVENT TIME timestamp_millis(timestamp)
READ device-contacts AS JSON (
    device STRING NOT NULL, contact STRING, businesses ARRAY<STRING>, timestamp BIGINT NOT NULL
)
    EVENT TIME timestamp_millis(timestamp)
    WITH RECORD
KEY (business, contact)
VALUE (device, business, since, timestamp, contact)
-- How long after a walk-in its contact may be known.
SETTING wait 30 MINUTES
-- `contacts`: the contacts of a device in the last `wait`, and the newest before, so that a walk-in that is read late
-- gets the contact of its time. Of several with the same time the last record counts. `waiting`: walk-ins without a
-- contact. `enriched`: walk-ins that have their contact, for as long as their topic keeps them, so that one that is read
-- again is not emitted again with another contact.
FOLD contact-lookup
    FROM (
        SELECT
          device, business, since, timestamp,
          CAST(NULL AS STRING) AS contact, CAST(NULL AS BIGINT) AS record_offset, event_time
        FROM `walk-ins`
        UNION ALL
        SELECT
          device, CAST(NULL AS STRING) AS business, CAST(NULL AS BIGINT) AS since, timestamp,
          contact, record.offset AS record_offset, event_time
        FROM `device-contacts`
    )
    BY (device)
    STATE (
        contacts ARRAY<STRUCT<since: BIGINT, contact: STRING>>,
        waiting ARRAY<STRUCT<business: STRING, since: BIGINT, walked_in_at: BIGINT>>,
        enriched ARRAY<STRUCT<business: STRING, walked_in_at: BIGINT>>
    )
    -- A removal has the contact NULL, which arg_max ignores: so the contact is packed.
    UPDATE AS (
        WITH known AS (
          SELECT
            device,
            contact_since,
            arg_max(struct_pack(contact := contact), record_offset).contact AS contact
          FROM (
            SELECT device, timestamp AS contact_since, contact, record_offset
            FROM records
            WHERE business IS NULL
            UNION ALL
            SELECT device, entry.since, entry.contact, -1
            FROM (SELECT device, unnest(contacts) AS entry FROM state)
          )
          GROUP BY device, contact_since
        ), emitted AS (
          SELECT device, entry.business, entry.walked_in_at
          FROM (SELECT device, unnest(enriched) AS entry FROM state)
        ), walk_ins AS (
          SELECT device, business, walked_in_at, min(since) AS since
          FROM (
            SELECT device, business, since, timestamp AS walked_in_at
            FROM records
            WHERE business IS NOT NULL
            UNION ALL
            SELECT device, entry.business, entry.since, entry.walked_in_at
            FROM (SELECT device, unnest(waiting) AS entry FROM state)
          )
          ANTI JOIN emitted USING (device, business, walked_in_at)
          GROUP BY device, business, walked_in_at
        ), with_contact_then AS (
          SELECT walk_ins.*, known.contact
          FROM walk_ins
          ASOF LEFT JOIN known ON walk_ins.device = known.device AND walk_ins.walked_in_at >= known.contact_since
        ), with_contact_later AS (
          SELECT w.device, w.business, w.walked_in_at, arg_min(known.contact, known.contact_since) AS contact
          FROM with_contact_then w
          JOIN known
            ON w.device = known.device
            AND known.contact_since > w.walked_in_at
            AND known.contact_since <= w.walked_in_at + getvariable('wait')
          WHERE w.contact IS NULL AND known.contact IS NOT NULL
          GROUP BY w.device, w.business, w.walked_in_at
        ), looked_up AS (
          SELECT
            device,
            business,
            since,
            walked_in_at,
            coalesce(with_contact_then.contact, with_contact_later.contact) AS contact
          FROM with_contact_then
          LEFT JOIN with_contact_later USING (device, business, walked_in_at)
        ), walk_ins_of_device AS (
          SELECT
            device,
            list(struct_pack(business := business, since := since, "timestamp" := walked_in_at, contact := contact)
              ORDER BY walked_in_at, business) FILTER (WHERE contact IS NOT NULL) AS newly_enriched,
            list(struct_pack(business := business, since := since, walked_in_at := walked_in_at)
              ORDER BY walked_in_at, business)
              FILTER (WHERE contact IS NULL AND walked_in_at + getvariable('wait') >= getvariable('watermark')) AS waiting
          FROM looked_up
          GROUP BY device
        ), enriched_of_device AS (
          SELECT
            device,
            list(struct_pack(business := business, walked_in_at := walked_in_at) ORDER BY walked_in_at, business) AS enriched
          FROM (FROM emitted UNION ALL SELECT device, business, walked_in_at FROM looked_up WHERE contact IS NOT NULL)
          -- `walk-ins` keeps its records for 30 days.
          WHERE walked_in_at >= getvariable('watermark') - 2592000000
          GROUP BY device
        ), oldest_needed AS (
          SELECT device, max(contact_since) FILTER (WHERE contact_since < getvariable('watermark') - getvariable('wait')) AS contact_since
          FROM known
          GROUP BY device
        ), contacts_of_device AS (
          SELECT device, list(struct_pack(since := known.contact_since, contact := contact) ORDER BY known.contact_since)
            AS contacts
          FROM known
          JOIN oldest_needed USING (device)
          WHERE oldest_needed.contact_since IS NULL OR known.contact_since >= oldest_needed.contact_since
          GROUP BY device
        )
        SELECT device, contacts, waiting, enriched, newly_enriched
        FROM contacts_of_device
        FULL JOIN walk_ins_of_device USING (device)
        LEFT JOIN enriched_of_device USING (device)
    )
    ROWS (
        device STRING NOT NULL, business STRING NOT NULL, since BIGINT NOT NULL, timestamp BIGINT NOT NULL,
        contact STRING NOT NULL
    )
    EMIT AS (
        SELECT device, walk_in.business, walk_in.since, walk_in.timestamp, walk_in.contact
        FROM (SELECT device, unnest(newly_enriched) AS walk_in FROM folded WHERE newly_enriched IS NOT NULL)
    )
    EXPIRES WHEN (
        contacts IS NULL
        AND coalesce(list_max(list_transform(waiting, lambda w: w.walked_in_at)), 0)
          < getvariable('watermark') - getvariable('wait')
    )
    -- Older contacts that are still valid stay in their topic, which is compacted.
    INPUT RETENTION wait
STATE PARTITIONS 2
APP presence
AS
SELECT device, business, since, timestamp, contact
FROM `contact-lookup`
