-- Price change: of one product.
\set i random(1, 1000)
\set p random(1, 100)
UPDATE item SET i_price = :p WHERE i_id = :i;
