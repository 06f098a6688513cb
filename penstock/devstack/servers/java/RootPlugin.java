import java.util.Collection;
import java.util.List;
import java.util.function.Predicate;
import java.util.function.Supplier;
import org.elasticsearch.Build;
import org.elasticsearch.client.internal.node.NodeClient;
import org.elasticsearch.cluster.node.DiscoveryNodes;
import org.elasticsearch.features.NodeFeature;
import org.elasticsearch.plugins.ActionPlugin;
import org.elasticsearch.plugins.Plugin;
import org.elasticsearch.rest.BaseRestHandler;
import org.elasticsearch.rest.RestHandler;
import org.elasticsearch.rest.RestRequest;
import org.elasticsearch.rest.RestResponse;
import org.elasticsearch.rest.RestStatus;
import org.elasticsearch.xcontent.XContentBuilder;

/** Answers GET /, by which clients know an Elasticsearch; the module that does so is in its archive only. */
public class RootPlugin extends Plugin implements ActionPlugin {
  @Override
  public Collection<RestHandler> getRestHandlers(
      ActionPlugin.RestHandlersServices services,
      Supplier<DiscoveryNodes> nodes,
      Predicate<NodeFeature> features) {
    return List.of(new Root());
  }

  static class Root extends BaseRestHandler {
    @Override
    public String getName() {
      return "main_action";
    }

    @Override
    public List<Route> routes() {
      return List.of(new Route(RestRequest.Method.GET, "/"), new Route(RestRequest.Method.HEAD, "/"));
    }

    @Override
    protected RestChannelConsumer prepareRequest(RestRequest request, NodeClient client) {
      return channel -> {
        XContentBuilder answer = channel.newBuilder().startObject();
        answer.field("name", "node-1").field("cluster_name", client.settings().get("cluster.name"));
        answer.startObject("version").field("number", Build.current().version()).field("build_flavor", "default");
        answer.field("lucene_version", org.apache.lucene.util.Version.LATEST.toString()).endObject();
        answer.field("tagline", "You Know, for Search").endObject();
        channel.sendResponse(new RestResponse(RestStatus.OK, answer));
      };
    }
  }
}
