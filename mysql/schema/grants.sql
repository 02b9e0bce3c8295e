-- The least privileges of four roles on one outbox, to be run after migrate by a
-- user who may grant them. The roles are there before; users are given one or more
-- of them and have them active at log-in (SET DEFAULT ROLE). A user of the same name
-- does as well:
--
--     CREATE ROLE outbox_producer, outbox_relay, outbox_operator, outbox_consumer;
--
-- To migrate takes CREATE, ALTER and INDEX on the database, and CREATE for a database
-- that is not there yet.

-- producer: services that enqueue, with the library or with a plain INSERT. What it
-- reads are the number of lanes and, to check the schema at its start, the lanes.
GRANT INSERT ON {ready} TO outbox_producer;
GRANT INSERT ON {parked} TO outbox_producer;
GRANT SELECT ON {meta} TO outbox_producer;
GRANT SELECT ON {lane} TO outbox_producer;
-- Only with revisions.
GRANT SELECT, INSERT, UPDATE ON {revision} TO outbox_producer;

-- relay: claims, publishes, settles, surfaces what is due, and purges done.
GRANT SELECT, UPDATE (purge_at) ON {meta} TO outbox_relay;
GRANT SELECT, INSERT, DELETE ON {ready} TO outbox_relay;
GRANT SELECT, INSERT, UPDATE, DELETE ON {parked} TO outbox_relay;
GRANT SELECT, INSERT, DELETE ON {done} TO outbox_relay;
GRANT SELECT, UPDATE ON {lane} TO outbox_relay;

-- operator: status, parked, requeue, discard, replay, purge, audit, ui.
GRANT SELECT ON {meta} TO outbox_operator;
GRANT SELECT, INSERT ON {ready} TO outbox_operator;
GRANT SELECT, UPDATE, DELETE ON {parked} TO outbox_operator;
GRANT SELECT, INSERT, DELETE ON {done} TO outbox_operator;
GRANT SELECT, UPDATE (owner) ON {lane} TO outbox_operator;
-- What was written is not changed.
GRANT SELECT, INSERT ON {audit} TO outbox_operator;

-- consumer: the inbox, and its purge.
GRANT SELECT, INSERT, DELETE ON {inbox} TO outbox_consumer;
-- Only with revisions.
GRANT SELECT, INSERT, UPDATE ON {progress} TO outbox_consumer;
