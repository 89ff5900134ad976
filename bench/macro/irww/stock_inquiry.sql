-- Stock inquiry: how much of ten products a warehouse has.
\set w random(1, 10)
\set i random(1, 991)
SELECT s_i_id, s_quantity, i_price FROM stock JOIN item ON i_id = s_i_id
    WHERE s_w_id = :w AND s_i_id BETWEEN :i AND :i + 9;
