// Threads with a JDBC connection each write rows of random bytes into
// PostgreSQL, read them back and compare.
//
//     java -cp postgresql.jar Jdbc.java PORT SEED

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

public class Jdbc {
    static final int CLIENTS = 8;
    static final int ROWS = 100;
    static final int ROW_LEN_MAX = 200_000;

    public static void main(String[] args) throws Exception {
        String url = "jdbc:postgresql://127.0.0.1:" + args[0] + "/postgres?user=postgres";
        long seed = Long.parseLong(args[1]);
        try (Connection first = DriverManager.getConnection(url)) {
            first.createStatement().execute("CREATE TABLE rows (owner int, n int, bytes bytea)");
        }
        ExecutorService threads = Executors.newFixedThreadPool(CLIENTS);
        List<Future<Long>> clients = new ArrayList<>();
        for (int i = 0; i < CLIENTS; i++) {
            int owner = i;
            Callable<Long> client = () -> use(url, owner, new Random(seed + owner));
            clients.add(threads.submit(client));
        }
        long verified = 0;
        for (Future<Long> client : clients) {
            verified += client.get();
        }
        threads.shutdown();
        System.out.println(verified + " bytes read back by " + CLIENTS + " clients");
    }

    static long use(String url, int owner, Random random) throws Exception {
        byte[][] rows = new byte[ROWS][];
        try (Connection connection = DriverManager.getConnection(url)) {
            connection.setAutoCommit(false);
            PreparedStatement insert =
                connection.prepareStatement("INSERT INTO rows VALUES (?, ?, ?)");
            for (int n = 0; n < ROWS; n++) {
                rows[n] = new byte[random.nextInt(ROW_LEN_MAX)];
                random.nextBytes(rows[n]);
                insert.setInt(1, owner);
                insert.setInt(2, n);
                insert.setBytes(3, rows[n]);
                insert.addBatch();
            }
            insert.executeBatch();
            connection.commit();
            return readBack(connection, owner, rows);
        }
    }

    static long readBack(Connection connection, int owner, byte[][] rows) throws Exception {
        PreparedStatement select =
            connection.prepareStatement("SELECT bytes FROM rows WHERE owner = ? ORDER BY n");
        select.setInt(1, owner);
        // In portions, each a request of its own.
        select.setFetchSize(7);
        ResultSet result = select.executeQuery();
        long verified = 0;
        for (byte[] row : rows) {
            if (!result.next() || !Arrays.equals(result.getBytes(1), row)) {
                throw new IllegalStateException("a row of client " + owner + " is wrong");
            }
            verified += row.length;
        }
        return verified;
    }
}
