import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.apache.lucene.util.VectorUtil;
import org.opensearch.Version;
import org.opensearch.common.logging.LogConfigurator;
import org.opensearch.common.settings.Settings;
import org.opensearch.env.Environment;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.plugins.PluginInfo;

/**
 * Starts a node with its transport and k-NN from one class path. The server's own main class wants a Java agent that no
 * package holds. The node tells how Lucene computes distances, as an attribute.
 */
public class Launch {
    public static void main(String[] arguments) throws Exception {
        Path home = Path.of(arguments[0]), knn = Path.of(arguments[1]);
        String name = arguments[2];
        Field implementation = VectorUtil.class.getDeclaredField("IMPL");
        implementation.setAccessible(true);
        String vectors = implementation.get(null).getClass().getSimpleName();
        Map<String, String> told = Map.of("path.home", home.toString(), "node.attr.lucene_vectors", vectors);
        Environment environment =
                InternalSettingsPreparer.prepareEnvironment(Settings.EMPTY, told, home.resolve("config"), () -> name);
        LogConfigurator.setNodeName(name);
        LogConfigurator.configure(environment);
        PluginInfo transport = new PluginInfo(
                "transport-netty4", "HTTP", Version.CURRENT.toString(), Version.CURRENT, "21",
                "org.opensearch.transport.Netty4ModulePlugin", "", List.of(), false);
        List<PluginInfo> plugins = List.of(transport, PluginInfo.readFromProperties(knn));
        Constructor<Node> constructor =
                Node.class.getDeclaredConstructor(Environment.class, java.util.Collection.class, boolean.class);
        constructor.setAccessible(true);
        Node node = constructor.newInstance(environment, plugins, true);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                node.close();
            } catch (java.io.IOException error) {
                System.err.println(error);
            }
        }));
        node.start();
        Thread.currentThread().join(); // the node's own threads keep no process alive
    }
}
