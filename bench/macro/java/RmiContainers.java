// Calls by Java RMI with five containers of 32 KB there and five back, as CICS' distributed program link
// has them: a server, and a load of some threads. RMI gives each thread a connection of its own while it
// calls. The first byte of a container is its number, which the server answers plus one; all others
// are compared, too, by both.
//
//     java -Djava.rmi.server.hostname=127.0.0.1 -cp CLASSES RmiContainers server PORT
//     java -cp CLASSES RmiContainers load PORT THREADS

import java.rmi.Remote;
import java.rmi.RemoteException;
import java.rmi.registry.LocateRegistry;
import java.rmi.registry.Registry;
import java.rmi.server.UnicastRemoteObject;
import java.util.Arrays;
import java.util.concurrent.ThreadLocalRandom;

public final class RmiContainers {
    static final int COUNT = 5;
    static final int LEN = 32 * 1024;

    /** What is behind the number of each container. */
    static final byte[] FILLING = filling();

    /** What can be called. */
    public interface Program extends Remote {
        byte[][] link(byte[][] channel) throws RemoteException;
    }

    /** The called program. */
    static final class Answering implements Program {
        @Override
        public byte[][] link(byte[][] channel) {
            return channelOf((byte) (numberOf(channel) + 1));
        }
    }

    /** Would be collected as garbage if nothing here led to them. */
    private static Registry registry;
    private static Program answering;

    private RmiContainers() {}

    public static void main(String[] args) throws Exception {
        int port = Integer.parseInt(args[1]);
        if (args[0].equals("server")) {
            // The registry and the program share the port.
            registry = LocateRegistry.createRegistry(port);
            answering = new Answering();
            registry.rebind("program", UnicastRemoteObject.exportObject(answering, port));
        } else {
            Registry there = LocateRegistry.getRegistry("127.0.0.1", port);
            Load.run(Integer.parseInt(args[2]), () -> {
                Program program = (Program) there.lookup("program");
                return () -> call(program);
            });
        }
    }

    static void call(Program program) throws RemoteException {
        byte number = (byte) ThreadLocalRandom.current().nextInt();
        byte answer = numberOf(program.link(channelOf(number)));
        if (answer != (byte) (number + 1)) {
            throw new IllegalStateException("the answer to " + number + " is " + answer);
        }
    }

    static byte[][] channelOf(byte number) {
        byte[][] channel = new byte[COUNT][];
        for (int i = 0; i < COUNT; i++) {
            channel[i] = FILLING.clone();
            channel[i][0] = number;
        }
        return channel;
    }

    /** The number that all containers of a channel have, if they are whole. */
    static byte numberOf(byte[][] channel) {
        boolean isWhole = channel.length == COUNT;
        for (byte[] container : channel) {
            isWhole &= container.length == LEN && container[0] == channel[0][0]
                && Arrays.equals(container, 1, LEN, FILLING, 1, LEN);
        }
        if (!isWhole) {
            throw new IllegalStateException("a container is not what it has to be");
        }
        return channel[0][0];
    }

    private static byte[] filling() {
        byte[] filling = new byte[LEN];
        for (int i = 0; i < LEN; i++) {
            filling[i] = (byte) (i * 31);
        }
        return filling;
    }
}
