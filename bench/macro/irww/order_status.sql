-- Order status: a customer's last order, with its lines.
\set c random(1, 1000)
BEGIN;
SELECT c_name, c_balance FROM customer WHERE c_id = :c;
SELECT o_id AS o FROM orders WHERE o_c_id = :c ORDER BY o_id DESC LIMIT 1 \gset
SELECT l_number, l_i_id, l_quantity, l_amount FROM order_line WHERE l_o_id = :o;
COMMIT;
