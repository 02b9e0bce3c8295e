-- The least privileges of four roles on one outbox, to be run by the owner of its
-- tables after migrate. The roles are there before; programs log in as users that
-- are granted one or more of them:
--
--     CREATE ROLE outbox_producer NOLOGIN;
--     CREATE ROLE outbox_relay    NOLOGIN;
--     CREATE ROLE outbox_operator NOLOGIN;
--     CREATE ROLE outbox_consumer NOLOGIN;
--
-- Roles belong to all databases of the server, so two outboxes that are granted to the
-- same ones share them: rename the roles here where they must not. To migrate takes the
-- owner, who creates and alters the tables.

-- producer: services that enqueue, with the library or with a plain INSERT. What it
-- reads are the number of lanes and, to check the schema at its start, the lanes.
GRANT INSERT ON {ready}, {parked} TO outbox_producer;
GRANT SELECT ON {meta}, {lane} TO outbox_producer;
-- Only with revisions.
GRANT SELECT, INSERT, UPDATE ON {revision} TO outbox_producer;

-- relay: claims, publishes, settles, surfaces what is due, and purges done. To lock
-- a row takes a right to update, which on done is that of one column.
GRANT SELECT ON {meta}, {ready}, {parked}, {done}, {lane} TO outbox_relay;
GRANT INSERT, DELETE ON {ready} TO outbox_relay;
GRANT INSERT, UPDATE, DELETE ON {parked} TO outbox_relay;
GRANT INSERT, UPDATE (reason), DELETE ON {done} TO outbox_relay;
GRANT UPDATE ON {lane} TO outbox_relay;
GRANT UPDATE (purge_at) ON {meta} TO outbox_relay;
GRANT SELECT ON SEQUENCE {sequence} TO outbox_relay;

-- operator: status, parked, requeue, discard, replay, purge, audit, ui.
GRANT SELECT ON {meta}, {ready}, {parked}, {done}, {lane} TO outbox_operator;
GRANT INSERT ON {ready} TO outbox_operator;
GRANT UPDATE, DELETE ON {parked} TO outbox_operator;
GRANT INSERT, UPDATE (reason), DELETE ON {done} TO outbox_operator;
GRANT UPDATE (owner) ON {lane} TO outbox_operator;
-- What was written is not changed.
GRANT SELECT, INSERT ON {audit} TO outbox_operator;

-- consumer: the inbox, and its purge.
GRANT SELECT, INSERT, UPDATE (recorded_at), DELETE ON {inbox} TO outbox_consumer;
-- Only with revisions.
GRANT SELECT, INSERT, UPDATE ON {progress} TO outbox_consumer;
