-- Price quote: the prices of ten products.
\set i random(1, 991)
BEGIN;
SELECT i_id, i_name, i_price FROM item WHERE i_id = :i;
SELECT i_id, i_name, i_price FROM item WHERE i_id = :i + 1;
SELECT i_id, i_name, i_price FROM item WHERE i_id = :i + 2;
SELECT i_id, i_name, i_price FROM item WHERE i_id = :i + 3;
SELECT i_id, i_name, i_price FROM item WHERE i_id = :i + 4;
SELECT i_id, i_name, i_price FROM item WHERE i_id = :i + 5;
SELECT i_id, i_name, i_price FROM item WHERE i_id = :i + 6;
SELECT i_id, i_name, i_price FROM item WHERE i_id = :i + 7;
SELECT i_id, i_name, i_price FROM item WHERE i_id = :i + 8;
SELECT i_id, i_name, i_price FROM item WHERE i_id = :i + 9;
COMMIT;
