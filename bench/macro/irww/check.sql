-- Fails by a division by zero unless the data are right after any number of whole transactions: each order
-- has its lines, what was ordered is what the lines say, and what customers have paid has arrived.
-- At first each of 3000 orders has five lines of one piece that no stock counts.
SELECT 1 / (count(*) = 0)::int AS orders_have_their_lines FROM
    (SELECT o_lines, (SELECT count(*) FROM order_line WHERE l_o_id = o_id) AS lines FROM orders) o
    WHERE o_lines <> lines;
SELECT 1 / (count(*) > 3000)::int AS there_are_new_orders FROM orders;
SELECT 1 / ((SELECT sum(s_ordered) FROM stock) =
    (SELECT sum(l_quantity) FROM order_line) - 3000 * 5)::int AS stock_knows_what_is_ordered;
SELECT 1 / (count(*) = 0)::int AS stock_is_refilled FROM stock
    WHERE s_quantity < 0 OR (s_quantity + s_ordered) % 1000 <> 0;
SELECT 1 / ((SELECT sum(c_paid) FROM customer) = (SELECT sum(w_received) FROM warehouse) AND
    (SELECT sum(c_balance + c_paid) FROM customer) = 0)::int AS what_is_paid_has_arrived;
