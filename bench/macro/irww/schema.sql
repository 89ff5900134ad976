-- The tables of the order workload, and what is in them at first: ten warehouses with a thousand products
-- each, a thousand customers, and three thousand orders, the last hundred of which are not delivered.
-- Nothing is random, so that each run begins with the same.

CREATE TABLE warehouse (w_id int PRIMARY KEY, w_received numeric(14, 2) NOT NULL);
CREATE TABLE customer (c_id int PRIMARY KEY, c_name text NOT NULL, c_balance numeric(14, 2) NOT NULL,
    c_paid numeric(14, 2) NOT NULL, c_payments int NOT NULL);
CREATE TABLE item (i_id int PRIMARY KEY, i_name text NOT NULL, i_price numeric(8, 2) NOT NULL);
CREATE TABLE stock (s_w_id int, s_i_id int, s_quantity int NOT NULL, s_ordered int NOT NULL,
    PRIMARY KEY (s_w_id, s_i_id));
CREATE TABLE orders (o_id bigserial PRIMARY KEY, o_w_id int NOT NULL, o_c_id int NOT NULL,
    o_lines int NOT NULL, o_delivered boolean NOT NULL);
CREATE TABLE order_line (l_o_id bigint, l_number int, l_i_id int NOT NULL, l_quantity int NOT NULL,
    l_amount numeric(10, 2) NOT NULL, PRIMARY KEY (l_o_id, l_number));

INSERT INTO warehouse SELECT w, 0 FROM generate_series(1, 10) w;
INSERT INTO customer SELECT c, 'customer ' || c, 0, 0, 0 FROM generate_series(1, 1000) c;
INSERT INTO item SELECT i, 'product ' || i, 1 + i % 100 FROM generate_series(1, 1000) i;
INSERT INTO stock SELECT w, i, 1000, 0 FROM generate_series(1, 10) w, generate_series(1, 1000) i;
INSERT INTO orders (o_w_id, o_c_id, o_lines, o_delivered)
    SELECT 1 + o % 10, 1 + o % 1000, 5, o <= 2900 FROM generate_series(1, 3000) o;
INSERT INTO order_line SELECT o, l, 1 + (o * 7 + l) % 1000, 1, 1 + ((o * 7 + l) % 1000 + 1) % 100
    FROM generate_series(1, 3000) o, generate_series(1, 5) l;
CREATE INDEX ON orders (o_c_id, o_id);
CREATE INDEX ON orders (o_w_id, o_id) WHERE NOT o_delivered;
ANALYZE;
