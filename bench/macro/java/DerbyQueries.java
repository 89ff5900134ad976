// Short queries of an Apache Derby network server, over DRDA, DB2's own protocol: one row by its key,
// prepared, each a transaction of its own, by some threads with a connection each. The table is made
// before; each answer is compared with what was put into the row.
//
//     java -cp CLASSES DerbyQueries PORT THREADS

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.concurrent.ThreadLocalRandom;

public final class DerbyQueries {
    static final int ROWS = 10_000;

    /** Characters of a row's text. */
    static final int TEXT_LEN = 84;

    private DerbyQueries() {}

    public static void main(String[] args) throws Exception {
        String url = "jdbc:derby://127.0.0.1:" + args[0] + "/memory:bench";
        try (Connection connection = DriverManager.getConnection(url + ";create=true")) {
            fill(connection);
        }
        Load.run(Integer.parseInt(args[1]), () -> {
            Connection connection = DriverManager.getConnection(url);
            PreparedStatement query =
                connection.prepareStatement("SELECT balance, filler FROM accounts WHERE id = ?");
            return () -> ask(query, ThreadLocalRandom.current().nextInt(ROWS));
        });
    }

    static void fill(Connection connection) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.execute("CREATE TABLE accounts (id INT PRIMARY KEY, balance INT NOT NULL, "
                + "filler VARCHAR(" + TEXT_LEN + ") NOT NULL)");
        }
        connection.setAutoCommit(false);
        try (PreparedStatement insert =
                connection.prepareStatement("INSERT INTO accounts VALUES (?, ?, ?)")) {
            for (int id = 0; id < ROWS; id++) {
                insert.setInt(1, id);
                insert.setInt(2, balanceOf(id));
                insert.setString(3, textOf(id));
                insert.addBatch();
            }
            insert.executeBatch();
        }
        connection.commit();
    }

    static void ask(PreparedStatement query, int id) throws SQLException {
        query.setInt(1, id);
        try (ResultSet rows = query.executeQuery()) {
            boolean isRight = rows.next() && rows.getInt(1) == balanceOf(id)
                && rows.getString(2).equals(textOf(id)) && !rows.next();
            if (!isRight) {
                throw new IllegalStateException("row " + id + " is not what was put there");
            }
        }
    }

    static int balanceOf(int id) {
        return id * 7 + 3;
    }

    static String textOf(int id) {
        String number = Integer.toString(id);
        return number + "-".repeat(TEXT_LEN - number.length());
    }
}
