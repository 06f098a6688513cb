import java.lang.reflect.Method;
import java.nio.file.Path;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.elasticsearch.common.logging.LogConfigurator;
import org.elasticsearch.common.settings.Settings;
import org.elasticsearch.env.Environment;
import org.elasticsearch.node.Node;
import org.elasticsearch.plugins.PluginsLoader;

/** One Elasticsearch node: HOME KEY=VALUE... Its own start needs files that only its archive has. */
public class SearchNode {
  public static void main(String[] given) throws Exception {
    Path home = Path.of(given[0]).toAbsolutePath();
    Settings.Builder settings = Settings.builder().put("path.home", home.toString());
    for (int i = 1; i < given.length; i++) {
      int at = given[i].indexOf('=');
      settings.put(given[i].substring(0, at), given[i].substring(at + 1));
    }
    LogConfigurator.registerErrorListener();
    LogConfigurator.setNodeName("node-1");
    Environment environment = new Environment(settings.build(), home.resolve("config"));
    LogConfigurator.configure(environment, true);
    PluginsLoader loader = PluginsLoader.createPluginsLoader(
        bundles("loadModulesBundles", environment.modulesDir()),
        bundles("loadPluginsBundles", environment.pluginsDir()),
        Map.of(),
        false);
    Node node = new Node(environment, loader);
    Runtime.getRuntime().addShutdownHook(new Thread(() -> {
      try {
        node.close();
        node.awaitClose(10, TimeUnit.SECONDS);
      } catch (Exception e) {
        e.printStackTrace();
      }
    }));
    node.start();
    Thread.currentThread().join();
  }

  @SuppressWarnings({"unchecked", "rawtypes"})
  private static Set bundles(String name, Path folder) throws Exception {
    for (Method method : PluginsLoader.class.getMethods()) {
      if (method.getName().equals(name)) {
        return (Set) (method.getParameterCount() == 1 ? method.invoke(null, folder) : method.invoke(null, folder, false));
      }
    }
    throw new NoSuchMethodException(name);
  }
}
