-- Delivery: the oldest ten orders of a warehouse that are not delivered. Those that another delivery has
-- at this moment are left to it.
\set w random(1, 10)
BEGIN;
WITH due AS (SELECT o_id FROM orders WHERE o_w_id = :w AND NOT o_delivered
    ORDER BY o_id LIMIT 10 FOR UPDATE SKIP LOCKED)
UPDATE orders SET o_delivered = true FROM due WHERE orders.o_id = due.o_id
    RETURNING orders.o_id, o_c_id, o_lines;
COMMIT;
