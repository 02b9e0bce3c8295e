-- The least privileges of four roles on one outbox, to be run after migrate by a
-- user who may grant them, in the database of the tables. The roles are there before;
-- users are made members of one or more of them. A user of the same name does as well:
--
--     CREATE ROLE outbox_producer;
--     CREATE ROLE outbox_relay;
--     CREATE ROLE outbox_operator;
--     CREATE ROLE outbox_consumer;
--     ALTER ROLE outbox_relay ADD MEMBER the_relays_user;
--
-- A lock that a SELECT takes by a hint asks for no more than SELECT. VIEW DEFINITION
-- lets a role see that a table and its indexes are there, which Check looks at: without
-- any privilege on a table it does not exist.
--
-- To migrate takes CREATE TABLE in the database and ALTER on the schema, and CREATE
-- SCHEMA for a schema that is not there yet.

-- producer: services that enqueue, with the library or with a plain INSERT. What it
-- reads are the number of lanes and, to check the schema at its start, the lanes.
GRANT INSERT ON OBJECT::{ready} TO outbox_producer;
GRANT INSERT ON OBJECT::{parked} TO outbox_producer;
GRANT SELECT ON OBJECT::{meta} TO outbox_producer;
GRANT SELECT ON OBJECT::{lane} TO outbox_producer;
GRANT VIEW DEFINITION ON OBJECT::{done} TO outbox_producer;
GRANT VIEW DEFINITION ON OBJECT::{inbox} TO outbox_producer;
-- Only with revisions, but for the definition.
GRANT SELECT, INSERT, UPDATE ON OBJECT::{revision} TO outbox_producer;
GRANT VIEW DEFINITION ON OBJECT::{progress} TO outbox_producer;
GRANT VIEW DEFINITION ON OBJECT::{audit} TO outbox_producer;

-- relay: claims, publishes, settles, surfaces what is due, and purges done.
GRANT SELECT ON OBJECT::{meta} TO outbox_relay;
GRANT UPDATE (purge_at) ON OBJECT::{meta} TO outbox_relay;
GRANT SELECT, INSERT, DELETE ON OBJECT::{ready} TO outbox_relay;
GRANT SELECT, INSERT, UPDATE, DELETE ON OBJECT::{parked} TO outbox_relay;
GRANT SELECT, INSERT, DELETE ON OBJECT::{done} TO outbox_relay;
GRANT SELECT, UPDATE ON OBJECT::{lane} TO outbox_relay;
GRANT VIEW DEFINITION ON OBJECT::{inbox} TO outbox_relay;
GRANT VIEW DEFINITION ON OBJECT::{revision} TO outbox_relay;
GRANT VIEW DEFINITION ON OBJECT::{progress} TO outbox_relay;
GRANT VIEW DEFINITION ON OBJECT::{audit} TO outbox_relay;

-- operator: status, parked, requeue, discard, replay, purge, audit, ui.
GRANT SELECT ON OBJECT::{meta} TO outbox_operator;
GRANT SELECT, INSERT ON OBJECT::{ready} TO outbox_operator;
GRANT SELECT, UPDATE, DELETE ON OBJECT::{parked} TO outbox_operator;
GRANT SELECT, INSERT, DELETE ON OBJECT::{done} TO outbox_operator;
GRANT SELECT ON OBJECT::{lane} TO outbox_operator;
-- What was written is not changed.
GRANT SELECT, INSERT ON OBJECT::{audit} TO outbox_operator;
GRANT VIEW DEFINITION ON OBJECT::{inbox} TO outbox_operator;
GRANT VIEW DEFINITION ON OBJECT::{revision} TO outbox_operator;
GRANT VIEW DEFINITION ON OBJECT::{progress} TO outbox_operator;

-- consumer: the inbox, and its purge.
GRANT SELECT, INSERT, DELETE ON OBJECT::{inbox} TO outbox_consumer;
-- Only with revisions.
GRANT SELECT, INSERT, UPDATE ON OBJECT::{progress} TO outbox_consumer;
