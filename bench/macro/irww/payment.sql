-- Payment: a customer pays to a warehouse.
\set w random(1, 10)
\set c random(1, 1000)
\set a random(1, 5000)
BEGIN;
UPDATE customer SET c_balance = c_balance - :a, c_paid = c_paid + :a, c_payments = c_payments + 1
    WHERE c_id = :c RETURNING c_name, c_balance;
UPDATE warehouse SET w_received = w_received + :a WHERE w_id = :w;
COMMIT;
