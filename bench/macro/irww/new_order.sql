-- New order: a customer orders five products of a warehouse.
\set w random(1, 10)
\set c random(1, 1000)
\set i random(1, 1000)
\set q random(1, 10)
BEGIN;
SELECT c_name, c_balance FROM customer WHERE c_id = :c;
INSERT INTO orders (o_w_id, o_c_id, o_lines, o_delivered) VALUES (:w, :c, 5, false)
    RETURNING o_id AS o \gset
SELECT i_price AS p1 FROM item WHERE i_id = :i \gset
\set i2 1 + (:i + 199) % 1000
SELECT i_price AS p2 FROM item WHERE i_id = :i2 \gset
\set i3 1 + (:i + 399) % 1000
SELECT i_price AS p3 FROM item WHERE i_id = :i3 \gset
\set i4 1 + (:i + 599) % 1000
SELECT i_price AS p4 FROM item WHERE i_id = :i4 \gset
\set i5 1 + (:i + 799) % 1000
SELECT i_price AS p5 FROM item WHERE i_id = :i5 \gset
INSERT INTO order_line VALUES
    (:o, 1, :i, :q, :q::int * :p1::numeric),
    (:o, 2, :i2, :q, :q::int * :p2::numeric),
    (:o, 3, :i3, :q, :q::int * :p3::numeric),
    (:o, 4, :i4, :q, :q::int * :p4::numeric),
    (:o, 5, :i5, :q, :q::int * :p5::numeric);
-- In the order of their keys, so that two orders do not wait for each other.
WITH wanted AS (SELECT s_i_id FROM stock WHERE s_w_id = :w AND s_i_id IN (:i, :i2, :i3, :i4, :i5)
    ORDER BY s_i_id FOR UPDATE)
UPDATE stock SET s_ordered = s_ordered + :q,
    s_quantity = CASE WHEN s_quantity > :q THEN s_quantity - :q ELSE s_quantity - :q + 1000 END
    FROM wanted WHERE s_w_id = :w AND stock.s_i_id = wanted.s_i_id;
COMMIT;
