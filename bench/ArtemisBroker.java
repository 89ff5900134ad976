// A broker of ActiveMQ Artemis with its default settings, as programs embed it, on a loopback
// port. Queues are made when they are first used.
//
//     java -cp 'JARS/*' ArtemisBroker.java PORT DIRECTORY

import java.io.File;
import org.apache.activemq.artemis.core.config.Configuration;
import org.apache.activemq.artemis.core.config.impl.ConfigurationImpl;
import org.apache.activemq.artemis.core.server.embedded.EmbeddedActiveMQ;

public class ArtemisBroker {
    public static void main(String[] args) throws Exception {
        Configuration configuration = new ConfigurationImpl();
        configuration.setSecurityEnabled(false);
        // The messages of this bench do not outlive it.
        configuration.setPersistenceEnabled(false);
        configuration.setBrokerInstance(new File(args[1]));
        configuration.addAcceptorConfiguration("bench", "tcp://127.0.0.1:" + args[0]);
        new EmbeddedActiveMQ().setConfiguration(configuration).start();
    }
}
